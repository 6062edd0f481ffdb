"""How records become pieces and trajectories, and are reassembled."""
