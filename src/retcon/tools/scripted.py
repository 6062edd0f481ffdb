"""A tool that gives scripted answers: for tests of what calls tools, yours too."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from retcon.core.errors import nearest
from retcon.core.types import Observation, Status, ToolCall

Answer = tuple[str, Status, str | None]


class ScriptedTool:
    """Answers a program with (text, status, error type), from a mapping or a function of its code; implements `Tool`.

    executed: the code of every call, in order. Code that a mapping lacks is a KeyError: the script is wrong, not the
    model.
    """

    def __init__(self, answers: Mapping[str, Answer] | Callable[[str], Answer], name: str = "python") -> None:
        self.name = name
        self.answers = answers
        self.executed: list[str] = []

    async def __call__(self, call: ToolCall) -> Observation:
        self.executed.append(call.code)
        text, status, error_type = self.answers(call.code) if callable(self.answers) else self._look_up(call.code)
        return Observation(call.id, text, status, error_type)

    def _look_up(self, code: str) -> Answer:
        assert not callable(self.answers)
        if code not in self.answers:
            raise KeyError(f"the script has no answer to {code!r}{nearest(code, self.answers)}")
        return self.answers[code]
