"""What unknown records look like: whether tools were called in them, and which format comes nearest."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from itertools import chain

from retcon.transcripts.reading.items import SYSTEMS, find_items
from retcon.transcripts.reading.roles import SYSTEM
from retcon.transcripts.types import Format, Json

_DEPTH = 8
_ITEMS = 200
_TEXT = 20_000
_KEYS = frozenset(
    {"tool_calls", "tool_call", "tool_use", "function_call", "tool_call_id", "code_action", "executable_code"}
    | {"toolCalls", "toolCall", "toolUse", "toolResult", "functionCall", "functionResponse", "executableCode"}
)
_ROLES = frozenset({"tool", "function", "observation", "ipython", "execution", "tool_result", "tool_response"})
_KINDS = re.compile(
    r"(?:.*_)?(?:tool_use|tool_result|(?:tool|function|mcp|shell|search|interpreter|patch)_call(?:_output)?)"
)
"""Types of items or blocks, in a list, that are a call or what it gave, whoever's tool it is. A record's own type may
be any label."""
_NAMING = ("role", "from", "type", "kind", "source")
_TAG = re.compile(r"</([A-Za-z][\w:.-]{1,30})>")
_RESULT = re.compile(
    r"<(result|output|observation|interpreter|information|execution_results?|tool_output|tool_response|tool_result"
    r"|function_results?|stdout|exec_result)\b[^<>]*>",
    re.IGNORECASE,
)
_SPECIAL = re.compile(
    r"<\|(?:python_tag|tool_calls?_begin|tool_call|tool_outputs?_begin|tool_calls_section_begin|code_interpreter)\|>"
    r"|<function=(?!finish>|submit>)(?=[\w.-]+>)|<\|channel\|>commentary to="
    r"|<｜tool▁(?:calls?|outputs?)▁begin｜>|\[TOOL_CALLS\]"
)
_WRITTEN = re.compile(r"""\s*\[\s*\{\s*["'](?:role|from)["']\s*:""")
_REACT = re.compile(r"^Action(?: Input)?(?: \d+)?:.*?^Observation(?: \d+)?:", re.MULTILINE | re.DOTALL)
_THOUGHT = re.compile(
    r"\s*(?:Thought|Think):.*?^(?:Action|Act):|\s*Action:|.*?^Action: \w+\n+```",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
_USERS = ("user", "human")
_LABEL = re.compile(r"\s*(Observation(?: \d+)?:|OBSERVATION:|EXECUTION RESULT of|<returncode>|API output:)")


def tool_use(record: Json) -> str | None:
    """What in a record says that a tool was called in it: a key, a role, a type, a wording; None where nothing does.

    What the system or a user says may explain how calls are written, or show some.
    """
    for key, value, role in chain([("", record, "")], _walk(record)):
        if role in SYSTEM or key in SYSTEMS:
            continue
        if key in _KEYS and value:
            return f"the key '{key}'"
        if isinstance(value, list) and (kind := _kind_in(value)):
            return f"the type '{kind}'"
        if not isinstance(value, str):
            continue
        if key in ("role", "from") and value.lower() in _ROLES:
            return f"the role '{value}'"
        text = value[:_TEXT]
        if "<" in text and (result := _RESULT.search(text)):
            return f"the tag <{result[1]}>"
        if label := _LABEL.match(text):
            return f"the label {label[1]}"
        if role in _USERS:
            continue
        if ("<" in text or "[" in text) and (special := _SPECIAL.search(text)):
            return f"the marker {special[0]}"
        if ("ction:" in text or "ACTION:" in text) and (react := _REACT.search(text) or _THOUGHT.match(text)):
            return "the words 'Action:' and 'Observation:'" if react.re is _REACT else "the word 'Action:'"
    return None


def _kind_in(items: Sequence[Json]) -> str | None:
    """The type of the first item that is a call or what it gave."""
    kinds = (item.get("type") for item in items[:_ITEMS] if isinstance(item, dict))
    return next((kind for kind in kinds if isinstance(kind, str) and _KINDS.fullmatch(kind[:60])), None)


def nearest_format(record: Json, formats: Sequence[Format]) -> str:
    """` (nearest format: 'x')` for the format whose words the record has most of, and where else its messages stand;
    else an empty string."""
    words: set[str] = set()
    for key, value, _ in _walk(record):
        words.add(key.lower())
        if isinstance(value, str):
            if key in _NAMING:
                words.add(value[:40].lower())
            words |= {tag.lower() for tag in _TAG.findall(value[:_TEXT])}
    best, name = (0.0, 0.0), ""
    for one in formats:
        near = [max(map(_alike, [mark.lower()] * len(words), words), default=0.0) for mark in one.marks]
        found = sum(n for n in near if n >= 0.75)
        score = found, found / max(1, len(near))  # of as many, those of a format that has hardly any other words
        if found and score > best:
            best, name = score, one.name
    told = f" (nearest format: '{name}')" if name else ""
    return told if find_items(record) is not None else told + _misplaced(record, "")


def _misplaced(record: Json, where: str) -> str:
    """Where messages stand that are not looked for there, or are no list but its text; "" where there are none."""
    for name, value in record.items() if isinstance(record, dict) else ():
        place = f"{where}{name}"
        if isinstance(value, dict) and where.count(".") < 2 and (found := _misplaced(value, f"{place}.")):
            return found
        if isinstance(value, str) and _WRITTEN.match(value):
            return f"; '{place}' is the text of a list of messages: write the list itself, under 'messages'"
        if isinstance(value, list) and find_items(value) is not None:
            return f"; messages under '{place}' are not looked for: put them under 'messages'"
    return ""


def _alike(mark: str, word: str) -> float:
    if mark == word:
        return 1.0
    return difflib.SequenceMatcher(None, mark, word).ratio() if abs(len(mark) - len(word)) < 4 else 0.0


def _walk(value: Json, depth: int = 0, key: str = "", role: str = "") -> Iterator[tuple[str, Json, str]]:
    """The values in a value, each with the key that it is under and the role of the message that it is in."""
    if key:
        yield key, value, role
    if depth == _DEPTH:
        return
    if isinstance(value, dict):
        named = value.get("role", value.get("from"))
        role = named.lower() if isinstance(named, str) else role
        for name, inner in value.items():
            yield from _walk(inner, depth + 1, str(name), role)
    elif isinstance(value, list):
        for inner in value[:_ITEMS]:
            yield from _walk(inner, depth + 1, key, role)
