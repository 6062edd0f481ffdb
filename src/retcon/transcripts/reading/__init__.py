"""How records become pieces and trajectories, and are put together again."""
