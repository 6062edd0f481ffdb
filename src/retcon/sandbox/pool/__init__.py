"""The host's side: workers forked on demand, queues for them, sessions."""

from retcon.sandbox.pool.pool import SandboxPool, default_workers

__all__ = ["SandboxPool", "default_workers"]
