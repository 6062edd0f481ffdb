"""Tools with injected transient failures, to measure how a model reacts.

The model sees them, unlike an `infrastructure` observation, which drops the rollout.
"""

from __future__ import annotations

from dataclasses import dataclass

from retcon.core.errors import InfrastructureFault
from retcon.core.seeds import derive
from retcon.core.types import Observation, ToolCall
from retcon.sandbox.types import Result
from retcon.tools.kinds.python import ObservationFormatter
from retcon.tools.types import AnyTool, ModelCalls, OpenTool, StatefulTool, TaskTool, Tool

TRANSIENT_ERRORS = (
    ("TimeoutError", "the tool did not answer in time"),
    ("ConnectionError", "the connection to the tool was reset"),
)
_RANGE = 2**63  # of `derive`


@dataclass(frozen=True, slots=True)
class FaultSetup:
    """Settings of injected faults. rate: share of calls that fail. output_chars: most characters of an observation."""

    rate: float
    seed: int
    output_chars: int


class FaultyTool:
    """A tool with injected faults; implements `TaskTool` and `StatefulTool`, as faults are drawn per trajectory.

    Whether a call fails depends on (seed, trajectory, call id) alone, not on order or arguments: the same call in a
    later turn is drawn anew, and one that is replayed fails again. A call that fails does not reach the tool.
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
            raise InfrastructureFault(f"{self.name} needs a task: call `of` before `open`")
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
        kind, message = TRANSIENT_ERRORS[derive("hiccup", drawn) % len(TRANSIENT_ERRORS)]
        result = Result("error", kind, stderr=f"{kind}: {message}\n")
        return ObservationFormatter(self.name, self._setup.output_chars).observation(call, result)


class _Stateless:
    """A stateless tool as an `OpenTool`, with empty checkpoints."""

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
