"""The Tool protocol: a call in, an observation out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from retcon.core.types import Observation, ToolCall, ToolSpec

CHECKPOINTS = 16
"""Most checkpoints that an open tool keeps at a time; a session of the sandbox keeps as many."""


class Tool(Protocol):
    """A tool under one name. It reports its own faults as observations of status `infrastructure`; errors that it
    raises, and other return values, become such.

    spec: shown to the model; the arguments of its calls are checked against its schema first.
    """

    name: str
    spec: ToolSpec

    async def __call__(self, call: ToolCall) -> Observation: ...


class OpenTool(Tool, Protocol):
    """A stateful tool of one trajectory, with checkpoints and rollback."""

    async def checkpoint(self) -> str:
        """Freeze the current state; return its name. `CHECKPOINTS` can be kept at a time.

        It must not change the calls after it. Raises CheckpointRefused if this state cannot be kept, and leaves the
        tool as it was: a failure in it is then not repaired. Raises InfrastructureFault.
        """
        ...

    async def rollback(self, checkpoint: str) -> None:
        """Go to the state of any checkpoint, earlier or later; keep all.

        Raises InfrastructureFault if the state is unavailable.
        """
        ...

    async def discard(self, checkpoint: str) -> None:
        """Free a checkpoint."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class StatefulTool(Protocol):
    """A tool with state between calls: each trajectory opens its own."""

    name: str
    spec: ToolSpec

    async def open(self, trajectory: str) -> OpenTool:
        """Open the tool for a trajectory, by id, in its first state. Raises InfrastructureFault."""
        ...


class ModelCalls(Protocol):
    """The model of a rollout, for tools whose programs call it.

    context: the long input of the rollout's task.
    """

    @property
    def context(self) -> object: ...

    async def complete(self, call: str, prompts: Sequence[str]) -> list[str]:
        """Answer prompts concurrently by the model alone, in order.

        A failure is a text that begins `Error: `.
        Args:
            call: id of the tool call whose program asks.
        """
        ...

    async def recurse(self, call: str, prompts: Sequence[str]) -> list[str]:
        """Answer prompts, each by a rollout whose context it is; see `complete`."""
        ...


@runtime_checkable
class TaskTool(Protocol):
    """A tool made for each rollout: part of an environment, or with programs that call the model."""

    name: str
    spec: ToolSpec

    def of(self, task: str, trajectory: str, model: ModelCalls | None = None) -> Tool | StatefulTool:
        """Return the tool for a new rollout. task, trajectory: ids; state of an earlier rollout with the same ids is
        gone. model: None outside of Retcon's own loop. Raises RecipeError if the tool needs one."""
        ...


AnyTool = Tool | StatefulTool | TaskTool
