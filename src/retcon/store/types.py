"""What reading and writing other people's files is made of."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

Shape = Literal["lines", "array", "document", "log", "eval", "parquet", "dump", "session"]
"""`session`: lines that are one transcript together, or several one after another, as the logs of agents are."""
WHOLE: frozenset[Shape] = frozenset({"log", "eval", "parquet", "dump"})
"""Shapes that are written in one go: what was begun cannot be resumed."""


class Record(NamedTuple):
    """data: one JSON value, of a session several lines. number: 1-based; of a session that of its first line. file,
    kind: what it is the number of, or the member of an archive.
    lead: of an item or a sample of an array, what stands between it and the one before."""

    data: bytes
    number: int
    file: str
    kind: str = "line"
    lead: bytes = b""

    @property
    def where(self) -> str:
        """File and line, item or sample, for messages."""
        if self.kind in ("line", "item", "sample", "row"):
            return f"{self.file}, {self.kind} {self.number}"
        if self.kind == "session" and self.number > 1:
            return f"{self.file}, session from line {self.number}"
        return f"{self.file}, {self.kind}"


class Writer(Protocol):
    """Writes records in a shape; what is written by `begin`, `add` and `end` together is the file. To be inherited."""

    def begin(self) -> None: ...

    def add(self, record: Record, data: bytes) -> None:
        """data: what to write for the record; `record.data` itself where it stays as it is."""
        ...

    def end(self) -> None: ...

    def drop(self) -> None:
        """Let go of what is held, ended or not; what was written without an end is no file."""
        return


@dataclass(slots=True)
class Source:
    """A file that is being read. shape: how its records are held. read: bytes of the file so far, for progress.

    around: of a log, what stands before and after the array of its samples. tail: of an array, what stands after its
    last item, known once that was read. table: of Parquet and of a dump, the rows or samples that its writer
    needs beside their JSON.
    """

    path: Path
    shape: Shape
    records: Iterator[Record]
    read: Callable[[], int]
    around: tuple[bytes, bytes] = (b"", b"")
    tail: list[bytes] = field(default_factory=list)
    table: object = None

    def close(self) -> None:
        """Let go of the file where it has not been read to its end."""
        if isinstance(self.records, Generator):
            self.records.close()
