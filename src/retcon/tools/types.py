"""The Tool protocol: a call in, an observation out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from retcon.core.types import Observation, ToolCall, ToolSpec

CHECKPOINTS = 16
"""That rollouts ask an open tool to keep at a time, at most; a session of the sandbox keeps as many."""


class Tool(Protocol):
    """A tool under one name. A fault of its own is an observation of status `infrastructure`; what it raises, and what
    is no observation of the call, is taken for one.

    spec: what the model is shown of it, and the schema that the arguments of its calls have when they reach it.
    """

    name: str
    spec: ToolSpec

    async def __call__(self, call: ToolCall) -> Observation: ...


class OpenTool(Tool, Protocol):
    """A tool of one trajectory alone, whose state its calls change. It can be taken back to an earlier state."""

    async def checkpoint(self) -> str:
        """Freeze the state as it is now; its name. `CHECKPOINTS` can be kept at a time.

        The calls after it must do what they would have done without. Raises CheckpointRefused where this state cannot
        be kept, with the tool as it was: a failure in it is then not repaired. Raises InfrastructureFault.
        """
        ...

    async def rollback(self, checkpoint: str) -> None:
        """Go to the state of a checkpoint, from an earlier or a later one, as often as one likes; all others stay.

        Raises InfrastructureFault where the state is unavailable.
        """
        ...

    async def discard(self, checkpoint: str) -> None:
        """Free a checkpoint that will not be gone back to."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class StatefulTool(Protocol):
    """A tool that keeps state between the calls of a trajectory: each trajectory opens its own."""

    name: str
    spec: ToolSpec

    async def open(self, trajectory: str) -> OpenTool:
        """The tool for the trajectory of this id, in its first state. Raises InfrastructureFault."""
        ...


class ModelCalls(Protocol):
    """The model of a rollout, for tools whose programs call it.

    context: the long input of the rollout's task.
    """

    @property
    def context(self) -> object: ...

    async def complete(self, call: str, prompts: Sequence[str]) -> list[str]:
        """Answer prompts by the model alone, at the same time and in order; a failure is a text that begins `Error: `.

        Args:
            call: id of the tool call whose program asks.
        """
        ...

    async def recurse(self, call: str, prompts: Sequence[str]) -> list[str]:
        """Answer prompts, each by a rollout with the same tools whose context it is; see `complete`."""
        ...


@runtime_checkable
class TaskTool(Protocol):
    """A tool that begins with a rollout of a task: a part of an environment, or one whose programs call the model."""

    name: str
    spec: ToolSpec

    def of(self, task: str, trajectory: str, model: ModelCalls | None = None) -> Tool | StatefulTool:
        """The tool for a rollout that begins now; task, trajectory: ids of its task and its own. Nothing is left of
        another one that had the same. model: None outside of Retcon's own loop. Raises RecipeError without one where it
        needs it."""
        ...


AnyTool = Tool | StatefulTool | TaskTool
