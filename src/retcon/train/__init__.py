"""Training: reinforcement learning, supervised, on preferences."""
