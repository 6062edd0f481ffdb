"""A discrete-event simulator of engines that serve the rollouts of one training step; see docs/models/scale.md."""
