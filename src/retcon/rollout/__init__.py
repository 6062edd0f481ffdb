"""Rollouts: single trajectories, groups and the lookahead."""
