"""What a worker gives up, by tier, before it runs anything, and what confines its calls."""
