"""Gemma 3: calls are `tool_code` blocks, observations `tool_output` blocks in a user turn; no system turn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from retcon.chat import markdown
from retcon.chat.family import Family, Written, joined
from retcon.chat.hermes import to_call
from retcon.chat.jsons import as_json, read_all
from retcon.chat.types import Answer, FoundCall, Piece, Told, glue, words
from retcon.core.types import ToolSpec

BEGIN, START, END = "<bos>", "<start_of_turn>", "<end_of_turn>"
_OBSERVED = re.compile(r"```tool_output\n(.*?)\n```(?=<end_of_turn>|\n```tool_output\n)", re.DOTALL)
_OPENING = f"{START}model\n"
_ROLES = {"assistant": "model"}


class Gemma(Family):
    """Gemma 3 was trained with no tokens for tools: what its makers recommend is shown in the first question."""

    name = "gemma"
    marks = (START, END)
    controls = (BEGIN, START)
    ends = (END,)
    stops = ("<eos>",)

    def opened(self, messages: Sequence[Told], tools: Sequence[ToolSpec]) -> list[Piece]:
        before = [text for role, text in messages if role == "system"] + ([_shown(tools)] if tools else [])
        (role, text), *others = [told for told in messages if told[0] != "system"] or [("user", "")]
        told = [(role, "\n\n".join([*before, text.strip()])), *((role, text.strip()) for role, text in others)]
        return [glue(BEGIN), *(piece for one in told for piece in _told(*one)), glue(_OPENING)]

    def observed(self, answers: Sequence[Answer], told: Sequence[Told]) -> list[Piece]:
        pieces = [glue(f"\n{START}user\n")]
        for n, answer in enumerate(answers):
            pieces += [glue(f"{chr(10) * bool(n)}```tool_output\n"), Piece("observation", answer.text), glue("\n```")]
        for _, text in told:
            pieces += [glue("\n\n"), words(text.strip())]
        return [*pieces, glue(f"{END}\n{_OPENING}")]

    def answered(self, told: Sequence[Told]) -> list[Piece]:
        pieces = [glue("\n")]
        before: list[str] = []
        for n, (role, text) in enumerate(told):
            before.append(text.strip())
            if role == "system" and told[n + 1 : n + 2] and told[n + 1][0] != "assistant":
                continue  # a message without a turn of its own goes before what the user says next
            pieces += _told("assistant" if role == "assistant" else "user", "\n\n".join(before))
            before = []
        return [*pieces, glue(_OPENING)]

    def find_calls(self, text: str) -> Iterator[FoundCall]:
        """A block that is an object of `name` and `parameters` calls that tool, any other one is a program."""
        for call in markdown.find_calls(text, "tool_code|python3?|py"):
            code = call.arguments["code"] if isinstance(call.arguments, dict) else call.arguments
            value = read_all(str(code)) if str(code).lstrip().startswith("{") else None
            named = isinstance(value, dict) and "name" in value
            yield to_call(value, str(code), call.char, "parameters") if named else call

    def written(self, text: str, calls: Sequence[Written]) -> list[Piece]:
        return joined(text, (f"```tool_code\n{_block(*call)}\n```" for call in calls))

    def observations_in(self, text: str) -> list[str]:
        return _OBSERVED.findall(text)


def _told(role: str, text: str) -> list[Piece]:
    return [glue(f"{START}{_ROLES.get(role, role)}\n"), words(text), glue(f"{END}\n")]


def _block(name: str, arguments: object) -> str:
    if isinstance(arguments, str):
        return arguments
    assert isinstance(arguments, dict)
    if name == "python" and set(arguments) == {"code"}:
        return str(arguments["code"]).strip("\n")
    return as_json({"name": name, "parameters": arguments})


def _shown(tools: Sequence[ToolSpec]) -> str:
    listed = "\n".join(as_json(tool.as_function()) for tool in tools)
    return (
        "You may call the following tools by a block that begins with ```tool_code and ends with ```: a program calls "
        'python, an object {"name": tool name, "parameters": its arguments} calls the tool that it names. What comes '
        f"out is shown to you as a ```tool_output block.\n{listed}"
    )


FAMILY = Gemma()
