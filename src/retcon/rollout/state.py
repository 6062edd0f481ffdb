"""Tools of one trajectory, and rollback of the stateful ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import get_args

from retcon.core.errors import CheckpointRefused, InfrastructureFault, nearest, reraise_as
from retcon.core.types import Observation, Status, ToolCall, ToolSpec
from retcon.tools.schema import argument_error
from retcon.tools.types import AnyTool, ModelCalls, OpenTool, StatefulTool, TaskTool

Handler = Callable[[ToolCall], Awaitable[Observation]]
"""Answers the calls of one tool, as every `Tool` does."""


async def run_calls(
    calls: Sequence[ToolCall], tools: Mapping[str, Handler], specs: Mapping[str, ToolSpec] | None = None
) -> tuple[Observation, ...]:
    """Run calls in order, each on the state of those before.

    specs: of tools whose arguments are checked first. Returns one observation for each call.
    """
    return tuple([await _run(call, tools, specs or {}) for call in calls])


async def _run(call: ToolCall, tools: Mapping[str, Handler], specs: Mapping[str, ToolSpec]) -> Observation:
    """Run one call. An unknown tool, unreadable call or invalid arguments give a `malformed` observation."""
    if call.name not in tools:
        text = f"no tool named '{call.name}'{nearest(call.name, tools)}"
        return Observation(call.id, text, "malformed", "UnknownTool")
    if call.malformed:
        return Observation(call.id, "malformed call", "malformed", "MalformedCall")
    if call.name in specs and not isinstance(call.arguments, str):
        wrong = argument_error(specs[call.name], call.arguments)
        if wrong is not None:
            return Observation(call.id, f"malformed call: {wrong}", "malformed", "MalformedCall")
    try:
        with faults_of(call.name):
            return _check_observation(call, await tools[call.name](call))
    except ToolRaised as lost:
        return Observation(call.id, str(lost), "infrastructure", type(lost.__cause__ or lost).__name__)


class ToolRaised(InfrastructureFault):
    """A tool raised an error, or returned something other than an observation."""


def faults_of(tool: str) -> AbstractContextManager[None]:
    """Reraise a tool's error, which costs only this rollout, as ToolRaised; Retcon's own errors pass."""
    return reraise_as(ToolRaised, f"the tool '{tool}'")


def _check_observation(call: ToolCall, given: object) -> Observation:
    """Return a call's observation. Raises ToolRaised if it is not one."""
    if not isinstance(given, Observation) or given.call_id != call.id:
        what = f"{given!r:.80}, where an Observation of the call '{call.id}' belongs"
    elif not isinstance(given.text, str):
        what = f"an observation whose text is {given.text!r:.80}, where a str belongs"
    elif given.status not in get_args(Status):
        what = f"an observation of status {given.status!r:.80}; one of {', '.join(get_args(Status))} belongs there"
    else:
        return given
    raise ToolRaised(f"the tool '{call.name}' returned {what}")


Checkpoint = Mapping[str, str]
"""Name of a checkpoint of each stateful tool, by the tool's name."""


class OpenTools:
    """Tools of one trajectory. The stateful ones are opened together when a call first needs one of them.

    Not earlier, as many rollouts never call, and those that start together should reach the engine together.
    """

    def __init__(
        self,
        given: Mapping[str, AnyTool],
        trajectory: str,
        closing: AsyncExitStack,
        *,
        task: str,
        model: ModelCalls | None = None,
    ) -> None:
        self._trajectory = trajectory
        self._closing = closing
        tools = {
            name: tool.of(task, trajectory, model) if isinstance(tool, TaskTool) else tool
            for name, tool in given.items()
        }
        self._stateful = {name: tool for name, tool in tools.items() if isinstance(tool, StatefulTool)}
        self._specs = {name: tool.spec for name, tool in tools.items()}
        self._opened: dict[str, OpenTool] = {}
        self._handlers: dict[str, Handler] = {
            name: partial(self._call, name) if isinstance(tool, StatefulTool) else tool for name, tool in tools.items()
        }

    async def run(self, calls: Sequence[ToolCall]) -> tuple[Observation, ...]:
        """Run calls in order. Raises InfrastructureFault if a tool cannot be opened."""
        await self.open_for(calls)
        return await run_calls(calls, self._handlers, self._specs)

    def needs_state(self, calls: Sequence[ToolCall]) -> bool:
        """Whether one of the calls goes to a stateful tool."""
        return any(call.name in self._stateful and not call.malformed for call in calls)

    async def open_for(self, calls: Sequence[ToolCall]) -> bool:
        """Open the stateful tools if one of the calls needs one; return whether it does."""
        if not self.needs_state(calls):
            return False
        for name, tool in self._stateful.items():
            if name not in self._opened:
                with faults_of(name):
                    self._opened[name] = await tool.open(self._trajectory)
                self._closing.push_async_callback(_close, name, self._opened[name])
        return True

    @property
    def stateful(self) -> bool:
        """Whether a stateful tool is open."""
        return bool(self._opened)

    async def checkpoint(self) -> Checkpoint:
        """Checkpoint all open tools. Raises CheckpointRefused, and keeps no checkpoint, if one refuses."""
        kept: dict[str, str] = {}
        for name, tool in self._opened.items():
            try:
                with faults_of(name):
                    kept[name] = await tool.checkpoint()
            except CheckpointRefused:
                for other, checkpoint in kept.items():
                    with faults_of(other):
                        await self._opened[other].discard(checkpoint)
                raise
        return kept

    async def rollback(self, checkpoint: Checkpoint) -> None:
        for name, tool in self._opened.items():
            with faults_of(name):
                await tool.rollback(checkpoint[name])

    async def discard(self, checkpoint: Checkpoint) -> None:
        for name, tool in self._opened.items():
            with faults_of(name):
                await tool.discard(checkpoint[name])

    async def _call(self, name: str, call: ToolCall) -> Observation:
        return await self._opened[name](call)


@asynccontextmanager
async def open_tools(
    tools: Mapping[str, AnyTool], trajectory: str, *, task: str, model: ModelCalls | None = None
) -> AsyncIterator[OpenTools]:
    """Provide the tools of one trajectory, closed at the end. task: id of its task, which some tools need.

    Errors on closing are ignored: such a tool is gone. model: for tools whose programs call it.
    """
    async with AsyncExitStack() as closing:
        yield OpenTools(tools, trajectory, closing, task=task, model=model)


async def _close(name: str, tool: OpenTool) -> None:
    with suppress(InfrastructureFault), faults_of(name):
        await tool.close()


def _shown(observation: Observation) -> tuple[str, str, str | None]:
    return observation.text, observation.status, observation.error_type


class TurnState:
    """Checkpoints of the tools around a turn's calls, for its repair.

    One is before the calls, one after their failure; neither exists without calls to stateful tools. A turn whose state
    cannot be kept is not repaired. All methods raise InfrastructureFault if a state is unavailable.
    """

    def __init__(self, tools: OpenTools) -> None:
        self._tools = tools
        self._before: Checkpoint | None = None
        self._after: Checkpoint | None = None
        self._refused: CheckpointRefused | None = None
        self._left = False  # whether an attempt has replaced the state after the failure

    async def run(self, calls: Sequence[ToolCall]) -> tuple[Observation, ...]:
        """Run the turn's calls after a checkpoint; if that is refused, the observations carry the reason."""
        if await self._tools.open_for(calls):
            try:
                self._before = await self._tools.checkpoint()
            except CheckpointRefused as refused:
                self._refused = refused
                return tuple(replace(o, no_checkpoint=str(refused)) for o in await self._tools.run(calls))
        return await self._tools.run(calls)

    async def keep_failure(self) -> None:
        """Checkpoint the failure. Raises CheckpointRefused if that, or the one before the calls, is refused."""
        if self._refused is not None:
            raise self._refused
        if self._tools.stateful:
            self._after = await self._tools.checkpoint()
            if self._before is None:  # the failure reached no tool that keeps state
                self._before = self._after

    async def run_again(self, calls: Sequence[ToolCall]) -> tuple[Observation, ...]:
        """Roll back the turn, and run another attempt's calls."""
        if await self._tools.open_for(calls) and self._before is None:  # which opened the tools
            await self.keep_failure()
        if self._before is not None:
            self._left = True
            await self._tools.rollback(self._before)
        return await self._tools.run(calls)

    async def replays_identically(self, seen: Sequence[tuple[Sequence[ToolCall], Sequence[Observation]]]) -> bool:
        """Return whether calls give the same observations after the failure.

        seen: calls of the attempts, with their observations. The tools stay as these calls leave them.
        """
        await self.restore_failure()
        if not any(self._tools.needs_state(calls) for calls, _ in seen):
            return True
        for calls, observations in seen:
            again = await self._tools.run(calls)
            if any(observation.status == "infrastructure" for observation in again):
                raise InfrastructureFault("a tool failed on its own account in a repetition")
            if list(map(_shown, again)) != list(map(_shown, observations)):
                return False
        return True

    async def restore_failure(self) -> None:
        """Roll back to the state after the turn's own calls."""
        if self._left and self._after is not None:
            await self._tools.rollback(self._after)

    async def discard(self) -> None:
        """Drop the checkpoints; the tools keep their state."""
        kept = [self._before] if self._before is self._after else [self._before, self._after]
        self._before = self._after = None
        for checkpoint in kept:
            if checkpoint is not None:
                await self._tools.discard(checkpoint)
