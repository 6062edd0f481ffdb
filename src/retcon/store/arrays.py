"""JSON arrays, item by item, with what stands between the items."""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Iterator, Sequence
from typing import IO

from retcon.core.errors import RecordError
from retcon.store.compression import read_errors, read_sound
from retcon.store.types import Record, Writer

_CHUNK = 1 << 20


def items_of(file: io.BufferedReader, name: str, tail: list[bytes]) -> Iterator[Record]:
    """The items of a JSON array, decoded from a window that grows to one item's size at most (and is cut again).

    tail: gets what stands after the last item. Raises RecordError, which names the item, for what is no JSON.
    """
    decode = codecs.getincrementaldecoder("utf-8-sig")().decode
    read = json.JSONDecoder().raw_decode
    window, at, number, ended = "", 0, 0, False
    opened = False
    lead = 0  # where what stands before the next item begins
    want = _CHUNK
    broken_file: tuple[type[Exception], ...] = (UnicodeDecodeError, *read_errors())
    with file:
        while True:
            window_end = len(window)
            while at < window_end and (window[at] in " \t\r\n" or (window[at] == "," and number and opened)):
                at += 1
            if not opened and at < window_end:
                opened, at = True, at + 1  # the bracket, which was seen before
                continue
            if at < window_end and window[at] == "]":
                try:
                    rest = window[at + 1 :] + decode(file.read(), final=True)
                except broken_file as broken:
                    raise RecordError(
                        f"{name}, item {number + 1}: the file cannot be read further: {broken}"
                    ) from broken
                if rest.strip():
                    raise RecordError(
                        f"{name}, item {number + 1}: the array is over, and more follows: {rest.strip()[:20]!r}; "
                        "lists, one a line, are read from a file that is called .jsonl"
                    )
                tail.append((window[lead : at + 1] + rest).encode())
                return
            try:
                if at == window_end:
                    raise json.JSONDecodeError("the array is not closed", window, at)
                _, end = read(window, at)
                if end == window_end and not ended:
                    raise json.JSONDecodeError("may go on", window, at)  # a number could
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                if ended:
                    raise RecordError(f"{name}, item {number + 1}: not JSON: {error}") from error
                try:
                    data = read_sound(file, want)
                    window, at, lead = window[lead:] + decode(data, final=not data), at - lead, 0
                except broken_file as broken:
                    raise RecordError(
                        f"{name}, item {number + 1}: the file cannot be read further: {broken}"
                    ) from broken
                ended = not data
                want = max(_CHUNK, len(window))
                continue
            except RecursionError:
                raise RecordError(f"{name}, item {number + 1}: nested too deeply") from None
            number += 1
            before = window[lead:at].encode()
            yield Record(window[at:end].encode("utf-8", "surrogatepass"), number, name, "item", before)
            lead = at = end


class ArrayWriter(Writer):
    """Items with the line breaks and indentation that stood between them.

    tail: what stands after the last item, filled by the time of `end`. going_on: whether records stand before, in a
    file whose writing is resumed. joined: whether it is made of several arrays, so that no one's end is the end.
    """

    def __init__(
        self, out: IO[bytes], tail: Sequence[bytes] = (), *, going_on: bool = False, joined: bool = False
    ) -> None:
        self._write = out.write
        self._tail = tail
        self._any = going_on
        self._joined = joined

    def begin(self) -> None:
        """The bracket is written with the first record."""

    def add(self, record: Record, data: bytes) -> None:
        wanted, had = (b"," if self._any else b"["), record.lead.lstrip()[:1]
        lead = record.lead.replace(had, wanted, 1) if had else wanted + b"\n"
        self._write(lead + data.removeprefix(codecs.BOM_UTF8).rstrip())  # of a document
        self._any = True

    def end(self) -> None:
        tail = self._tail[-1] if self._tail and not self._joined else b"\n]\n"
        empty = tail.lstrip().startswith(b"[")  # the whole array
        self._write(tail if self._any or empty else b"[]\n")
