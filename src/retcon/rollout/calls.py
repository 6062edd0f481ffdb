"""From the calls that the model wrote to their observations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import get_args

from retcon.core.errors import InfrastructureFault, nearest, told_as
from retcon.core.schema import ToolSpec
from retcon.core.types import Observation, Status, ToolCall
from retcon.tools.schema import fault

Handler = Callable[[ToolCall], Awaitable[Observation]]
"""What answers the calls of one tool; every `Tool` is one."""


async def run_calls(
    calls: Sequence[ToolCall], tools: Mapping[str, Handler], specs: Mapping[str, ToolSpec] | None = None
) -> tuple[Observation, ...]:
    """One observation per call, in order; one after the other, as a later call may build on an earlier one's state.

    specs: of the tools whose arguments are checked before they are called.
    """
    return tuple([await _run(call, tools, specs or {}) for call in calls])


async def _run(call: ToolCall, tools: Mapping[str, Handler], specs: Mapping[str, ToolSpec]) -> Observation:
    """What the call's tool says; a call that names none, cannot be read or has other arguments than the tool's schema
    asks for is `malformed` and reaches no tool."""
    if call.name not in tools:
        text = f"no tool named '{call.name}'{nearest(call.name, tools)}"
        return Observation(call.id, text, "malformed", "UnknownTool")
    if call.malformed:
        return Observation(call.id, "malformed call", "malformed", "MalformedCall")
    if call.name in specs and not isinstance(call.arguments, str):
        wrong = fault(specs[call.name], call.arguments)
        if wrong is not None:
            return Observation(call.id, f"malformed call: {wrong}", "malformed", "MalformedCall")
    try:
        with faults_of(call.name):
            return _said(call, await tools[call.name](call))
    except ToolRaised as lost:
        return Observation(call.id, str(lost), "infrastructure", type(lost.__cause__ or lost).__name__)


class ToolRaised(InfrastructureFault):
    """A tool raised what a tool does not, or gave what is no observation."""


def faults_of(tool: str) -> AbstractContextManager[None]:
    """What a tool raises, which may be of one's own making: it costs this rollout alone. Raises ToolRaised, and errors
    of Retcon's as they are."""
    return told_as(ToolRaised, f"the tool '{tool}'")


def _said(call: ToolCall, given: object) -> Observation:
    """What a tool gave. Raises ToolRaised where that is no observation of the call."""
    if not isinstance(given, Observation) or given.call_id != call.id:
        what = f"{given!r:.80}, where an Observation of the call '{call.id}' belongs"
    elif not isinstance(given.text, str):
        what = f"an observation whose text is {given.text!r:.80}, where a str belongs"
    elif given.status not in get_args(Status):
        what = f"an observation of status {given.status!r:.80}; one of {', '.join(get_args(Status))} belongs there"
    else:
        return given
    raise ToolRaised(f"the tool '{call.name}' returned {what}")
