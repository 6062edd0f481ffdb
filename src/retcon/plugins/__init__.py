"""Retcon inside other trainers and environments."""
