"""What a worker gives up before it runs anything, by tier, and what holds around its calls."""
