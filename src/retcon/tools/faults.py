"""A tool that fails now and then, as one behind a service does that has a hiccup: to measure what a model makes of it.

Unlike an `infrastructure` observation, for which a rollout is dropped, this is a failure that the model sees.
"""

from __future__ import annotations

from dataclasses import dataclass

from retcon.core.errors import InfrastructureFault
from retcon.core.seeds import derive
from retcon.core.types import Observation, ToolCall
from retcon.sandbox.types import Result
from retcon.tools.kinds.python import ObservationFormatter
from retcon.tools.types import AnyTool, ModelCalls, OpenTool, StatefulTool, TaskTool, Tool

HICCUPS = (
    ("TimeoutError", "the tool did not answer in time"),
    ("ConnectionError", "the connection to the tool was reset"),
)
_RANGE = 2**63  # of `derive`


@dataclass(frozen=True, slots=True)
class FaultSetup:
    """rate: share of calls that fail. seed: of the draws. output_chars: characters of an observation at most."""

    rate: float
    seed: int
    output_chars: int


class FaultyTool:
    """Another tool with faults; implements `retcon.tools.types.TaskTool` and `StatefulTool`, whether that one does or
    not, as which calls fail is drawn for each trajectory.

    Whether a call fails depends on (seed, trajectory, the call's id) alone: on no order, and not on what it says, so
    that the same call in a later turn is a draw of its own, and one that is run once more meets the same fate. A call
    that fails does not reach the tool.
    """

    def __init__(self, tool: AnyTool, setup: FaultSetup) -> None:
        self.name = tool.name
        self.spec = tool.spec
        self._tool = tool
        self._setup = setup

    def of(self, task: str, trajectory: str, model: ModelCalls | None = None) -> FaultyTool:
        tool = self._tool
        return FaultyTool(tool.of(task, trajectory, model), self._setup) if isinstance(tool, TaskTool) else self

    async def open(self, trajectory: str) -> OpenTool:
        tool = self._tool
        if isinstance(tool, TaskTool):
            raise InfrastructureFault(f"{self.name} begins with a task, and was given none")
        inner = await tool.open(trajectory) if isinstance(tool, StatefulTool) else _Stateless(tool)
        return _OpenFaultyTool(inner, self._setup, trajectory)


class _OpenFaultyTool:
    """Implements `OpenTool`."""

    def __init__(self, tool: OpenTool, setup: FaultSetup, trajectory: str) -> None:
        self.name = tool.name
        self.spec = tool.spec
        self.checkpoint, self.rollback, self.discard, self.close = (
            tool.checkpoint, tool.rollback, tool.discard, tool.close
        )  # fmt: skip
        self._tool = tool
        self._setup = setup
        self._trajectory = trajectory

    async def __call__(self, call: ToolCall) -> Observation:
        drawn = derive("fault", self._setup.seed, self._trajectory, call.id)
        if drawn >= self._setup.rate * _RANGE:
            return await self._tool(call)
        kind, said = HICCUPS[derive("hiccup", drawn) % len(HICCUPS)]
        result = Result("error", kind, stderr=f"{kind}: {said}\n")
        return ObservationFormatter(self.name, self._setup.output_chars).observation(call, result)


class _Stateless:
    """A tool without state as one with: there is nothing to freeze."""

    def __init__(self, tool: Tool) -> None:
        self.name = tool.name
        self.spec = tool.spec
        self._tool = tool

    async def __call__(self, call: ToolCall) -> Observation:
        return await self._tool(call)

    async def checkpoint(self) -> str:
        return ""

    async def rollback(self, checkpoint: str) -> None:
        pass

    async def discard(self, checkpoint: str) -> None:
        pass

    async def close(self) -> None:
        pass
