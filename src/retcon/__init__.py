"""Retcon: agentic RL for models that write and run Python. `import retcon` needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retcon.tasks.graders.plain import grade

__all__ = ["grade"]
__version__ = "0.1.0"

_FACE = {"grade": "retcon.tasks.graders.plain"}


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is asked for."""
    if name not in _FACE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_FACE[name]), name)
