"""Forward pass of a training step, its device and precision."""
