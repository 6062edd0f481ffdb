"""Formats of messages whose calls are text, in OpenAI's or ShareGPT's shape."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from retcon.core.errors import RecordError
from retcon.core.types import Completion, Message, Pair, ToolCall
from retcon.purify.offline import RepairResult
from retcon.purify.pairs import preference_pairs
from retcon.transcripts.items import (
    ASSISTANT,
    KINDS,
    SYSTEM,
    TEXTS,
    context_of,
    find_items,
    no_items,
    renew_record,
    system_of,
    text_of,
    with_text,
)
from retcon.transcripts.pieces import (
    Call,
    Piece,
    PieceKind,
    PieceReading,
    RecordReading,
    ToolOutput,
    awaits_output,
    program_argument,
)
from retcon.transcripts.registry import Dialect, Fragment, JsonCall, dialects
from retcon.transcripts.types import NOT_JSON, Certainty, Json, Reading, json_in
from retcon.transcripts.verdicts import judge

_THOUGHT = re.compile(r"\s*<think>.*?</think>\s*", re.DOTALL)


def cut_calls(text: str, dialect: Dialect) -> list[Fragment]:
    """Cut a call's message into words and calls (JSON or dialect)."""
    thought = _THOUGHT.match(text)
    start = thought.end() if thought else 0
    calls = _calls(text[start:])
    if isinstance(calls[0].arguments, str) and dialect.calls_in(text):
        return dialect.cut(text, answered=True)
    return [Fragment("assistant", text[:start])] * bool(start) + [Fragment("call", text[start:], calls)]


def split_output(output: ToolOutput, calls: Sequence[Call]) -> tuple[ToolOutput, ...]:
    """Split a message that answers several calls: by the items of a JSON list of as many; else the first output has the
    text, and all have its verdict."""
    listed = json_in(output.text)
    if isinstance(listed, list) and len(listed) == len(calls):
        texts = [one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in listed]
        return tuple(map(ToolOutput, texts))
    made = [
        ToolCall(str(n), call.name, arguments, 0, language=language)
        for n, call in enumerate(calls)
        for arguments, language in (program_argument(call.name, call.arguments),)
    ]
    verdict = judge(output.text, made)
    return (replace(output, verdict=verdict, typed=True), *[ToolOutput("", None, verdict, True)] * (len(calls) - 1))


def _calls(text: str) -> tuple[Call, ...]:
    """Read one call or a list; text where it cannot be read."""
    read = json_in(text)
    if isinstance(read, list) and read and all(isinstance(one, dict) and "name" in one for one in read):
        return tuple(_call(one, text) for one in read)
    return (_call(read, text),)


def _call(obj: Json, text: str) -> Call:
    """Read an object of name and arguments; else keep the text."""
    name = obj.get("name") if isinstance(obj, dict) else None
    arguments = obj.get("arguments", obj.get("parameters")) if isinstance(obj, dict) else None
    if isinstance(arguments, str):
        read = json_in(arguments)
        if read is None:
            return Call(str(name or "python"), arguments)
        arguments = read
    if isinstance(name, str) and isinstance(arguments, dict):
        return Call(name, arguments)
    return Call(name if isinstance(name, str) else "python", text)


_JSON_CALL = msgspec.json.Decoder(JsonCall)

Item = dict[str, Json]


class ItemsReading(RecordReading):
    """A record with one transcript in a list of items at `path`."""

    def __init__(self, record: Json, path: Sequence[str], reading: PieceReading) -> None:
        super().__init__(record, [reading])
        self._path = path

    def with_repairs(self, results: Sequence[RepairResult]) -> Json:
        return renew_record(self._record, self._path, self.readings[0].items(results[0]))

    def pairs(self, results: Sequence[RepairResult]) -> Iterator[Pair]:
        in_text = preference_pairs(results[0].trajectory)
        before = self._before()
        system = system_of(self._record)
        tools = self._record.get("tools") if isinstance(self._record, dict) else None
        shown = {} if tools is None else {"tools": tools}
        for pair, sides in zip(in_text, self.readings[0].sides(results[0]), strict=True):
            if not all(isinstance(item, dict) and "role" in item for side in sides for item in side):
                yield pair  # TRL knows no other messages
                continue
            prompt = (*before, *sides[0])
            if system and not any(str(message.get("role")) in SYSTEM for message in prompt):
                prompt = ({"role": "system", "content": system}, *prompt)
            chosen, rejected = map(Completion, sides[1:])
            yield Pair(pair.id, prompt, chosen, rejected, about={**pair.about, **shown})

    def _before(self) -> tuple[Message, ...]:
        """Return the prompt beside a completion, as messages."""
        prompt = self._record.get("prompt") if isinstance(self._record, dict) else None
        if self._path != ("completion",):
            return ()
        if isinstance(prompt, list):
            return tuple(message for message in prompt if isinstance(message, dict))
        asked = context_of(self._record)
        return ({"role": "user", "content": asked},) if asked else ()


@dataclass(frozen=True, slots=True)
class InMessages:
    """Format of messages. role, text: the keys of an item, which may have `role` and `text` instead. only: the dialect
    of calls; None: any."""

    name: str
    role: str
    text: str
    certainty: Certainty
    accepts: Callable[[Sequence[Item]], bool]
    only: Dialect | None = None
    marks: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    def matches(self, record: Json) -> bool:
        found = find_items(record)
        return found is not None and self.accepts(found[1])

    def kind(self, item: Item) -> PieceKind:
        role = item.get(self.role, item.get("role"))
        return KINDS.get(role, "context") if isinstance(role, str) else "context"

    def _text(self, item: Item) -> str:
        return text_of(item.get(self.text, item.get("text")))

    def clean(self, record: Json) -> int | None:
        found = find_items(record)
        if found is None:
            return None
        items = found[1]
        dialect, role_key, text_key = self.only, self.role, self.text
        count = pending = 0
        for item in items:
            role, text = item.get(role_key), item.get(text_key)
            role = item.get("role") if role is None else role
            text = item.get("text") if text is None else text
            kind = KINDS.get(role, "context") if type(role) is str else "context"
            if type(text) is not str:
                text = text_of(text)
            if kind == "assistant":
                if pending > 0:
                    return None  # what calls have no output yet takes a full reading
                pending = 0
                if dialect is None and ("<" in text or "```" in text or "Action" in text):
                    dialect = self._dialect(items)
                if dialect is not None:
                    if (inside := dialect.clean_inside(text)) is None or (calls := dialect.clean_calls(text)) is None:
                        return None
                    count += inside
                    pending = -1 if inside else calls
            elif kind == "call":
                try:
                    _JSON_CALL.decode(text)
                except NOT_JSON:
                    return None
                pending += 1
            elif pending:
                outputs = (dialect or dialects()[-1]).clean_outputs(text, kind == "context")
                if outputs is None or (outputs and pending < 0):
                    return None  # what follows outputs in the model's own message takes a full reading
                if 0 < outputs <= pending:
                    count += outputs
                    pending -= outputs
                else:  # -1: they were in the message itself
                    count += min(max(0, pending), outputs)
                    pending = 0
        return count

    def read(self, record: Json, id: str) -> Reading:
        found = find_items(record)
        if found is None:
            raise no_items()
        path, items = found
        pieces = list(self._pieces(items))
        apart = any(self.kind(item) == "call" for item in items)
        # `prompt` beside `completion`, and questions beside the messages, are context that is not written back.
        context = context_of(record) if path == ("completion",) else ""
        return ItemsReading(record, path, PieceReading(items, pieces, id, self._rebuild, apart=apart, context=context))

    def _pieces(self, items: Sequence[Item]) -> Sequence[Piece]:
        dialect = self._dialect(items)
        pieces: list[Piece] = []
        goes_on = False
        for n, item in enumerate(items):
            text, kind = self._text(item) or text_of(item.get("system_prompt")), self.kind(item)
            if kind == "assistant":
                following = items[n + 1] if n + 1 < len(items) else None
                answered = following is not None and self._answers(following, dialect)
                pieces += [Piece(c.kind, n, c.text, c.calls, c.outputs) for c in dialect.cut(text, answered)]
            elif kind == "call":
                pieces += [Piece(c.kind, n, c.text, c.calls) for c in cut_calls(text, dialect)]
            elif (goes_on or awaits_output(pieces)) and self._answers(item, dialect):
                if kind == "result":
                    outputs, calls = dialect.outputs(text), pieces[-1].calls
                    following = items[n + 1] if n + 1 < len(items) else None
                    alone = following is None or not self._answers(following, dialect)
                    if len(calls) > 1 and len(outputs) == 1 and alone and self.kind(items[pieces[-1].owner]) == "call":
                        outputs = split_output(outputs[0], calls)
                    pieces.append(Piece("result", n, text, (), outputs))
                else:
                    pieces += [Piece(c.kind, n, c.text, c.calls, c.outputs) for c in dialect.cut_user_message(text)]
                goes_on = True  # though what a user says beside the outputs ends the message
                continue
            else:
                pieces.append(Piece("context", n, text))
            goes_on = False
        return pieces

    def _answers(self, item: Item, dialect: Dialect) -> bool:
        kind = self.kind(item)
        return kind == "result" or (kind == "context" and dialect.user_outputs(self._text(item)) is not None)

    def _dialect(self, items: Sequence[Item]) -> Dialect:
        """Return the first dialect that the model uses for a call."""
        if self.only is not None:
            return self.only
        replies = [self._text(item) for item in items if self.kind(item) in ("assistant", "call")]
        contexts = [self._text(item) for item in items if self.kind(item) in ("context", "result")]
        return next((d for d in dialects() if d.used(replies, contexts)), dialects()[-1])

    def _rebuild(self, item: Json, pieces: Sequence[Piece]) -> Json:
        if not isinstance(item, dict):
            raise RecordError("a message is not an object")
        key = self.text if self.text in item else "text"
        return {**item, key: with_text(item.get(key), "".join(p.text for p in pieces))}


def in_messages(dialect: Dialect, *, marks: Sequence[str] = (), aliases: Sequence[str] = ()) -> InMessages:
    """Build the format of messages whose calls use a dialect."""

    def accepts(items: Sequence[Item]) -> bool:
        replies = (text_of(i.get("content")) for i in items if _is_assistant(i))
        contexts = (text_of(i.get("content")) for i in items if not _is_assistant(i))
        return dialect.used(replies, contexts)

    return InMessages(
        dialect.name, "role", "content", dialect.certainty, accepts, dialect, tuple(marks), tuple(aliases)
    )


def _is_assistant(item: Item) -> bool:
    role = item.get("role")
    return isinstance(role, str) and role in ASSISTANT


@dataclass(frozen=True, slots=True)
class InText:
    """Format of one text. dialect: of its calls and outputs. signs: strings that every such text has."""

    dialect: Dialect
    signs: tuple[str, ...]
    certainty: Certainty
    marks: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.dialect.name

    def matches(self, record: Json) -> bool:
        return self._place(record) is not None

    def clean(self, record: Json) -> int | None:
        count = 0
        for text in self._texts(record)[1]:
            inside = self.dialect.clean_inside(text)
            if inside is None:
                return None
            count += inside
        return count

    def read(self, record: Json, id: str) -> Reading:
        place, texts = self._texts(record)
        if place is None:
            raise RecordError(f"no text with calls and {' and '.join(self.signs)} in any of {', '.join(TEXTS)}")
        context = context_of(record)
        return _TextReading(record, place, [
            _read(self.dialect, text, id if len(texts) == 1 else f"{id}.{n}", context) for n, text in enumerate(texts)
        ])  # fmt: skip

    def _texts(self, record: Json) -> tuple[str | None, Sequence[str]]:
        place = self._place(record)
        if place is None or not isinstance(record, dict):
            return None, ()
        value = record[place]
        return place, value if isinstance(value, list) else [str(value)]

    def _place(self, record: Json) -> str | None:
        """Find the field whose text has a call and its output."""
        if not isinstance(record, dict):
            return None
        for name in TEXTS:
            value = record.get(name)
            texts = value if isinstance(value, list) else [value]
            if all(isinstance(t, str) for t in texts) and any(map(self._signed, texts)):
                return name
        return None

    def _signed(self, text: str) -> bool:
        # A character alone is looked for many times as fast, and most texts have no `<`.
        return all(sign[0] in text and sign in text for sign in self.signs) and self.dialect.used((text,), ())


class _TextReading(RecordReading):
    def __init__(self, record: Json, place: str, readings: Sequence[PieceReading]) -> None:
        super().__init__(record, readings)
        self._place = place

    def with_repairs(self, results: Sequence[RepairResult]) -> Json:
        if not isinstance(self._record, dict):
            raise RecordError("a record of text is an object")
        new = [str(reading.items(own)[0]) for reading, own in zip(self.readings, results, strict=True)]
        value: Json = new if isinstance(self._record[self._place], list) else new[0]
        return renew_record(self._record, (self._place,), value)


def _read(dialect: Dialect, text: str, id: str, context: str) -> PieceReading:
    cuts = dialect.cut(text, answered=False)
    pieces = [Piece(c.kind, 0, c.text, c.calls, c.outputs) for c in cuts]
    return PieceReading([text], pieces, id, lambda _, own: "".join(p.text for p in own), context=context)
