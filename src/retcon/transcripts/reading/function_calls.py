"""Messages that are calls, as ShareGPT has them (`function_call`), and what answers them.

LLaMA-Factory's may think before, in `<think>`, and may be a list of calls that one message answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import msgspec

from retcon.core.types import ToolCall
from retcon.transcripts.failures.rules import judge
from retcon.transcripts.reading.calls import program_argument
from retcon.transcripts.reading.dialects import Dialect, Fragment
from retcon.transcripts.reading.pieces import Call, ToolOutput
from retcon.transcripts.types import NOT_JSON, Json

_THOUGHT = re.compile(r"\s*<think>.*?</think>\s*", re.DOTALL)


def cut_calls(text: str, dialect: Dialect) -> list[Fragment]:
    """Such a message in pieces, without loss: its words, if it has any, and the calls.

    dialect: how calls are written in it where it is no JSON.
    """
    thought = _THOUGHT.match(text)
    start = thought.end() if thought else 0
    calls = _calls(text[start:])
    if isinstance(calls[0].arguments, str) and dialect.calls_in(text):
        return dialect.cut(text, answered=True)
    return [Fragment("said", text[:start])] * bool(start) + [Fragment("call", text[start:], calls)]


def split_output(output: ToolOutput, calls: Sequence[Call]) -> tuple[ToolOutput, ...]:
    """The output of each of several calls that one message answers: the items of a JSON list of as many; else the first
    has the text, and all have what it says of them."""
    try:
        listed = msgspec.json.decode(output.text)
    except NOT_JSON:
        listed = None
    if isinstance(listed, list) and len(listed) == len(calls):
        texts = [one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in listed]
        return tuple(map(ToolOutput, texts))
    made = [
        ToolCall(str(n), call.name, arguments, 0, language=language)
        for n, call in enumerate(calls)
        for arguments, language in (program_argument(call.name, call.arguments),)
    ]
    verdict = judge(output.text, made)
    return (output._replace(verdict=verdict, typed=True), *[ToolOutput("", None, verdict, True)] * (len(calls) - 1))


def _calls(text: str) -> tuple[Call, ...]:
    """One call, or those of a list; kept as text where it cannot be read."""
    try:
        read = msgspec.json.decode(text)
    except NOT_JSON:
        return (Call("python", text),)
    if isinstance(read, list) and read and all(isinstance(one, dict) and "name" in one for one in read):
        return tuple(_call(one, text) for one in read)
    return (_call(read, text),)


def _call(obj: Json, text: str) -> Call:
    """A JSON object of name and arguments, which may be JSON text themselves; with `text` where they are no object."""
    name = obj.get("name") if isinstance(obj, dict) else None
    arguments = obj.get("arguments", obj.get("parameters")) if isinstance(obj, dict) else None
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except NOT_JSON:
            return Call(str(name or "python"), arguments)
    if isinstance(name, str) and isinstance(arguments, dict):
        return Call(name, arguments)
    return Call(name if isinstance(name, str) else "python", text)
