"""Which format the records of a file have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain

from retcon.core.errors import RecordError
from retcon.transcripts.detection.hints import nearest_format
from retcon.transcripts.reading.items import TEXTS, find_items, has_no_items
from retcon.transcripts.reading.itemwise import Itemwise, lists
from retcon.transcripts.reading.roles import speaker_of
from retcon.transcripts.registry import formats, named
from retcon.transcripts.types import Certainty, Format, Json

_SHOWN = 20
_SAID = ("content", "value")
"""Where a message has its text."""
_TEXTS = tuple(name for name in TEXTS if name not in _SAID)
"""Where a row of a data set has one."""


class Detector:
    """Finds the format of records. A record that several formats match is of its file's, which `learn` decides.

    name: `auto`, or a format's. decided: the place of the file's format among those that the name means, None while
    that is not known; main: that format. Raises RecordError for another name, with the nearest.
    """

    def __init__(self, name: str = "auto", decided: int | None = None) -> None:
        self._formats = named(name)
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
        self._unknown = [n for n, at in places.items() if at is None and not self._is_plain(records[n])]
        if own:
            self.decided = min(own, key=lambda at: (-own[at], at))

    def matches(self, record: Json) -> bool:
        """Whether any format does."""
        return self._own(record) is not None

    def is_unknown(self, record: Json) -> bool:
        """Whether a record is no transcript, judged alone."""
        return not self.matches(record) and not self._is_plain(record)

    def session_format(self, items: Sequence[Json]) -> Itemwise | None:
        """The format of the lines of a file, of which none is a transcript, if they are the items of one together, in
        a format that is kept in lines. Some may have a text that alone would pass for one."""
        known = [item for item in items if isinstance(item, dict)]
        if len(known) < len(items):
            return None
        found = next((one for one in self._in_lines(known) if one.has_calls(known) or one.is_plain(known)), None)
        return found if found is not None and not self._any_alone(known) else None

    def may_be_session(self, items: Sequence[Json]) -> bool:
        """Whether lines may be the first of such a file, though nobody speaks in them: one alone would be refused."""
        known = [item for item in items if isinstance(item, dict)]
        refused = len(known) == len(items) and not all(map(self._is_plain, known))
        return refused and bool(self._in_lines(known)) and not self._any_alone(known)

    def may_be_list(self, items: list[Json]) -> bool:
        """Whether items of an array may be the first of such a list, though they do not show it."""
        return not any(map(self.matches, items)) and (_may_be_said(items) or not all(map(self._is_plain, items)))

    def is_list(self, items: list[Json]) -> bool:
        """Whether the items of an array are those of one transcript together, messages or steps, and none is one."""
        if not items or any(map(self.matches, items)):
            return False
        plain = _may_be_said(items) and any(speaker_of(item) == "assistant" for item in items)
        plain = plain or (self._plain(items) is not None and not any(map(_is_row, items)))
        return self.matches(items) or (plain and not any(map(self._has_list, items)))

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
        """The record's format. None: it is a transcript without any call, whose format cannot be told. Raises
        RecordError where it is none."""
        found = self._known(record)
        if found is not None or is_transcript(record):
            return found
        if self.name == "auto":
            raise RecordError(f"no transcript of any known format: {_found(record)}{nearest_format(record, formats())}")
        raise RecordError(f"no transcript of format {self.name!r}: {_found(record)}")

    def _known(self, record: Json) -> Format | None:
        """The record's format, as far as it can be told."""
        if self.main is not None and self.main.matches(record):
            return self.main
        at = self._own(record)
        if at is not None:
            return self._formats[at]
        return None if is_transcript(record) else self._plain(record)

    def _in_lines(self, items: Sequence[dict[str, Json]]) -> list[Itemwise]:
        """The formats that are kept in lines, and may have such."""
        keys = set().union(*items)
        return [one for one in self._formats if isinstance(one, Itemwise) and one.in_lines and not _lacks(one, keys)]

    def _any_alone(self, items: Iterable[Json]) -> bool:
        """Whether one of the items is a transcript with calls, by more than a text."""
        own = (self._formats[at] for item in items if (at := self._own(item)) is not None)
        return any(one.certainty <= Certainty.CALLS for one in own)

    def _has_list(self, record: Json) -> bool:
        """Whether a record has messages or steps of its own, though no call is in them."""
        return find_items(record) is not None or self._plain(record) is not None

    def _is_plain(self, record: Json) -> bool:
        return is_transcript(record) or self._plain(record) is not None

    def _plain(self, record: Json) -> Format | None:
        """The format of a transcript without calls whose items are no messages by role."""
        return next((one for one in self._formats if isinstance(one, Itemwise) and one.holds(record)), None)

    def _own(self, record: Json) -> int | None:
        """The place of the record's format among all, judged alone."""
        found = [items for _, items in lists(record)]  # looked for once, as many formats ask for them
        keys = set().union(*chain.from_iterable(found))
        for at, one in enumerate(self._formats):
            if isinstance(one, Itemwise):
                if not _lacks(one, keys) and any(map(one.has_calls, found)):
                    return at
            elif one.matches(record):
                return at
        return None


def _lacks(format: Itemwise, keys: Set[str]) -> bool:
    """Whether lists with these keys can have no call of a format."""
    return bool(format.needs) and format.needs.isdisjoint(keys)


def _may_be_said(items: list[Json]) -> bool:
    """Whether items are such as messages by role are: rows of a data set may have a `role` or a `from` too."""
    return find_items(items) is not None and not any(map(_is_row, items))


def _is_row(item: Json) -> bool:
    if not isinstance(item, dict) or any(name in item and not isinstance(item[name], int | float) for name in _SAID):
        return False  # what else a message has beside its text is its own: the answer that was wanted, say
    return any(isinstance(item.get(name), str) for name in _TEXTS)


def is_transcript(record: Json) -> bool:
    """Whether a record at least has messages, be it none of them, or a text, though no call is in it."""
    if find_items(record) is not None or has_no_items(record):
        return True
    values = [record.get(name) for name in TEXTS] if isinstance(record, dict) else []
    return any(isinstance(t, str) for v in values for t in (v if isinstance(v, list) else [v]))


def _found(record: Json) -> str:
    if isinstance(record, dict):
        return f"an object with {', '.join(list(record)[:8]) or 'no keys'}"
    return f"found {type(record).__name__}"
