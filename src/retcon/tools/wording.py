"""How the Python tools word their observations."""

from __future__ import annotations

import re

from retcon.core.errors import RetconError
from retcon.core.programs import error_line
from retcon.core.types import Observation, ToolCall
from retcon.sandbox.jail.capture import cut_middle
from retcon.sandbox.types import Result

SMALL_BUDGET = 200
FAULTS = (RetconError, OSError, ValueError)
"""What a sandbox raises through no fault of the program; ValueError: its server refuses a request, such as one for more
seconds than it allows."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]{6,16}>")
"""As a repr has it, `<function f at 0x7f51411e20c0>`: another one in every process."""


class Wording:
    """The observations of a tool called `name`, of `output_chars` characters at most.

    From 200 on they show stdout, the value of the last expression and, after a failure, the traceback, the middle cut
    where it is too long. Below, where there is no room for both ends: the head of the output, or Python's own last line
    (`NameError: name 'x' is not defined`). Addresses in the reprs of objects, which are others in every process, are
    shown as `0x...`, so that the same rollout reads the same again. Raises ValueError where `output_chars` is below 1.
    """

    def __init__(self, name: str, output_chars: int) -> None:
        if output_chars < 1:
            raise ValueError(f"output_chars is {output_chars}: it must be 1 or more")
        self.name = name
        self._output_chars = output_chars

    def malformed(self, call: ToolCall) -> Observation | None:
        """What to say to a call that cannot be run, None where it can."""
        problem = self._problem(call)
        if problem is None:
            return None
        return Observation(call.id, self._cut(f"malformed call: {problem}"), "malformed")

    def fault(self, call: ToolCall, error: Exception) -> Observation:
        """A fault of ours is nobody's failure: it is told, not raised."""
        return Observation(call.id, self._cut(f"sandbox fault: {error}"), "infrastructure", type(error).__name__)

    def observation(self, call: ToolCall, result: Result, notice: str = "") -> Observation:
        """notice: a line to stand above what came out."""
        return Observation(call.id, self._text(result, notice), result.status, result.error_type, result.seconds)

    def _problem(self, call: ToolCall) -> str | None:
        if call.name != self.name:
            return f"no tool {call.name!r}, only {self.name!r}"
        if isinstance(call.arguments, str):
            return "arguments cannot be parsed"
        if "code" not in call.arguments:
            return "no 'code' argument"
        if not isinstance(call.arguments["code"], str):
            return "'code' is not a string"
        return None

    def _text(self, result: Result, notice: str) -> str:
        if result.status == "ok":
            shown = _joined(notice, _joined(result.stdout, result.value or ""))
        elif self._output_chars < SMALL_BUDGET:
            shown = _last_line(result)
        else:
            shown = _joined(notice, _joined(result.stdout, result.stderr))
        return self._cut(_ADDRESS.sub(" at 0x...>", shown))

    def _cut(self, text: str) -> str:
        if self._output_chars < SMALL_BUDGET:
            return text[: self._output_chars]
        return cut_middle(text, self._output_chars)


def _joined(first: str, second: str) -> str:
    if first and second and not first.endswith("\n"):
        first += "\n"
    return (first + second).rstrip("\n")


def _last_line(result: Result) -> str:
    """The line of stderr that names what ended the call; a message may go on for further lines after it."""
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    return error_line(lines, result.error_type) or (lines[-1] if lines else (result.error_type or ""))
