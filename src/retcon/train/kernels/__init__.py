"""The forward of a training step, and where and in which precision it computes."""
