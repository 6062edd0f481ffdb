"""The audit by replay: what really changed a rollout's outcome at a failed call, and which credit rule had it right."""
