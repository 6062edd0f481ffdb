"""AutoGen: messages and events of its teams, and the chats of version 0.2 (AG2)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from retcon.transcripts.itemwise import (
    Item,
    Itemwise,
    Pieces,
    exit_output,
    flagged_output,
    loose_words,
    objects,
    part_of,
    parts,
    read_call,
    some_id,
    string,
)
from retcon.transcripts.pieces import Call, Piece, ToolOutput, is_shell
from retcon.transcripts.types import Json

_CALLS = ("ToolCallRequestEvent", "CodeGenerationEvent")
_OF_MODEL = (*_CALLS, "ThoughtEvent")
_BLOCK = re.compile(r"```[ \t]*(?P<language>\w*)[ \t]*\r?\n(?P<code>.*?)\r?\n?```", re.DOTALL)
_EXIT = re.compile(r"exitcode: (?P<code>-?\d{1,10}) \((?P<words>[^)]*)\)\s*Code output:[ \t]*\n?", re.IGNORECASE)


class Team(Itemwise):
    """Events of an AutoGen team.

    A `ToolCallRequestEvent` is answered by a `ToolCallExecutionEvent` (`is_error`), a `CodeGenerationEvent` by a
    `CodeExecutionEvent` (`exit_code`); a summary repeats the output before it, and goes with it. A source that
    calls, thinks or has used a model is the model; all others are the user's side, as a `UserProxyAgent` has a name
    too."""

    name = "autogen"
    needs = frozenset({"type"})
    marks = ("source", "models_usage", *_CALLS, "ToolCallExecutionEvent", "CodeExecutionEvent", "TextMessage")

    def has_calls(self, items: Sequence[Item]) -> bool:
        return any(item.get("type") in _CALLS for item in items)

    def is_plain(self, items: Sequence[Item]) -> bool:
        return any("source" in item and string(item.get("type")).endswith("Message") for item in items)

    def group(self, items: Sequence[Item]) -> list[Piece]:
        pieces = Pieces()
        models = (
            _sources(i for i in items if i.get("type") in _OF_MODEL or i.get("models_usage") is not None)
            or _sources(items) - {"user"}
        ) - {""}
        for item in items:
            kind, content = string(item.get("type")), item.get("content")
            if kind == "ToolCallRequestEvent":
                pieces.add_calls(item, [read_call(one, "name", "arguments", "id") for one in objects(content)])
            elif kind == "ToolCallExecutionEvent":
                pieces.add_results(item, [_output(one) for one in objects(content)])
            elif kind == "CodeGenerationEvent":
                _written(pieces, item, string(content), _blocks(item))
            elif kind == "CodeExecutionEvent":
                ran = part_of(item, "result")
                pieces.add_results(item, [exit_output(string(ran.get("output")), None, ran.get("exit_code"))])
            elif kind == "ToolCallSummaryMessage":
                pieces.add_silent(item)
            elif kind == "ThoughtEvent" or (kind.endswith("Message") and string(item.get("source")) in models):
                pieces.add_words(item, string(content))
            elif kind.endswith("Message"):
                pieces.add_context(item, string(content))
            else:
                pieces.add_silent(item)  # memory, streaming, a choice of the next speaker
        return pieces.all

    def rebuild(self, pieces: Sequence[Piece]) -> list[Json]:
        return _with_words(pieces)


class Chat02(Itemwise):
    """Messages whose programs are fenced, answered by `exitcode: 1 (execution failed)`. Roles depend on whose history
    it is, so that who writes programs is the model, whatever its role. The first message is the task."""

    name = "autogen"
    aliases = ("ag2",)
    needs = frozenset({"content"})
    marks = ("chat_history", "name", "exitcode")

    def has_calls(self, items: Sequence[Item]) -> bool:
        return any(_ran_code(item) is not None for item in items)

    def group(self, items: Sequence[Item]) -> list[Piece]:
        answers = [_ran_code(item) is not None for item in items]
        writers = {_speaker(items[n - 1]) for n, answer in enumerate(answers) if answer and n}
        pieces = Pieces()
        for n, item in enumerate(items):
            text = string(item.get("content"))
            found = _ran_code(item)
            if found is not None:
                pieces.add_results(item, [exit_output(text[found.end() :], None, int(found["code"]))])
            elif 0 < n < len(items) - 1 and answers[n + 1] and _BLOCK.search(text):
                _written(pieces, item, text, [(b["language"], b["code"]) for b in _BLOCK.finditer(text)])
            elif _speaker(item) in writers:
                pieces.add_words(item, text, apart=True)
            else:
                pieces.add_context(item, text)
        return pieces.all

    def rebuild(self, pieces: Sequence[Piece]) -> list[Json]:
        return _with_words(pieces)


def _sources(items: Iterable[Item]) -> set[str]:
    return {string(item.get("source")) for item in items}


def _ran_code(item: Item) -> re.Match[str] | None:
    """Whether a message reports that the programs before it ran."""
    text = string(item.get("content"))
    if text[:8].lower() != "exitcode" or item.get("role") in ("tool", "function"):
        return None
    return _EXIT.match(text)


def _written(pieces: Pieces, item: Item, text: str, programs: Sequence[tuple[str, str]]) -> None:
    """Words, then programs, each after its language, all in one message: a shell's where one of them is."""
    name = next((language for language, _ in programs if is_shell(language)), "python")
    words = _words(text)
    pieces.add_words(item, words, moved=[], apart=True)
    pieces.add_calls(item, [Call(name, {"code": "\n".join(code for _, code in programs)})], text[len(words) :])


def _words(text: str) -> str:
    begins = _BLOCK.search(text)
    return text[: begins.start()] if begins else text


def _with_words(pieces: Sequence[Piece]) -> list[Json]:
    """Return the fix's message, with the words that it takes over."""
    words = loose_words(pieces)
    items = [item for piece in pieces for item in parts(piece)]
    first = next((p for p in pieces if p.kind == "call"), None)
    home = parts(first)[0] if first is not None and parts(first) else None
    if words is None or not isinstance(home, dict) or not isinstance(text := home.get("content"), str):
        return items
    new = {**home, "content": words + text[len(_words(text)) :]}
    return [new if item is home else item for item in items]


def _speaker(item: Item) -> str:
    return string(item.get("name")) or string(item.get("role"))


def _blocks(item: Item) -> list[tuple[str, str]]:
    return [(string(b.get("language")), string(b.get("code"))) for b in objects(item.get("code_blocks"))]


def _output(one: Item) -> ToolOutput:
    failed = one.get("is_error") is True or None
    return flagged_output(string(one.get("content")), some_id(one.get("call_id")), failed=failed)


TEAM = Team()
CHAT_02 = Chat02()
