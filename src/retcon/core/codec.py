"""Trajectories to plain dictionaries and back; what a newer version wrote and this one does not know is kept.

Fields that have their default are left out. Unknown fields go to `extra` and are written back at the level they came
from. `Sample` has no form here: it is derived, and never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, get_args

from retcon.core.errors import RecordError, nearest
from retcon.core.types import (
    NO_PROVENANCE,
    NO_SECONDS,
    Branch,
    Cut,
    Decision,
    Kind,
    Measure,
    Observation,
    Origin,
    Provenance,
    Record,
    RepairRecord,
    Segment,
    Status,
    Stop,
    ToolCall,
    TrainingRecord,
    Trajectory,
    Turn,
    TurnStop,
)

MOST_NAMED = 6
"""Fields that a message names at most, of an object that is no trajectory."""

T = TypeVar("T")


def to_dict(trajectory: Trajectory) -> dict[str, object]:
    """The trajectory as JSON types: dictionaries, lists, text, numbers, booleans."""
    return _write(trajectory)


def from_dict(obj: object, where: str = "") -> Trajectory:
    """The trajectory that `to_dict` wrote; where: what comes first in a message, such as a file and line.

    Raises RecordError, naming the field (`turns[2].segments[0].ids`), where one is missing or of the wrong type.
    """
    return _trajectory(obj, _At(where, ""))


def _write(record: Record) -> dict[str, object]:
    required, optional = _fields_of(type(record))
    out = {name: _plain(getattr(record, name)) for name in required}
    out |= {name: _plain(value) for name, default in optional if (value := getattr(record, name)) != default}
    if extra := record.extra:
        out |= {name: value for name, value in extra.items() if name not in record.__struct_fields__}
    return out


@cache
def _fields_of(kind: type[Record]) -> tuple[Sequence[str], Sequence[tuple[str, object]]]:
    """Names of the fields without a default; and of those with one, `extra` aside, with their defaults."""
    names, defaults = kind.__struct_fields__, kind.__struct_defaults__
    first = len(names) - len(defaults)
    pairs = zip(names[first:], defaults, strict=True)
    return names[:first], [(name, default) for name, default in pairs if name != "extra"]


def _plain(value: object) -> object:
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, tuple):
        return [_write(item) for item in value] if value and isinstance(value[0], Record) else list(value)
    if isinstance(value, Record):  # as a tuple, which is many times as fast
        return _write(value)
    return dict(value) if isinstance(value, Mapping) else value


@dataclass(frozen=True, slots=True)
class _At:
    """Where in the record the reader is."""

    where: str
    path: str

    def field(self, name: str) -> _At:
        return _At(self.where, f"{self.path}.{name}" if self.path else name)

    def item(self, index: int) -> _At:
        return _At(self.where, f"{self.path}[{index}]")

    def error(self, problem: str) -> RecordError:
        return RecordError(": ".join(part for part in (self.where, self.path, problem) if part))

    def unexpected(self, expected: str, value: object) -> RecordError:
        return self.error(f"expected {expected}, found {_describe(value)}")


Read = Callable[[object, _At], T]


class _Object:
    """A JSON object being read: each field is taken once, and what is left in the end is `extra`."""

    def __init__(self, value: object, at: _At) -> None:
        if not isinstance(value, dict):
            raise at.unexpected("an object", value)
        self._left: dict[str, object] = dict(value)
        self._at = at

    def required(self, name: str, read: Read[T]) -> T:
        if name not in self._left:
            raise self._at.field(name).error(f"missing{nearest(name, self._left)}")
        return read(self._left.pop(name), self._at.field(name))

    def optional(self, name: str, read: Read[T], default: T) -> T:
        if name not in self._left:
            return default
        return read(self._left.pop(name), self._at.field(name))

    def nullable(self, name: str, read: Read[T]) -> T | None:
        value = self._left.pop(name, None)
        return None if value is None else read(value, self._at.field(name))

    def extra(self) -> dict[str, object]:
        return self._left


def _trajectory(value: object, at: _At) -> Trajectory:
    obj = _Object(value, at)
    if isinstance(value, dict) and value.keys().isdisjoint(("prompt", "turns")):
        raise at.error(f"no trajectory: it has no prompt and no turns{_but(value)}")
    return Trajectory(
        id=obj.required("id", _text),
        task=obj.required("task", _text),
        prompt=obj.required("prompt", _tuple_of(_segment)),
        turns=obj.required("turns", _tuple_of(_turn)),
        reward=obj.nullable("reward", _number),
        stop=obj.optional("stop", _choice(Stop), "answer"),
        provenance=obj.optional("provenance", _provenance, NO_PROVENANCE),
        answer=obj.nullable("answer", _text),
        origin=obj.nullable("origin", _origin),
        branch=obj.nullable("branch", _branch),
        returned=obj.nullable("returned", _text_or_number),
        selection=obj.nullable("selection", _text),
        grades=obj.nullable("grades", _flags),
        expected=obj.nullable("expected", _text),
        reason=obj.nullable("reason", _text),
        training=obj.nullable("training", _training),
        extra=obj.extra(),
    )


def _but(found: Mapping[str, object]) -> str:
    return f", but {', '.join(list(found)[:MOST_NAMED])}" if found else ""


def _branch(value: object, at: _At) -> Branch:
    obj = _Object(value, at)
    return Branch(
        parent=obj.required("parent", _text),
        root=obj.required("root", _text),
        turns=obj.required("turns", _integer),
        tokens=obj.required("tokens", _integer),
        uncertainty=obj.required("uncertainty", _number),
        rise=obj.required("rise", _number),
        measure=obj.optional("measure", _choice(Measure), "entropy"),
        extra=obj.extra(),
    )


def _origin(value: object, at: _At) -> Origin:
    obj = _Object(value, at)
    return Origin(
        source=obj.required("source", _text),
        format=obj.required("format", _text),
        record=obj.nullable("record", lambda value, _: value),
        extra=obj.extra(),
    )


def _training(value: object, at: _At) -> TrainingRecord:
    obj = _Object(value, at)
    return TrainingRecord(
        advantage=obj.nullable("advantage", _number),
        advantages=obj.nullable("advantages", _numbers),
        mask=obj.nullable("mask", _integers),
        weights=obj.nullable("weights", _numbers),
        staleness=obj.nullable("staleness", _integer),
        seconds=obj.nullable("seconds", _number),
        extra=obj.extra(),
    )


def _provenance(value: object, at: _At) -> Provenance:
    obj = _Object(value, at)
    return Provenance(
        seed=obj.nullable("seed", _integer),
        step=obj.nullable("step", _integer),
        index=obj.nullable("index", _integer),
        model=obj.nullable("model", _text),
        purified=obj.optional("purified", _flag, False),
        encoded_by=obj.nullable("encoded_by", _text),
        extra=obj.extra(),
    )


def _turn(value: object, at: _At) -> Turn:
    obj = _Object(value, at)
    return Turn(
        segments=obj.required("segments", _tuple_of(_segment)),
        calls=obj.optional("calls", _tuple_of(_call), ()),
        observations=obj.optional("observations", _tuple_of(_observation), ()),
        stop=obj.optional("stop", _choice(TurnStop), "answer"),
        abandoned=obj.optional("abandoned", _tuple_of(_turn), ()),
        repair=obj.nullable("repair", _repair),
        entropy=obj.nullable("entropy", _number),
        extra=obj.extra(),
    )


def _segment(value: object, at: _At) -> Segment:
    obj = _Object(value, at)
    kind: Kind = obj.required("kind", _choice(Kind))
    text = obj.required("text", _text)
    ids = obj.nullable("ids", _integers)
    logprobs = obj.nullable("logprobs", _numbers)
    versions = obj.nullable("versions", _integers)
    try:
        return Segment(kind, text, ids, logprobs, versions, extra=obj.extra())
    except ValueError as error:
        raise at.error(str(error)) from error


def _call(value: object, at: _At) -> ToolCall:
    obj = _Object(value, at)
    return ToolCall(
        id=obj.required("id", _text),
        name=obj.required("name", _text),
        arguments=obj.required("arguments", _arguments),
        char=obj.required("char", _integer),
        start=obj.nullable("start", _integer),
        language=obj.nullable("language", _text),
        extra=obj.extra(),
    )


def _observation(value: object, at: _At) -> Observation:
    obj = _Object(value, at)
    return Observation(
        call_id=obj.required("call_id", _text),
        text=obj.required("text", _text),
        status=obj.required("status", _choice(Status)),
        error_type=obj.nullable("error_type", _text),
        seconds=obj.optional("seconds", _number, NO_SECONDS),
        rule=obj.nullable("rule", _text),
        line=obj.nullable("line", _integer),
        no_checkpoint=obj.nullable("no_checkpoint", _text),
        extra=obj.extra(),
    )


def _repair(value: object, at: _At) -> RepairRecord:
    obj = _Object(value, at)
    return RepairRecord(
        decision=obj.required("decision", _choice(Decision)),
        attempts=obj.required("attempts", _integer),
        similarity=obj.nullable("similarity", _number),
        reason=obj.optional("reason", _text, ""),
        fresh=obj.optional("fresh", _integer, 0),
        cut=obj.optional("cut", _tuple_of(_cut), ()),
        extra=obj.extra(),
    )


def _cut(value: object, at: _At) -> Cut:
    obj = _Object(value, at)
    return Cut(
        turn=obj.required("turn", _integer),
        rule=obj.required("rule", _text),
        text=obj.required("text", _text),
        extra=obj.extra(),
    )


def _text(value: object, at: _At) -> str:
    if not isinstance(value, str):
        raise at.unexpected("text", value)
    return value


def _flag(value: object, at: _At) -> bool:
    if not isinstance(value, bool):
        raise at.unexpected("true or false", value)
    return value


def _flags(value: object, at: _At) -> Mapping[str, bool]:
    if not isinstance(value, dict):
        raise at.unexpected("an object", value)
    return {name: _flag(one, at.field(name)) for name, one in value.items()}


def _integer(value: object, at: _At) -> int:
    if type(value) is not int:  # a bool is an int to isinstance
        raise at.unexpected("a whole number", value)
    return value


def _number(value: object, at: _At) -> float:
    if type(value) is not float and type(value) is not int:
        raise at.unexpected("a number", value)
    try:
        return float(value)
    except OverflowError:
        raise at.unexpected("a number", value) from None


def _text_or_number(value: object, at: _At) -> str | float:
    if isinstance(value, str):
        return value
    if type(value) is not float and type(value) is not int:
        raise at.unexpected("text or a number", value)
    return _number(value, at)


def _arguments(value: object, at: _At) -> Mapping[str, object] | str:
    if not isinstance(value, str | dict):
        raise at.unexpected("an object or text", value)
    return value


def _choice(literal: Any) -> Read[Any]:
    """Reads one of the values of a Literal."""
    valid: tuple[str, ...] = get_args(literal)

    def read(value: object, at: _At) -> Any:
        if value not in valid:
            hint = nearest(value, valid) if isinstance(value, str) else ""
            raise at.error(f"expected one of {', '.join(valid)}, found {_describe(value)}{hint}")
        return valid[valid.index(value)]  # the very object, as a default is left out by identity

    return read


def _items(value: object, at: _At) -> list[Any]:
    if not isinstance(value, list):
        raise at.unexpected("a list", value)
    return value


def _tuple_of(read: Read[T]) -> Read[tuple[T, ...]]:
    def read_all(value: object, at: _At) -> tuple[T, ...]:
        return tuple(read(item, at.item(n)) for n, item in enumerate(_items(value, at)))

    return read_all


def _integers(value: object, at: _At) -> tuple[int, ...]:
    """As _tuple_of(_integer), with a path made only for an item that is wrong: ids are most of a record."""
    items = _items(value, at)
    if all(type(item) is int for item in items):
        return tuple(items)
    return _tuple_of(_integer)(items, at)


def _numbers(value: object, at: _At) -> tuple[float, ...]:
    items = _items(value, at)
    if all(type(item) is float for item in items):
        return tuple(items)
    return _tuple_of(_number)(items, at)


_JSON_NAMES = {type(None): "null", dict: "an object", list: "a list"}


def _describe(value: object) -> str:
    if type(value) in _JSON_NAMES:
        return _JSON_NAMES[type(value)]
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."
