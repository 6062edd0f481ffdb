"""From the calls that the model wrote to their observations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from retcon.core.errors import nearest
from retcon.core.schema import ToolSpec
from retcon.core.types import Observation, ToolCall
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
    return await tools[call.name](call)
