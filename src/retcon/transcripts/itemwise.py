"""Formats whose transcripts are lists of items: messages with typed parts, steps, events.

Consecutive items of one turn of the model are a *group*. A format cuts groups into pieces, each of which carries the
items (or parts of them) that move with it; what stays is the very object that was read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import groupby, takewhile
from types import MappingProxyType
from typing import NamedTuple, cast

from msgspec.structs import replace

from retcon.chat.types import TextMessage
from retcon.core.errors import RecordError
from retcon.purify.offline import RepairResult
from retcon.purify.words import cut_spans
from retcon.transcripts.items import (
    APART,
    Thought,
    context_of,
    part_words,
    parts_without,
    renew_record,
    text_of,
    with_part_words,
    with_text,
    without_words,
)
from retcon.transcripts.pieces import (
    Call,
    Piece,
    PieceKind,
    PieceReading,
    RecordReading,
    Stretch,
    ToolOutput,
    awaits_output,
    shown_call,
)
from retcon.transcripts.types import Certainty, Format, Json, Reading, json_in
from retcon.transcripts.verdicts import Verdict

Item = Mapping[str, Json]
_PARTS = "items"
_BESIDE = "beside"


class ItemList(NamedTuple):
    """A list of items, its path in the record, and its context."""

    path: Sequence[str | int]
    items: list[Item]
    context: str = ""
    asked: Sequence[TextMessage] = ()
    system: str = ""


class Itemwise(Format):
    """Base of formats that are lists of items."""

    name: str
    certainty = Certainty.LAYOUT
    aliases: Sequence[str] = ()
    marks: Sequence[str] = ()
    needs: Set[str] = frozenset()
    """Keys of which a list with a call has one at least; none: any list may be one."""

    stale: Mapping[tuple[str, ...], Json] = MappingProxyType({})
    """What an item repeats of the history before it, or of its tokens: its path, and what it is after a repair."""
    in_lines = False
    """Whether transcripts are kept one item a line, too: items are such as no rows of a data set are."""

    def has_calls(self, items: Sequence[Item]) -> bool:
        """Whether a list is of this format and has a call (cheap)."""
        raise NotImplementedError

    def is_plain(self, items: Sequence[Item]) -> bool:
        """Whether a list without calls is of this format."""
        return False

    def group(self, items: Sequence[Item]) -> list[Piece]:
        """Cut items into pieces; an owner is the place of a group."""
        raise NotImplementedError

    def original(self, pieces: Sequence[Piece]) -> list[Json]:
        """Return a group's items as they were read."""
        return [item for piece in pieces for item in parts(piece)]

    def rebuild(self, pieces: Sequence[Piece]) -> list[Json]:
        """Return the items of a group with these pieces."""
        return [item for piece in pieces for item in parts(piece)]

    def cut_words(self, piece: Piece, cuts: Sequence[Stretch]) -> Piece:
        """Remove spans from a piece's words, and from its items."""
        moved = parts(piece)
        new = [self.without_words(moved[0], cuts), *moved[1:]] if moved else []
        return replace(piece, text=cut_spans(piece.text, cuts), payload={**piece.payload, _PARTS: new})

    def without_words(self, item: Json, cuts: Sequence[Stretch]) -> Json:
        """Remove spans from the item that holds the words."""
        return {**item, "content": without_words(item.get("content"), cuts)} if isinstance(item, dict) else item

    def update_references(self, items: Sequence[Json], before: Sequence[Item]) -> Sequence[Json]:
        """Update references between the items of a repaired transcript."""
        return items

    def find(self, record: Json) -> ItemList | None:
        """Find the list of items, preferably one with calls."""
        for suits in (self.has_calls, self.is_plain):
            for path, items in lists(record):
                if suits(items):
                    return ItemList(path, items, context_of(record) if path else "")
        return None

    def find_all(self, record: Json) -> Sequence[ItemList]:
        """Find the lists of items, each a transcript."""
        found = self.find(record)
        return [] if found is None else [found]

    def with_items(self, record: Json, place: ItemList, items: list[Json]) -> Json:
        """Return the record with other items at a place."""
        return renew_record(record, place.path, items)

    def finish_record(self, record: Json, before: Json) -> Json:
        """Finish a record whose repairs are all in place."""
        return record

    def beginnings(self, items: Sequence[Json]) -> Sequence[int]:
        """Return where transcripts begin among the lines of a file."""
        return [0]

    def matches(self, record: Json) -> bool:
        return any(self.has_calls(items) for _, items in lists(record))

    def holds(self, record: Json) -> bool:
        """Whether an unmatched record is a transcript of this format without calls."""
        return any(self.is_plain(items) for _, items in lists(record))

    def read(self, record: Json, id: str) -> Reading:
        places = self.find_all(record)
        if not places:
            raise RecordError(f"no list of items as {self.name} has them")
        return ItemwiseReading(self, record, places, id)


class ItemwiseReading(RecordReading):
    """A record with transcripts in groups of items, one at each place."""

    def __init__(self, format: Itemwise, record: Json, places: Sequence[ItemList], id: str) -> None:
        self._format = format
        several = [id] if len(places) == 1 else [f"{id}.{n}" for n in range(len(places))]
        super().__init__(record, [_reading(format, place, own) for place, own in zip(places, several, strict=True)])
        self.places = places

    def with_repairs(self, results: Sequence[RepairResult]) -> Json:
        record = self._record
        # What stands within another transcript comes after it: the last first, so that each is still in its place.
        for place, reading, result in reversed([*zip(self.places, self.readings, results, strict=True)]):
            if result.splices:
                record = self._format.with_items(record, place, self._items(place, reading, result))
        return record if record is self._record else self._format.finish_record(record, self._record)

    def _items(self, place: ItemList, reading: PieceReading, result: RepairResult) -> list[Json]:
        items = [item for group in reading.items(result) if isinstance(group, list) for item in group]
        before = zip(items, place.items, strict=False)
        same = next((n for n, (item, old) in enumerate(before) if item is not old), len(items))
        return list(
            self._format.update_references(
                [*items[:same], *(_without_stale(item, self._format.stale) for item in items[same:])], place.items
            )
        )


def _without_stale(item: Json, stale: Mapping[tuple[str, ...], Json]) -> Json:
    """Empty an item's fields at these paths."""
    for (key, *rest), empty in stale.items():
        if isinstance(item, dict) and (value := item.get(key)):
            new = _without_stale(value, {tuple(rest): empty}) if rest else empty
            item = item if new is value else {**item, key: new}
    return item


def _reading(format: Itemwise, place: ItemList, id: str) -> PieceReading:
    pieces = format.group(place.items)
    owned: list[list[Piece]] = [[] for _ in range(max((p.owner for p in pieces), default=-1) + 1)]
    for piece in pieces:
        owned[piece.owner].append(piece)
    groups: list[Json] = [format.original(own) for own in owned]
    return PieceReading(
        groups, pieces, id, lambda _, own: format.rebuild(own), context=place.context, reword=format.cut_words,
        asked=place.asked, system=place.system,
    )  # fmt: skip


class Pieces:
    """Pieces of items that come one after another, in groups.

    An item that the model wrote after a call, or after anything that it did not write, begins a group."""

    def __init__(self) -> None:
        self.all: list[Piece] = []

    def add_context(self, item: Json, text: str, *, role: str | None = None) -> None:
        """Add a message of a user or the system; role: as in `Piece`."""
        self._add("context", text, [item], new=True)
        if role is not None:
            self.all[-1] = replace(self.all[-1], role=role)

    def add_words(
        self, item: Json, text: str, *, moved: Sequence[Json] | None = None, apart: bool = False,
        beside: Mapping[str, Json] | None = None,
    ) -> None:  # fmt: skip
        """Add the model's words. moved: the items that go with them, in place of `item`. apart: whether they begin a
        turn, though words stand before them. beside: other fields of the item that go with loose words."""
        last = self._last
        new = last is None or apart or last.kind != "assistant"
        self._add("assistant", text, [item] if moved is None else moved, new=new)
        if beside:
            self.all[-1] = replace(self.all[-1], payload={**self.all[-1].payload, _BESIDE: beside})

    def add_calls(self, item: Json, calls: Sequence[Call], shown: str = "") -> None:
        """Add calls; those of adjacent items are of one turn. shown: their text in the item."""
        last = self._last
        shown = shown or "".join(map(shown_call, calls))
        if last is not None and last.kind == "call":
            later = tuple(replace(c, char=c.char + len(last.text)) for c in place_calls(calls))
            self.all[-1] = replace(
                last, text=last.text + shown, calls=last.calls + later, payload={_PARTS: [*parts(last), item]}
            )
        else:
            own = place_calls(calls)
            self._add("call", shown, [item], own, new=last is None or last.kind != "assistant")

    def add_results(self, item: Json | None, outputs: Sequence[ToolOutput]) -> None:
        """Add results of calls. item: None where the call's item holds them."""
        text = "".join(o.text for o in outputs)
        moved = [] if item is None else [item]
        if not awaits_output(self.all):
            self._add("context", text, moved, new=True)
            self.all[-1] = replace(self.all[-1], role=None if item is None else "tool")
        else:
            self._add("result", text, moved, outputs=tuple(outputs), new=item is not None)

    def add_silent(self, item: Json) -> None:
        """Add an item without words (a change of state)."""
        last = self._last
        if last is None:
            self.add_context(item, "", role="")
        else:
            self.all[-1] = replace(last, payload={_PARTS: [*parts(last), item]})

    @property
    def _last(self) -> Piece | None:
        return self.all[-1] if self.all else None

    def _add(
        self, kind: PieceKind, text: str, moved: Sequence[Json], calls: tuple[Call, ...] = (),
        *, outputs: tuple[ToolOutput, ...] = (), new: bool,
    ) -> None:  # fmt: skip
        last = self._last
        owner = 0 if last is None else last.owner + new
        self.all.append(Piece(kind, owner, text, calls, outputs, {_PARTS: list(moved)}))


def parts(piece: Piece) -> list[Json]:
    """Return the items that move with a piece."""
    found = piece.payload.get(_PARTS)
    return found if isinstance(found, list) else []


def loose_words(pieces: Sequence[Piece]) -> str | None:
    """Return words that stand in the item of the next call."""
    loose = [piece.text for piece in pieces if piece.kind == "assistant" and not parts(piece)]
    return "".join(loose) if loose else None


def beside_words(pieces: Sequence[Piece]) -> Mapping[str, Json]:
    """Return the fields that go with loose words."""
    found = [piece.payload.get(_BESIDE) for piece in pieces if piece.kind == "assistant" and not parts(piece)]
    return {name: value for one in found if isinstance(one, dict) for name, value in one.items()}


def place_calls(calls: Sequence[Call]) -> tuple[Call, ...]:
    """Place calls in the text that shows them in sequence."""
    out: list[Call] = []
    at = 0
    for call in calls:
        out.append(replace(call, char=at))
        at += len(shown_call(call))
    return tuple(out)


def lists(record: Json) -> Iterator[tuple[Sequence[str], list[Item]]]:
    """Yield the lists of objects in a record, each with its path: itself, its values, and those of objects in it."""
    if isinstance(record, list):
        if is_items(record):
            yield (), record
    elif isinstance(record, dict):
        for key, value in record.items():
            if isinstance(value, list) and is_items(value):
                yield (key,), value
            elif isinstance(value, dict):
                for inner, listed in value.items():
                    if isinstance(listed, list) and is_items(listed):
                        yield (key, inner), listed


def is_items(value: Sequence[Json]) -> bool:
    return bool(value) and all(isinstance(item, dict) for item in value)


def arguments_of(value: Json) -> Mapping[str, Json] | str:
    """Return arguments as an object, or their text."""
    if isinstance(value, dict):
        return value
    text = value if isinstance(value, str) else ""
    read = json_in(text)
    return read if isinstance(read, dict) else text


def objects(value: Json) -> list[dict[str, Json]]:
    """Return the objects in a list; of another value, no objects."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def string(value: Json, default: str = "") -> str:
    """Return a value that is text, else the default."""
    return value if isinstance(value, str) else default


def some_id(value: Json) -> str | None:
    """Return a value that is an id: a text, or a number."""
    return value if isinstance(value, str) else str(value) if type(value) is int else None


def part_of(item: Json, key: str) -> Item:
    """Return the object under a key, or an empty one."""
    found = item.get(key) if isinstance(item, dict) else None
    return found if isinstance(found, dict) else {}


def read_call(item: Item, name: str, arguments: str, id: str) -> Call:
    """Read an object as a call, by the keys of its parts."""
    return Call(string(item.get(name), "python"), arguments_of(item.get(arguments)), id=some_id(item.get(id)))


def flagged_output(text: str, call_id: str | None, *, failed: bool | None) -> ToolOutput:
    """Return an output with its format's verdict. failed: None for no verdict."""
    return ToolOutput(text, call_id, Verdict("error", "status") if failed else None, typed=failed is not None)


def exit_output(text: str, call_id: str | None, code: Json) -> ToolOutput:
    """Return an output with its format's exit code, if any."""
    verdict = Verdict("error", "status", f"exit {code}") if type(code) is int and code else None
    return ToolOutput(text, call_id, verdict, typed=type(code) is int)


_HOME = "home"
_FOLLOWING = "following"


class Blockwise(Itemwise):
    """Base of formats whose messages consist of blocks.

    A subclass says where these are and what each is. Adjacent blocks of one kind are one piece: all words, calls in
    a row. A message without blocks (a change of state) stays with the one before it."""

    def blocks(self, item: Item) -> Sequence[Json]:
        """List a message's blocks; a text becomes one block."""
        content = item.get("content")
        return content if isinstance(content, list) and content else [content]

    def blocks_of(self, items: Sequence[Item]) -> Sequence[Sequence[Json]]:
        """Return the blocks of each message."""
        return [self.blocks(item) for item in items]

    def goes_on(self, item: Item, last: Item) -> bool:
        """Whether an item continues the message before it."""
        return False

    def with_blocks(self, item: Item, blocks: Sequence[Json]) -> dict[str, Json]:
        """Return the message with other blocks."""
        return {**item, "content": list(blocks) if isinstance(item.get("content"), list) else blocks[0]}

    def kind(self, block: Json, item: Item) -> PieceKind:
        """Return the kind of a message's block."""
        raise NotImplementedError

    def role(self, block: Json, item: Item) -> str | None:
        """Return the role of a context block, as in `Piece`."""
        return None

    def call(self, block: Item) -> Call:
        """Read a block as a call."""
        raise NotImplementedError

    def output(self, block: Item, item: Item) -> ToolOutput:
        """Read a block of a message as a call's output."""
        raise NotImplementedError

    def words(self, block: Json) -> str:
        """Return the words of a block; a thought ends with `APART`."""
        return part_words(block)

    def with_words(self, block: Json, words: str) -> Json:
        """Return the block with other words."""
        return with_part_words(block, words)

    def group(self, items: Sequence[Item]) -> list[Piece]:
        pieces: list[Piece] = []
        for item, blocks in zip(items, self.blocks_of(items), strict=True):
            owner = pieces[-1].owner + (not self.goes_on(item, home_of(pieces[-1:]))) if pieces else 0
            if not blocks:
                if pieces:
                    pieces[-1] = _with_beside(pieces[-1], item)
                else:
                    pieces.append(silent_piece(owner, item))
            for (kind, role), run in groupby(blocks, key=lambda block: self._kind(block, item)):
                pieces.append(self._piece(kind, owner, list(run), item, role))
        return pieces

    def original(self, pieces: Sequence[Piece]) -> list[Json]:
        items: list[Json] = []
        last: Json = None
        for piece in pieces:
            home = home_of([piece])
            items += [*([] if home is last else [home]), *_beside([piece])]
            last = home
        return items

    def rebuild(self, pieces: Sequence[Piece]) -> list[Json]:
        blocks = [block for piece in pieces for block in parts(piece)]
        return [self.with_blocks(home_of(pieces), blocks), *_beside(pieces)]

    def cut_words(self, piece: Piece, cuts: Sequence[Stretch]) -> Piece:
        blocks = parts_without(parts(piece), cuts, self.words, self.with_words)
        return replace(piece, text=cut_spans(piece.text, cuts), payload={**piece.payload, "items": blocks})

    def _kind(self, block: Json, item: Item) -> tuple[PieceKind, str | None]:
        kind = self.kind(block, item)
        return kind, self.role(block, item) if kind == "context" else None

    def _piece(self, kind: PieceKind, owner: int, blocks: list[Json], item: Item, role: str | None) -> Piece:
        objects = [block if isinstance(block, dict) else {} for block in blocks]
        calls = place_calls([self.call(block) for block in objects]) if kind == "call" else ()
        outputs = tuple(self.output(block, item) for block in objects) if kind == "result" else ()
        words = [] if kind == "call" else list(map(self.words, blocks))
        text = "".join(map(shown_call, calls)) or "".join(output.text for output in outputs) or "".join(words)
        first = "".join(takewhile(lambda one: isinstance(one, Thought), words))
        return Piece(kind, owner, text, calls, outputs, {"items": blocks, _HOME: item}, role, first)


def silent_piece(owner: int, item: Item) -> Piece:
    """Return a piece without words that no repair spans."""
    return Piece("context", owner, "", payload={"items": [], _HOME: item}, role="")


def home_of(pieces: Sequence[Piece]) -> dict[str, Json]:
    """Return the message of the first piece's blocks."""
    return cast(dict[str, Json], pieces[0].payload[_HOME])


def _with_beside(piece: Piece, item: Item) -> Piece:
    """Add an item to a piece in place, as there may be thousands."""
    if isinstance(known := piece.payload.get(_FOLLOWING), list):
        known.append(item)
        return piece
    return replace(piece, payload={**piece.payload, _FOLLOWING: [item]})


def _beside(pieces: Sequence[Piece]) -> list[Json]:
    """Return the messages without blocks that follow these pieces."""
    found = (piece.payload.get(_FOLLOWING) for piece in pieces)
    return [item for listed in found if isinstance(listed, list) for item in listed]


_THOUGHT, WORDS = "thought", "words"
"""Keys beside loose words: the step of a thought, or of words."""


class Steps(Itemwise):
    """Base of formats whose steps hold words, calls and results."""

    text = "content"
    """Where a step has its words."""

    def words(self, item: Item) -> str:
        """Return a step's words before its calls."""
        return text_of(item.get(self.text))

    def with_words(self, item: dict[str, Json], words: str) -> dict[str, Json]:
        """Return the step with other words."""
        return {**item, self.text: with_text(item.get(self.text), words)}

    def speaker(self, item: Item) -> str | None:
        """Return `assistant`, `user`, `system`, or `tool` for a step of results alone; None for a state change."""
        return "assistant"

    def goes_on(self, item: Item, last: Item) -> bool:
        """Whether a step's calls are of the last step's reply."""
        return False

    def speakers(self, items: Sequence[Item]) -> Sequence[str | None]:
        """Return the speaker of each step."""
        return [*map(self.speaker, items)]

    def thought(self, item: Item) -> str:
        """Return the reasoning before a step's words."""
        return ""

    def with_thought(self, item: dict[str, Json], thought: str | None, home: Item) -> dict[str, Json]:
        """Return the step with a thought or None. home: the step that it, or the words, come from."""
        return item

    def calls(self, item: Item) -> Sequence[Call]:
        raise NotImplementedError

    def outputs(self, item: Item) -> Sequence[ToolOutput]:
        """Return the outputs of a step's calls."""
        raise NotImplementedError

    def group(self, items: Sequence[Item]) -> list[Piece]:
        pieces = Pieces()
        last: Item = {}
        for item, who in zip(items, self.speakers(items), strict=True):
            if who is None:
                pieces.add_silent(item)
                continue
            before, last = last, item
            if who == "tool":
                pieces.add_results(item, self.outputs(item))
                continue
            if self.goes_on(item, before):
                pieces.add_calls(item, self.calls(item))
                continue
            text = self.words(item)
            if who != "assistant":
                pieces.add_context(item, text, role=who)
                continue
            calls, outputs, thought = self.calls(item), self.outputs(item), self.thought(item)
            if thought:
                pieces.add_words(item, Thought(thought + APART), moved=[], apart=True, beside={_THOUGHT: item})
            pieces.add_words(item, text, moved=[] if calls else None, apart=not thought, beside={WORDS: item})
            if calls:
                pieces.add_calls(item, calls)
            if outputs:
                pieces.add_results(None, outputs)
        return pieces.all

    def rebuild(self, pieces: Sequence[Piece]) -> list[Json]:
        """Return the fix's step, with the words and thought it takes over."""
        thoughts = [piece for piece in pieces if _THOUGHT in beside_words([piece])]
        words = loose_words([piece for piece in pieces if piece not in thoughts])
        first, *beside = [item for piece in pieces for item in parts(piece) if isinstance(item, dict)]
        if words is not None and words != self.words(first):
            first = self.with_words(first, words)
        beside_these = beside_words(pieces)
        home = beside_these.get(_THOUGHT, beside_these.get(WORDS))
        thought = thoughts[0].text.removesuffix(APART) if thoughts else None
        return [self.with_thought(first, thought, home if isinstance(home, dict) else {}), *beside]

    def without_words(self, item: Json, cuts: Sequence[Stretch]) -> Json:
        return self.with_words(item, cut_spans(self.words(item), cuts)) if isinstance(item, dict) else item
