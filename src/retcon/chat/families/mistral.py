"""Mistral (v3 and later): `[TOOL_CALLS]` with JSON, or with names and `[ARGS]`; no opening of the model's turn."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from retcon.chat.family import Family, Written
from retcon.chat.hermes import to_call
from retcon.chat.jsons import as_json, read_value, space_end
from retcon.chat.types import Answer, FoundCall, Piece, Told, glue, words
from retcon.core.types import ToolSpec

BEGIN, END, ASK, ASKED, CALLS = "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"
_NAMED = re.compile(r"[ \t]*([\w.-]+)(?:\[CALL_ID\](\w+))?(?:\[ARGS\])?[ \t]*(?=\{)")
_OBSERVED = re.compile(r'\[TOOL_RESULTS\] ?\{"content": "((?:[^"\\]|\\.)*)"', re.DOTALL)


class Mistral(Family):
    """The shipped framing is that of v3 over Tekken, which has no spaces around its tokens. It puts the tools and the
    system's words before the first question, where Mistral's own code moves them to the last: what was sampled stays.
    """

    name = "mistral"
    marks = (ASK, ASKED)
    controls = (BEGIN, ASK, ASKED, CALLS, "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[AVAILABLE_TOOLS]")
    ends = (END,)
    labels_calls = True
    calls_are_text = False

    def opened(self, messages: Sequence[Told], tools: Sequence[ToolSpec]) -> list[Piece]:
        shown = json.dumps([tool.as_function() for tool in tools], ensure_ascii=False)
        pieces = [glue(BEGIN)]
        if tools:
            pieces += [glue("[AVAILABLE_TOOLS]"), words(shown), glue("[/AVAILABLE_TOOLS]")]
        return [*pieces, *self.answered(messages)]

    def observed(self, answers: Sequence[Answer], told: Sequence[Told]) -> list[Piece]:
        pieces: list[Piece] = []
        for n, answer in enumerate(answers):
            label = json.dumps(answer.label or f"retcon{n:03d}")
            pieces += [
                glue('[TOOL_RESULTS]{"content": "'),
                Piece("observation", json.dumps(answer.text, ensure_ascii=False)[1:-1]),
                glue(f'", "call_id": {label}}}[/TOOL_RESULTS]'),
            ]
        return [*pieces, *self.answered(told)]

    def answered(self, told: Sequence[Told]) -> list[Piece]:
        pieces: list[Piece] = []
        before: list[str] = []
        for role, text in told:
            if role == "assistant":
                pieces += [words(text), glue(END)]
            elif role == "system":
                before.append(text)
            else:
                pieces += [glue(ASK), words("\n\n".join([*before, text])), glue(ASKED)]
                before = []
        if before:  # a system prompt that no question follows
            pieces += [glue(ASK), words("\n\n".join(before)), glue(ASKED)]
        return pieces

    def find_calls(self, text: str) -> Iterator[FoundCall]:
        at = text.find(CALLS)
        while at >= 0:
            begin = space_end(text, at + len(CALLS))
            if text.startswith("[", begin):
                found, end = _listed(text, begin, at)
                yield from found
            else:
                call, end = _named(text, begin, at)
                yield call
            at = text.find(CALLS, end)

    def written(self, text: str, calls: Sequence[Written]) -> list[Piece]:
        said = [words(text)] if text else []
        if not calls:
            return said or [words("")]
        listed = ", ".join(_object(n, *call) for n, call in enumerate(calls))
        return [*said, glue(CALLS), words(f"[{listed}]")]

    def observations_in(self, text: str) -> list[str]:
        return [json.loads(f'"{found}"') for found in _OBSERVED.findall(text)]


def _object(n: int, name: str, arguments: object) -> str:
    if isinstance(arguments, str):
        return arguments
    return as_json({"name": name, "arguments": arguments, "id": f"retcon{n:03d}"})


def _listed(text: str, begin: int, char: int) -> tuple[list[FoundCall], int]:
    """`[{"name": …, "arguments": …, "id": …}, …]`, and where it ends; the first call's place is that of the marker."""
    try:
        listed, end = read_value(text, begin, CALLS)
    except (ValueError, RecursionError):
        listed, end = None, _next(text, begin)
    if not listed:
        return [to_call(None, text[begin:end].strip(), char)], end
    calls: list[FoundCall] = []
    at = begin
    for _ in listed:
        at = space_end(text, at + 1)  # after a bracket or a comma
        value, ended = read_value(text, at, None)
        call = to_call(value, text[at:ended], at if calls else char)
        calls.append(replace(call, inside=bool(calls)))
        at = space_end(text, ended)
    return calls, end


def _next(text: str, begin: int) -> int:
    following = text.find(CALLS, begin)
    return following if following >= 0 else len(text)


def _named(text: str, begin: int, char: int) -> tuple[FoundCall, int]:
    """`name[ARGS]{…}`, `name[CALL_ID]id[ARGS]{…}`, `name{…}`, and where it ends."""
    found = _NAMED.match(text, begin)
    try:
        if found is None:
            raise ValueError("no name")
        value, end = read_value(text, found.end(), CALLS)
        if isinstance(value, dict):
            return FoundCall(found[1], value, char, found[2] or ""), end
    except (ValueError, RecursionError):
        pass
    end = _next(text, begin)
    raw = text[found.end() if found else begin : end].strip()
    return FoundCall(found[1] if found else "python", raw, char, (found[2] or "") if found else ""), end


FAMILY = Mistral()
