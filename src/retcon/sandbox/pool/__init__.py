"""Host side of the sandbox: workers forked on demand, queues, sessions."""

from retcon.sandbox.pool.pool import SandboxPool, default_workers

__all__ = ["SandboxPool", "default_workers"]
