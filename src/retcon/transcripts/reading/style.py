"""Records as JSON: read as Python's own writer gives it, and written in the style that they came in."""

from __future__ import annotations

import codecs
import json
import math
import re
from typing import TypeVar, cast

import msgspec

from retcon.core.errors import RecordError
from retcon.store.parquet import Record
from retcon.transcripts.reading.items import LISTS, find_items
from retcon.transcripts.types import NOT_JSON, Json

_INDENT = re.compile(rb"[\[{](?:[ \t]*\r?\n)(?P<indent>[ \t]*)")
_COLON = re.compile(rb'(?<!\\)":(?P<space>\s?)')
_SPACED = re.compile(r'(?<!\\)": ')
_HUGE = re.compile(rb"\d[eE]\+?\d{3}")
_EXPONENT = re.compile(rb"\d[eE][-+]\d")
"""Of a number that Python's own writer gives so, and msgspec otherwise."""
_HEAD = 4096
_IN_TEXT = b'[{\\"'
"""How a list of objects begins that is JSON text."""
SESSION = "session"
"""The kind of a record that is all lines of a file."""
_T = TypeVar("_T")


def decoded(record: Record) -> Json:
    """The record's value, of a session a list of those of its lines; NaN and lone surrogates, which no standard knows,
    are read, and so is a list of messages that is JSON text. Raises RecordError."""
    return decoded_with_standard(record)[0]


def decoded_with_standard(record: Record) -> tuple[Json, bool]:
    """What `decoded` gives, and whether it is plain that the record is standard JSON of just this value."""
    if record.kind == SESSION:
        return [decoded(line) for line in _lines_of(record)], False
    try:
        value: Json = msgspec.json.decode(record.data)
        return (_unpacked(value), False) if _IN_TEXT in record.data else (value, True)
    except RecursionError:
        raise RecordError(f"{record.where}: nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        try:
            value = json.loads(record.data)
            return _unpacked(value) if _IN_TEXT in record.data else value, False
        except (ValueError, RecursionError):
            raise RecordError(f"{record.where}: not JSON: {error}") from error


def encoded(value: Json, like: Record) -> bytes:
    """A new value of a record, in the style that the record has: indentation, spaces, escapes, ends of lines; NaN as it
    was, and numbers beyond all floats as such a number. Of a session, lines whose values stay are the very bytes."""
    if like.kind == SESSION:
        return _session(value, like)
    like = like._replace(data=like.data.removeprefix(codecs.BOM_UTF8))
    if _IN_TEXT in like.data:
        value = _packed(value, like.data)
    head = like.data.lstrip()[:_HEAD]
    broken = _INDENT.match(head)
    colon = _COLON.search(head)
    spaced = colon is not None and colon["space"] != b""
    ascii_only = like.data.isascii() and b"\\u" in like.data
    newline = "\r\n" if like.data.endswith(b"\r\n") or (broken is not None and b"\r" in broken[0]) else "\n"
    end = newline.encode() if like.kind == "line" else like.data[len(like.data.rstrip()) :]
    exponents = spaced and (b"e-" in like.data or b"e+" in like.data) and _EXPONENT.search(like.data)
    if broken is None and not ascii_only and not exponents:
        try:
            data = msgspec.json.encode(value)
            if b"null" not in data or is_finite(like.data) or not has_nan(value):
                return (msgspec.json.format(data, indent=0) if spaced else data) + end
        except (UnicodeEncodeError, OverflowError, msgspec.MsgspecError):
            pass  # a lone surrogate, a whole number of more than 64 bits
    separators = (", ", ": ") if spaced else (",", ":")
    base, step = "", None
    if broken is not None:
        base = (like.lead.rpartition(b"\n")[2] if b"\n" in like.lead else b"").decode()
        step = broken["indent"].decode().removeprefix(base) or " "
        separators = (",", separators[1])
    text = _text(value, ascii_only, separators, step)
    if "Infinity" in text and b"Infinity" not in like.data:
        beyond = _beyond(like.data)
        text = _text(_spelt(value, beyond), ascii_only, separators, step)
        text = text.replace(f'"{beyond}"', beyond).replace(f'"-{beyond}"', f"-{beyond}")
    return text.replace("\n", newline + base).encode("utf-8", "replace") + end


def _unpacked(value: Json) -> Json:
    """The record with its list of messages itself where that is JSON text (SWE-smith's rows)."""
    lists = {name: listed for name, text in _written(value) if (listed := _messages_in(name, text)) is not None}
    return {**value, **lists} if lists and isinstance(value, dict) else value


def _packed(value: Json, data: bytes) -> Json:
    """The record with lists as JSON text that were such in `data`."""
    if not isinstance(value, dict) or not any(isinstance(value.get(name), list) for name in LISTS):
        return value
    texts = {name: text for name, text in _written(json.loads(data)) if isinstance(value.get(name), list)}
    again = {
        name: _text(value[name], text.isascii(), (", ", ": ") if _SPACED.search(text[:_HEAD]) else (",", ":"), None)
        for name, text in texts.items()
    }
    return {**value, **again}


def _written(value: Json) -> list[tuple[str, str]]:
    """The texts of a record where lists of messages may be."""
    record = value if isinstance(value, dict) else {}
    return [(name, text) for name in LISTS if isinstance(text := record.get(name), str) and text[:1] in "[ \n"]


def _messages_in(name: str, text: str) -> Json:
    try:
        listed: Json = msgspec.json.decode(text)
    except NOT_JSON:
        return None
    return listed if find_items({name: listed}) is not None else None


def _lines_of(record: Record) -> list[Record]:
    """The lines of a session, each as a record."""
    lines = enumerate(record.data.splitlines(keepends=True), record.number)
    return [Record(line, number, record.file) for number, line in lines if not line.isspace()]


def _session(value: Json, like: Record) -> bytes:
    lines = _lines_of(like)
    kept = {repr(decoded(line)): line.data for line in lines}
    items = value if isinstance(value, list) else [value]
    written = [kept.get(repr(item)) or encoded(item, lines[0]) for item in items]
    return b"".join(line if line.endswith(b"\n") else line + b"\n" for line in written)


def _text(value: Json, ascii_only: bool, separators: tuple[str, str], indent: str | None) -> str:
    text = json.dumps(value, ensure_ascii=ascii_only, separators=separators, indent=indent)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate is kept as the escape that it came as
        text = json.dumps(value, ensure_ascii=True, separators=separators, indent=indent)
    return text


def _beyond(data: bytes) -> str:
    """A number beyond all floats that stands nowhere in the data."""
    beyond = "1e999"
    while beyond.encode() in data:
        beyond += "9"
    return beyond


def _spelt(value: Json, beyond: str) -> Json:
    """The value with the text of a number in the place of each that is infinite."""
    if isinstance(value, dict):
        return {key: _spelt(one, beyond) for key, one in value.items()}
    if isinstance(value, list):
        return [_spelt(one, beyond) for one in value]
    if isinstance(value, float) and math.isinf(value):
        return beyond if value > 0 else f"-{beyond}"
    return value


def is_finite(data: bytes) -> bool:
    """Whether it is plain from its bytes that no number in a record is beyond standard JSON."""
    return b"NaN" not in data and b"Infinity" not in data and _HUGE.search(data) is None


def has_nan(value: Json) -> bool:
    """Whether a number in it is not finite."""
    if isinstance(value, dict):
        return any(map(has_nan, value.values()))
    if isinstance(value, list | tuple):
        return any(map(has_nan, value))
    return isinstance(value, float) and not math.isfinite(value)


def without_nan(value: _T) -> _T:
    """The same with None for every number that is not finite."""
    if isinstance(value, dict):
        return cast(_T, {key: without_nan(one) for key, one in value.items()})
    if isinstance(value, list | tuple):
        return cast(_T, type(value)(without_nan(one) for one in value))
    return cast(_T, None) if isinstance(value, float) and not math.isfinite(value) else value
