"""Retcon: agentic RL for models that write and run Python.

The names that most programs need are here; each is imported when it is asked for, and none of them brings torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retcon.chat.chat import Chat
    from retcon.chat.tokenizer import ByteTokenizer
    from retcon.engine.kinds.scripted import ScriptedEngine
    from retcon.purify.saar import Saar
    from retcon.rollout.context import RolloutContext, RolloutLimits
    from retcon.rollout.loop import run_rollout
    from retcon.sandbox.pool import SandboxPool
    from retcon.serve.harness import ModelEndpoint
    from retcon.tasks.graders.plain import grade
    from retcon.tasks.types import Task
    from retcon.tools.kinds.python import PythonTool

    train: Any  # `retcon.train.own.train`, to which the package of that name leads when it is called

__all__ = [
    "ByteTokenizer",
    "Chat",
    "ModelEndpoint",
    "PythonTool",
    "RolloutContext",
    "RolloutLimits",
    "Saar",
    "SandboxPool",
    "ScriptedEngine",
    "Task",
    "grade",
    "run_rollout",
    "train",
]
__version__ = "0.1.0"

_FACE = {
    "ByteTokenizer": "retcon.chat.tokenizer",
    "Chat": "retcon.chat.chat",
    "ModelEndpoint": "retcon.serve.harness",
    "PythonTool": "retcon.tools.kinds.python",
    "RolloutContext": "retcon.rollout.context",
    "RolloutLimits": "retcon.rollout.context",
    "Saar": "retcon.purify.saar",
    "SandboxPool": "retcon.sandbox.pool",
    "ScriptedEngine": "retcon.engine.kinds.scripted",
    "Task": "retcon.tasks.types",
    "grade": "retcon.tasks.graders.plain",
    "run_rollout": "retcon.rollout.loop",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is asked for."""
    from importlib import import_module

    if name == "train":  # a package of this name, which can be called
        return import_module("retcon.train")
    if name not in _FACE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_FACE[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
