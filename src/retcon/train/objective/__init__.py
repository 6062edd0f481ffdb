"""Objective of a step: advantages, loss, old log-probs."""
