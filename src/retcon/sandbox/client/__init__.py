"""A sandbox behind HTTP, on one server or on several."""

from retcon.sandbox.client.client import SandboxClient, token_from_environment
from retcon.sandbox.client.router import SandboxRouter

__all__ = ["SandboxClient", "SandboxRouter", "token_from_environment"]
