"""Qwen3-Coder, and the models that took its calls over: one tag for the function, one for each of its arguments."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from retcon.chat import hermes
from retcon.chat.families.qwen import Qwen, thought_end
from retcon.chat.family import Written, with_system
from retcon.chat.jsons import as_json, read_all
from retcon.chat.types import TURN_END, TURN_START, FoundCall, Piece, Told, words
from retcon.core.types import ToolSpec

FUNCTION = "<function="
_OPENED = re.compile(rf"(?:{hermes.OPEN}\s*+)?{FUNCTION}(?P<name>[^<>\s]+)>")
_ARGUMENT = re.compile(r"\s*+<parameter=(?P<name>[^<>\s]+)>")
_END = re.compile(r"</parameter>(?=\s*+(?:<parameter=|</function>))")
_CLOSED = re.compile(rf"\s*+</function>\s*+{hermes.CLOSE}")
_TAG, _CLOSING, _NAME = re.compile(hermes.OPEN), re.compile(hermes.CLOSE), re.compile(rf"{FUNCTION}([^<>\s]+)")


class Qwen3Coder(Qwen):
    """Arguments are text without quotes or escapes: what type they are of, the tool's schema says."""

    name = "qwen3_coder"
    template = ""
    marks = (TURN_START, hermes.OPEN, FUNCTION)
    between = "\n</tool_response>\n<tool_response>\n"
    after = f"\n</tool_response>\n{TURN_END}"

    def with_tools(self, messages: Sequence[Told], tools: Sequence[ToolSpec]) -> Sequence[Told]:
        return with_system(messages, _shown(tools)) if tools else messages

    def find_calls(self, text: str) -> Iterator[FoundCall]:
        """Calls as `<tool_call><function=NAME><parameter=NAME>…</parameter></function></tool_call>`; their arguments
        are all text (see `typed`).

        An argument goes up to the closing tag that another argument, or the function's end, follows: tags inside a
        program are part of it. `<tool_call>` may lack where all other tags are there, as these models forget it.
        Malformed, with the text between them: `<tool_call>` tags around anything else. An opening tag that is followed
        by another one before it is closed is prose.
        """
        reader = _Reader(text)
        at = thought_end(text, reader.closed_calls())
        while (start := reader.opening(at)) is not None:
            call, at = reader.call(start)
            if call is not None:
                yield call

    def typed(self, call: FoundCall, tools: Sequence[ToolSpec]) -> FoundCall:
        """What the tool's schema says is no string is read as JSON, or as Python writes it; what cannot be read so, and
        arguments that the schema does not know, stay text."""
        spec = next((tool for tool in tools if tool.name == call.name), None)
        known = spec.parameters.get("properties") if spec is not None else None
        if isinstance(call.arguments, str) or not isinstance(known, Mapping):
            return call
        return replace(call, arguments={name: _valued(str(v), known.get(name)) for name, v in call.arguments.items()})

    def written(self, text: str, calls: Sequence[Written]) -> list[Piece]:
        blocks = "\n".join(_tagged(*call) for call in calls)
        return [words(f"{text}\n\n{blocks}" if text and blocks else text or blocks)]


class _Places:
    """Where a pattern matches, found once however often it is asked."""

    def __init__(self, pattern: re.Pattern[str], text: str) -> None:
        self._all = list(pattern.finditer(text))
        self._starts = [found.start() for found in self._all]

    def first(self, start: int) -> re.Match[str] | None:
        n = bisect_left(self._starts, start)
        return self._all[n] if n < len(self._all) else None


class _Reader:
    """Reads the calls of one text, in time in proportion to its length: no place is read on from twice."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tags, self._closings = _Places(_TAG, text), _Places(_CLOSING, text)
        self._functions, self._ends = _Places(_OPENED, text), _Places(_END, text)
        self._dead: set[int] = set()

    def opening(self, at: int) -> re.Match[str] | None:
        """The next tag, with the function that follows it, or function without a tag."""
        found = [m for m in (self._functions.first(at), self._tags.first(at)) if m is not None]
        return min(found, key=lambda match: match.start(), default=None)

    def call(self, start: re.Match[str]) -> tuple[FoundCall | None, int]:
        """The call that begins there, None for prose, and from where to look for the next."""
        if start.re is _OPENED and (whole := self._whole(start.end())) is not None:
            arguments, end = whole
            return FoundCall(start["name"], arguments, start.start()), end
        tag = self._tags.first(start.start())
        if tag is None or tag.start() != start.start():
            return None, start.end()
        closing, reopened = self._closings.first(tag.end()), self._tags.first(tag.end())
        if reopened is not None and (closing is None or reopened.start() < closing.start()):
            return None, reopened.start()
        inner, end = (len(self._text), len(self._text)) if closing is None else closing.span()
        raw = self._text[tag.end() : inner].strip()
        named = _NAME.search(raw)
        return FoundCall(named[1] if named else "python", raw, tag.start()), end

    def closed_calls(self) -> Iterator[tuple[int, int]]:
        """Start and end of the calls that are whole, in order."""
        at = 0
        while (start := self.opening(at)) is not None:
            call, at = self.call(start)
            if call is not None and not isinstance(call.arguments, str):
                yield call.char, at

    def _whole(self, at: int) -> tuple[dict[str, object], int] | None:
        """The arguments after a function's opening, and where its call ends; None where it is not whole."""
        found: list[tuple[str, int, int]] = []
        passed = [at]
        while at not in self._dead and (argument := _ARGUMENT.match(self._text, at)) is not None:
            if (end := self._ends.first(argument.end())) is None:
                break
            found.append((argument["name"], argument.end(), end.start()))
            at = end.end()
            passed.append(at)
        else:
            if at not in self._dead and (closed := _CLOSED.match(self._text, at)) is not None:
                said = {name: self._text[start:end] for name, start, end in found}
                return {name: text.removeprefix("\n").removesuffix("\n") for name, text in said.items()}, closed.end()
        self._dead.update(passed)
        return None


def _valued(text: str, schema: object) -> object:
    kinds, word = _kinds(schema), text.strip().lower()
    if "null" in kinds and word in ("none", "null"):
        return None
    if "boolean" in kinds and word in ("true", "false"):
        return word == "true"
    if "string" in kinds or not kinds:
        return text
    value = read_all(text)
    return text if value is None else value


def _kinds(schema: object) -> set[str]:
    """The JSON types that a schema takes, as far as it says so."""
    if not isinstance(schema, Mapping):
        return set()
    kinds = schema.get("type", ())
    found = {kinds} if isinstance(kinds, str) else set(kinds)
    found |= {"null"} if schema.get("nullable") is True else set()  # as OpenAPI has it, and transformers
    for word in ("anyOf", "oneOf", "allOf"):
        for one in schema.get(word, ()):
            found |= _kinds(one)
    values = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())]
    found |= {"string" if isinstance(value, str) else "other" for value in values}
    return found | ({"object"} if "$ref" in schema else set())


def _tagged(name: str, arguments: Mapping[str, object] | str) -> str:
    if isinstance(arguments, str):
        return f"{hermes.OPEN}\n{arguments}\n{hermes.CLOSE}"
    given = "".join(f"<parameter={key}>\n{_text(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"{hermes.OPEN}\n{FUNCTION}{name}>\n{given}</function>\n{hermes.CLOSE}"


def _text(value: object) -> str:
    """As the models' own template writes it."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping | list | tuple) else str(value)


def _shown(tools: Sequence[ToolSpec]) -> str:
    listed = "".join(f"\n{as_json(tool.as_function())}" for tool in tools)
    return (
        f"# Tools\n\nThese functions can be called:\n<tools>{listed}\n</tools>\n\nA call ends the reply, and has this "
        f"form, each argument as plain text between tags of its own:\n{hermes.OPEN}\n{FUNCTION}the function's name>\n"
        "<parameter=an argument's name>\nits value,\non as many lines as it has\n</parameter>\n</function>\n"
        f"{hermes.CLOSE}"
    )


FAMILY = Qwen3Coder()
