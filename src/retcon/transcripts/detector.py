"""Detection of the format of a file's records."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from retcon.core.errors import RecordError
from retcon.core.texts import counted
from retcon.store.parquet import Record, Source
from retcon.transcripts.in_messages import InMessages
from retcon.transcripts.items import SESSION, SYSTEM, SYSTEMS, TEXTS, decode, find_items, has_no_items, speaker_of
from retcon.transcripts.itemwise import Itemwise, lists, objects, string
from retcon.transcripts.registry import find_formats, formats, is_feedback
from retcon.transcripts.types import Certainty, Format, Json

RECORDS, BYTES = 512, 4 << 20
"""How much of a file decides its format: of a file no larger than that, every record has the same say."""
_LEAST = 3
"""Records that are looked at whatever their size: a long prompt alone may be one transcript or the first line of
one."""
_TIMES = 8
"""So many times as much where nothing of that is a transcript: a session may begin with images, a request of which has
up to 32 MB, and with what happened before anybody spoke."""


class TornLine(RecordError):
    """The last line of a session is incomplete; number: of that line."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class FormatSample(NamedTuple):
    """source: with all its records still to come. values: those that were decoded, by the record's number."""

    source: Source
    detector: Detector
    values: dict[int, Json]


def sample_records(source: Source, format: str, *, skip_bad: bool = False) -> FormatSample:
    """Look at the first records of a file. Raises RecordError where tools were called in them in no known way (with
    `skip_bad` such records are only counted, as they come), and for one transcript that breaks off; but where only the
    last line of a session does, its records are what stands before that, and then comes a TornLine."""
    detector = Detector(format)
    head: list[Record] = []
    values: dict[int, Json] = {}
    for times in (1, _TIMES):
        broken = _read_on(source, head, values, times)
        items = list(values.values())
        # The second line may break off, where the first is no transcript by itself.
        torn = len(head) == 2 and not head[1].data.endswith(b"\n") and list(values) == [head[0].number]
        torn = torn and not detector.matches(items[0]) and not detector.is_plain(items[0])
        in_lines = source.shape == "lines" and (len(items) > 1 or torn)
        session = detector.session_format(items) if in_lines else None
        is_list = source.shape == "array" and detector.is_list(items)
        may_be_more = {"lines": detector.may_be_session, "array": detector.may_be_list}.get(source.shape)
        if session or is_list or broken or may_be_more is None or not may_be_more(items):
            break
    if session is not None:
        head, values, broken = _sessions(session, head, source.records, broken, skip_bad=skip_bad)
        source = replace(source, shape="session", records=iter(()))
    elif is_list:
        if broken is not None:
            raise broken
        data = b"".join(r.lead + r.data for r in chain(head, source.records)) + b"".join(source.tail)
        head = [Record(data, 1, head[0].file, "document")]
        values = {1: decode(head[0])}
        source = replace(source, shape="document", records=iter(()))
    detector.learn(values)
    if not skip_bad:
        _refuse_unknown(source, detector, values)
    return FormatSample(replace(source, records=_all(head, source.records, broken)), detector, values)


def _read_on(source: Source, head: list[Record], values: dict[int, Json], times: int) -> RecordError | None:
    """Read the first records until the format can be decided."""
    size = sum(len(record.data) for record in head)
    try:
        while len(head) < times * RECORDS and (size < times * BYTES or len(head) < _LEAST):
            if (record := next(source.records, None)) is None:
                break
            head.append(record)
            size += len(record.data)
            with suppress(RecordError):  # raised when it is read
                values[record.number] = decode(record)
    except RecordError as error:
        return error
    return None


def _all(head: list[Record], rest: Iterator[Record], broken: RecordError | None) -> Iterator[Record]:
    yield from head
    head.clear()
    if broken is not None:
        raise broken
    yield from rest


def _sessions(
    format: Itemwise, head: list[Record], rest: Iterator[Record], broken: RecordError | None, *, skip_bad: bool
) -> tuple[list[Record], dict[int, Json], RecordError | None]:
    """Read a file's sessions by their first lines, and the error that ended it."""
    lines = list(head)
    try:
        lines += rest if broken is None else ()
    except RecordError as error:
        broken = error
    if broken is not None and not skip_bad:
        raise broken
    items: list[Json] = []
    for line in lines:
        try:
            items.append(decode(line))
        except RecordError:
            if line is not lines[-1] or line.data.endswith(b"\n"):
                raise
            broken = TornLine(f"{line.where}: the session's last line breaks off, and is left out", line.number)
    starts = format.beginnings(items)
    records: list[Record] = []
    values: dict[int, Json] = {}
    for start, stop in zip(starts, [*starts[1:], len(items)], strict=True):
        own = lines[start:stop]
        data = b"".join(line.data for line in own)
        records.append(Record(data, own[0].number, own[0].file, SESSION))
        values[own[0].number] = items[start:stop]
    return records, values, broken


def _refuse_unknown(source: Source, detector: Detector, values: dict[int, Json]) -> None:
    """Raise RecordError where half the records have calls that cannot be read."""
    if any(detector.has_calls(value) for value in values.values()):
        return
    seen = {number: sign for number, value in values.items() if (sign := tool_use(value)) is not None}
    if not values or 2 * len(seen) < len(values):
        return
    first = min(seen)
    where = ", ".join(map(str, sorted(seen)[:8]))
    raise RecordError(
        f"{source.path}: no call can be read, though {len(seen)} of {counted(len(values), 'record')} looked at show "
        f"signs of tool use ({seen[first]}): {where}{', …' if len(seen) > 8 else ''}; its format is unknown"
        f"{nearest_format(values[first], formats())}"
    )


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
"""Types of items or blocks, in a list, that are a call or its output, of any tool. A record's own type may be any
label."""
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
    """Find what in a record shows that a tool was called: a key, a role, a type, a wording.

    What the system or a user says may explain how calls are written, or show some."""
    for key, value, role in chain([("", record, "")], _walk(record)):
        if role in SYSTEM or key in SYSTEMS:
            continue
        if key in _KEYS and value:
            return f"the key '{key}'"
        kinds = (string(one.get("type"))[:60] for one in objects(value)[:_ITEMS])
        if kind := next(filter(_KINDS.fullmatch, kinds), None):
            return f"the type '{kind}'"
        if not isinstance(value, str):
            continue
        if key in ("role", "from") and value.lower() in _ROLES:
            return f"the role '{value}'"
        text = value[:_TEXT]
        if "<" in text and (result := _RESULT.search(text)):
            return f"the tag <{result[1]}>"
        if (label := _LABEL.match(text)) and not is_feedback(text):
            return f"the label {label[1]}"
        if role in _USERS:
            continue
        if ("<" in text or "[" in text) and (special := _SPECIAL.search(text)):
            return f"the marker {special[0]}"
        if ("ction:" in text or "ACTION:" in text) and (react := _REACT.search(text) or _THOUGHT.match(text)):
            return "the words 'Action:' and 'Observation:'" if react.re is _REACT else "the word 'Action:'"
    return None


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
    hint = f" (nearest format: '{name}')" if name else ""
    return hint if find_items(record) is not None else hint + _misplaced(record, "")


def _misplaced(record: Json, where: str) -> str:
    """Find a misplaced list of messages, or one that is text."""
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
    """Yield each nested value with its key and its message's role."""
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


_SHOWN = 20
_MESSAGE_TEXTS = ("content", "value")
"""Where a message has its text."""
_TEXTS = tuple(name for name in TEXTS if name not in _MESSAGE_TEXTS)
"""Where a row of a data set has one."""


class Detector:
    """Detector of records' formats; where several match, `learn` decides for the file.

    name: `auto`, or a format's. decided: the place of the file's format among those that the name means, None while
    that is not known; main: that format. Raises RecordError for another name, with the nearest."""

    def __init__(self, name: str = "auto", decided: int | None = None) -> None:
        self._formats = find_formats(name)
        self._itemwise = [one if isinstance(one, Itemwise) else None for one in self._formats]
        self._accepting = [one.accepts if isinstance(one, InMessages) else None for one in self._formats]
        self.decided = 0 if len(self._formats) == 1 else decided
        self.name = name
        self._looked = 0
        self._unknown: Sequence[int] = ()

    @property
    def main(self) -> Format | None:
        return None if self.decided is None else self._formats[self.decided]

    def others(self, number: int) -> str:
        """For the message on a record that is no transcript: how many more there are, as far as was looked."""
        if number not in self._unknown or len(self._unknown) == 1:
            return ""
        some = ", ".join(map(str, self._unknown[:_SHOWN]))
        more = ", …" if len(self._unknown) > _SHOWN else ""
        return f"; so are {len(self._unknown)} of the first {self._looked} records: {some}{more}"

    def learn(self, records: Mapping[int, Json]) -> None:
        """Decide the file's format, from records by their numbers: the one that most of them have, each judged alone;
        their order is nothing."""
        places = {number: self._own(record) for number, record in records.items()}
        own = Counter(at for at in places.values() if at is not None)
        self._looked = len(records)
        self._unknown = [n for n, at in places.items() if at is None and not self.is_plain(records[n])]
        if own:
            self.decided = min(own, key=lambda at: (-own[at], at))

    def matches(self, record: Json) -> bool:
        """Whether any format does."""
        return self._own(record) is not None

    def session_format(self, items: Sequence[Json]) -> Itemwise | None:
        """Find the format of lines that form one session.

        None of the lines is a transcript, and their format is kept in lines. A line's text may look like a
        transcript by itself."""
        known = [item for item in items if isinstance(item, dict)]
        if len(known) < len(items):
            return None
        found = next((one for one in self._in_lines(known) if one.has_calls(known) or one.is_plain(known)), None)
        return found if found is not None and not self._any_alone(known) else None

    def may_be_session(self, items: Sequence[Json]) -> bool:
        """Whether lines may begin a session, though no one speaks in them."""
        known = [item for item in items if isinstance(item, dict)]
        refused = len(known) == len(items) and not all(map(self.is_plain, known))
        return refused and bool(self._in_lines(known)) and not self._any_alone(known)

    def may_be_list(self, items: list[Json]) -> bool:
        """Whether items of an array may begin one transcript."""
        return not any(map(self.matches, items)) and (_may_be_messages(items) or not all(map(self.is_plain, items)))

    def is_list(self, items: list[Json]) -> bool:
        """Whether the items of an array form one transcript."""
        if not items or any(map(self.matches, items)):
            return False
        plain = _may_be_messages(items) and any(speaker_of(item) == "assistant" for item in items)
        plain = plain or (self._plain(items) is not None and not any(map(_is_row, items)))
        return self.matches(items) or (
            plain and not any(find_items(item) is not None or self._plain(item) is not None for item in items)
        )

    def has_calls(self, record: Json) -> bool:
        """Whether a call with an output can be read in the record."""
        try:
            found = self._known(record)
            clean = 0 if found is None else found.clean(record)
            if clean is None and found is not None:
                return any(turn.observations for t in found.read(record, "").trajectories for turn in t.turns)
        except RecordError:
            return False
        return bool(clean)

    def format_of(self, record: Json) -> Format | None:
        """Return a record's format; None where that is open. Raises RecordError."""
        found = self._known(record)
        if found is not None or is_transcript(record):
            return found
        if self.name == "auto":
            raise RecordError(f"no transcript of any known format: {_found(record)}{nearest_format(record, formats())}")
        raise RecordError(f"no transcript of format {self.name!r}: {_found(record)}")

    def _known(self, record: Json) -> Format | None:
        """Return the record's format if it can be recognised."""
        if self.main is not None and self.main.matches(record):
            return self.main
        at = self._own(record)
        if at is not None:
            return self._formats[at]
        return None if is_transcript(record) else self._plain(record)

    def _in_lines(self, items: Sequence[dict[str, Json]]) -> list[Itemwise]:
        """Return the formats that are kept in lines and may have these items."""
        keys = set().union(*items)
        return [one for one in self._itemwise if one is not None and one.in_lines and not _lacks(one, keys)]

    def _any_alone(self, items: Iterable[Json]) -> bool:
        """Whether an item alone is a transcript with typed calls."""
        own = (self._formats[at] for item in items if (at := self._own(item)) is not None)
        return any(one.certainty <= Certainty.CALLS for one in own)

    def is_plain(self, record: Json) -> bool:
        """Whether a record is a transcript without calls."""
        return is_transcript(record) or self._plain(record) is not None

    def _plain(self, record: Json) -> Format | None:
        """Return the format of steps without calls."""
        return next((one for one in self._itemwise if one is not None and one.holds(record)), None)

    def _own(self, record: Json) -> int | None:
        """Return the place of the record's format among all, judged alone."""
        found = [items for _, items in lists(record)]  # looked for once, as many formats ask for them
        keys = set().union(*chain.from_iterable(found))
        messages = find_items(record)
        for at, (itemwise, accepts) in enumerate(zip(self._itemwise, self._accepting, strict=True)):
            if itemwise is not None:
                if not _lacks(itemwise, keys) and any(map(itemwise.has_calls, found)):
                    return at
            elif accepts is not None:
                if messages is not None and accepts(messages[1]):
                    return at
            elif self._formats[at].matches(record):
                return at
        return None


def _lacks(format: Itemwise, keys: Set[str]) -> bool:
    """Whether lists with these keys can have no call of a format."""
    return bool(format.needs) and format.needs.isdisjoint(keys)


def _may_be_messages(items: list[Json]) -> bool:
    """Whether items are such as messages by role are: rows of a data set may have a `role` or a `from` too."""
    return find_items(items) is not None and not any(map(_is_row, items))


def _is_row(item: Json) -> bool:
    if not isinstance(item, dict) or any(not isinstance(item.get(name, 0), int | float) for name in _MESSAGE_TEXTS):
        return False  # a message may have other texts of its own, such as the answer that was wanted
    return any(isinstance(item.get(name), str) for name in _TEXTS)


def is_transcript(record: Json) -> bool:
    """Whether a record has messages or a text, though no call."""
    if find_items(record) is not None or has_no_items(record):
        return True
    values = [record.get(name) for name in TEXTS] if isinstance(record, dict) else []
    return any(isinstance(t, str) for v in values for t in (v if isinstance(v, list) else [v]))


def _found(record: Json) -> str:
    if isinstance(record, dict):
        return f"an object with {', '.join(list(record)[:8]) or 'no keys'}"
    return f"found {type(record).__name__}"
