"""From the calls that the model wrote to their observations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from retcon.core.errors import nearest
from retcon.core.types import Observation, ToolCall

Handler = Callable[[ToolCall], Awaitable[Observation]]
"""What answers the calls of one tool; every `Tool` is one."""


async def run_calls(calls: Sequence[ToolCall], tools: Mapping[str, Handler]) -> tuple[Observation, ...]:
    """One observation per call, in order; one after the other, as a later call may build on an earlier one's state."""
    return tuple([await _run(call, tools) for call in calls])


async def _run(call: ToolCall, tools: Mapping[str, Handler]) -> Observation:
    """What the call's tool says; a call that names none, or cannot be read, is `malformed` and reaches no tool."""
    if call.name not in tools:
        text = f"no tool named '{call.name}'{nearest(call.name, tools)}"
        return Observation(call.id, text, "malformed", "UnknownTool")
    if call.malformed:
        return Observation(call.id, "malformed call", "malformed", "MalformedCall")
    return await tools[call.name](call)
