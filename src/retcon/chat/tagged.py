"""Calls as tags, one for the function and one for each argument, as Qwen3-Coder and its successors write them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from retcon.chat import hermes
from retcon.chat.jsons import read_all
from retcon.chat.thoughts import THOUGHTS, spoken
from retcon.chat.types import FoundCall
from retcon.core.types import ToolSpec

FUNCTION = "<function="
_OPENED = re.compile(rf"(?:{hermes.OPEN}\s*+)?{FUNCTION}(?P<name>[^<>\s]+)>")
_ARGUMENT = re.compile(r"\s*+<parameter=(?P<name>[^<>\s]+)>")
_END = re.compile(r"</parameter>(?=\s*+(?:<parameter=|</function>))")
_CLOSED = re.compile(rf"\s*+</function>\s*+{hermes.CLOSE}")
_TAG, _CLOSING, _NAME = re.compile(hermes.OPEN), re.compile(hermes.CLOSE), re.compile(rf"{FUNCTION}([^<>\s]+)")


def find_calls(text: str) -> Iterator[FoundCall]:
    """Calls as `<tool_call><function=NAME><parameter=NAME>…</parameter></function></tool_call>`, arguments all text.

    An argument goes up to the closing tag that another argument, or the function's end, follows: tags inside a
    program are part of it. `<tool_call>` may lack where all other tags are there, as these models forget it.
    Malformed, with the text between them: `<tool_call>` tags around anything else. An opening tag that is followed
    by another one before it is closed is prose.
    """
    return iter(spoken(text, _Reader(text).calls(), THOUGHTS, opened=False))


def typed_arguments(call: FoundCall, tools: Sequence[ToolSpec]) -> FoundCall:
    """The call with arguments of the types in its tool's schema: what is no string there is read as JSON, or as Python
    writes it; what cannot be read so stays text."""
    spec = next((tool for tool in tools if tool.name == call.name), None)
    known = spec.parameters.get("properties") if spec is not None else None
    if isinstance(call.arguments, str) or not isinstance(known, Mapping):
        return call
    return replace(call, arguments={name: _valued(v, known.get(name)) for name, v in call.arguments.items()})


class Places:
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
        self._tags, self._closings = Places(_TAG, text), Places(_CLOSING, text)
        self._functions, self._ends = Places(_OPENED, text), Places(_END, text)
        self._dead: set[int] = set()

    def calls(self) -> Iterator[tuple[FoundCall, int]]:
        """The calls, with where each ends."""
        at = 0
        while (start := self.opening(at)) is not None:
            call, at = self.call(start)
            if call is not None:
                yield call, at

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


def _valued(text: object, schema: object) -> object:
    if not isinstance(text, str):
        return text
    kinds, word = _kinds(schema), text.strip().lower()
    if "null" in kinds and word in ("none", "null"):
        return None
    if "boolean" in kinds and word in ("true", "false"):
        return word == "true"
    if not kinds:
        return text
    value = read_all(text)
    return text if value is None or ("string" in kinds and not kinds & _JSON_TYPES.get(type(value), set())) else value


_JSON_TYPES = {bool: {"boolean"}, int: {"integer", "number"}, float: {"number"}, list: {"array"}, dict: {"object"}}


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
