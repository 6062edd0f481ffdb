"""What counts as a failed call, by what its output says."""
