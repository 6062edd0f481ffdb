"""Lists of messages whose calls are text: Hermes, Markdown, `<execute>`, in OpenAI's shape or ShareGPT's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from retcon.core.errors import RecordError
from retcon.core.pair import Completion, Message, Pair
from retcon.core.types import Trajectory
from retcon.purify.offline import Purified
from retcon.purify.pairs import preference_pairs
from retcon.transcripts.reading.dialects import Dialect, JsonCall
from retcon.transcripts.reading.function_calls import cut_calls, split_output
from retcon.transcripts.reading.items import context_of, find_items, no_items, system_of, text_of, with_text
from retcon.transcripts.reading.pieces import Piece, PieceKind, PieceReading, awaits_output
from retcon.transcripts.reading.roles import KINDS, SAID, SYSTEM
from retcon.transcripts.reading.stale import renewed
from retcon.transcripts.registry import dialects
from retcon.transcripts.types import NOT_JSON, Certainty, Json, Reading, Speakers

_JSON_CALL = msgspec.json.Decoder(JsonCall)

Item = dict[str, Json]


class ItemsReading:
    """A record with one transcript in a list of items at `path`."""

    def __init__(self, record: Json, path: Sequence[str], reading: PieceReading) -> None:
        self._record = record
        self._path = path
        self._reading = reading
        self.trajectories: Sequence[Trajectory] = (reading.trajectory,)

    @property
    def speakers(self) -> Sequence[Speakers]:
        return [self._reading.speakers]

    def purified(self, results: Sequence[Purified]) -> Json:
        items = self._reading.items(results[0])
        return renewed(self._record, self._path, items)

    def pairs(self, results: Sequence[Purified]) -> Iterator[Pair]:
        in_text = preference_pairs(results[0].trajectory)
        before = self._before()
        system = system_of(self._record)
        for pair, sides in zip(in_text, self._reading.sides(results[0]), strict=True):
            if not all(isinstance(item, dict) and "role" in item for side in sides for item in side):
                yield pair  # TRL knows no other messages
                continue
            prompt = (*before, *sides[0])
            if system and not any(str(message.get("role")) in SYSTEM for message in prompt):
                prompt = ({"role": "system", "content": system}, *prompt)
            chosen, rejected = map(Completion, sides[1:])
            yield Pair(pair.id, prompt, chosen, rejected, about=pair.about)

    def _before(self) -> tuple[Message, ...]:
        """The prompt that stands beside a completion, as messages."""
        prompt = self._record.get("prompt") if isinstance(self._record, dict) else None
        if self._path != ("completion",):
            return ()
        if isinstance(prompt, list):
            return tuple(message for message in prompt if isinstance(message, dict))
        asked = context_of(self._record)
        return ({"role": "user", "content": asked},) if asked else ()


@dataclass(frozen=True, slots=True)
class InMessages:
    """A format of messages. role, text: the keys of an item, which may have `role` and `text` instead. only: how calls
    are written; None: in any known way."""

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
        return KINDS.get(role, "told") if isinstance(role, str) else "told"

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
            kind = KINDS.get(role, "told") if type(role) is str else "told"
            if type(text) is not str:
                text = text_of(text)
            if kind == "said":
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
                outputs = (dialect or dialects()[-1]).clean_outputs(text, kind == "told")
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
            if kind == "said":
                following = items[n + 1] if n + 1 < len(items) else None
                answered = following is not None and self._answers(following, dialect)
                pieces += [Piece(c.kind, n, c.text, c.calls, c.outputs) for c in dialect.cut(text, answered)]
            elif kind == "call":
                pieces += [Piece(c.kind, n, c.text, c.calls) for c in cut_calls(text, dialect)]
            elif (goes_on or awaits_output(pieces)) and self._answers(item, dialect):
                if kind == "output":
                    outputs, calls = dialect.outputs(text), pieces[-1].calls
                    following = items[n + 1] if n + 1 < len(items) else None
                    alone = following is None or not self._answers(following, dialect)
                    if len(calls) > 1 and len(outputs) == 1 and alone and self.kind(items[pieces[-1].owner]) == "call":
                        outputs = split_output(outputs[0], calls)
                    pieces.append(Piece("output", n, text, (), outputs))
                else:
                    pieces += [Piece(c.kind, n, c.text, c.calls, c.outputs) for c in dialect.cut_told(text)]
                goes_on = True  # though what a user says beside the outputs ends the message
                continue
            else:
                pieces.append(Piece("told", n, text))
            goes_on = False
        return pieces

    def _answers(self, item: Item, dialect: Dialect) -> bool:
        kind = self.kind(item)
        return kind == "output" or (kind == "told" and dialect.told_outputs(self._text(item)) is not None)

    def _dialect(self, items: Sequence[Item]) -> Dialect:
        """The first dialect that a message of the model has a call in."""
        if self.only is not None:
            return self.only
        said = [self._text(item) for item in items if self.kind(item) in ("said", "call")]
        told = [self._text(item) for item in items if self.kind(item) in ("told", "output")]
        return next((d for d in dialects() if d.used(said, told)), dialects()[-1])

    def _rebuild(self, item: Json, pieces: Sequence[Piece]) -> Json:
        if not isinstance(item, dict):
            raise RecordError("a message is not an object")
        key = self.text if self.text in item else "text"
        return {**item, key: with_text(item.get(key), "".join(p.text for p in pieces))}


def in_messages(dialect: Dialect, *, marks: Sequence[str] = (), aliases: Sequence[str] = ()) -> InMessages:
    """The format of messages (`role`, `content`) whose calls are written in a dialect."""

    def accepts(items: Sequence[Item]) -> bool:
        said = (text_of(i.get("content")) for i in items if _is_said(i))
        told = (text_of(i.get("content")) for i in items if not _is_said(i))
        return dialect.used(said, told)

    return InMessages(
        dialect.name, "role", "content", dialect.certainty, accepts, dialect, tuple(marks), tuple(aliases)
    )


def _is_said(item: Item) -> bool:
    role = item.get("role")
    return isinstance(role, str) and role in SAID
