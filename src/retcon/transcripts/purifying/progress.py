"""How far the purification of files is, as it is written down where it stops, and checked where it goes on."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from retcon.core.errors import RecordError
from retcon.store.foreign.records import STDIN
from retcon.transcripts.purifying.assignment import Assignment


class InputChanged(RecordError):
    """What an interrupted run has read is no longer what it was: to go on would lose records, or give some twice."""


class Checksum:
    """Of records, in their order: enough to notice a change that somebody made, at a tenth of the cost of a hash."""

    def __init__(self) -> None:
        self._length = self._sum = 0

    def add(self, data: bytes) -> None:
        self._length += len(data)
        self._sum = zlib.crc32(data, self._sum)

    def __str__(self) -> str:
        return f"{self._length}:{self._sum:08x}"


@dataclass(slots=True)
class Progress:
    """How far an assignment is: `records` of input `file` are done; sizes of the partial files; counts so far. kind:
    the shape of the output of several inputs (see `writer`); written: whether a record stands in the output. before:
    bytes of the inputs before `file`; seen: the checksum of the records that are done."""

    options: dict[str, object]
    file: int = 0
    records: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    counts: list[dict[str, object]] = field(default_factory=list)
    kind: str = ""
    written: bool = False
    before: list[int] = field(default_factory=list)
    seen: str = ""

    def check(self, seen: Checksum, source: Path, kept: Path) -> None:
        """Raises InputChanged where the records that are done are no longer those of the file. kept: what says so."""
        if self.seen != str(seen):
            one = "record 1 is" if self.records == 1 else f"records 1 to {self.records} are"
            raise InputChanged(
                f"{source}: {one} not what the interrupted run has read; --resume allows for changes after that "
                f"only. Remove {kept} to start over"
            )


def load(assignment: Assignment) -> Progress:
    """How far the assignment was. Raises RecordError where nothing was kept, or of another one; InputChanged where a
    file that is done has changed."""
    path = assignment.state_path
    try:
        state = msgspec.convert(json.loads(path.read_bytes()), Progress)
    except FileNotFoundError:
        done = next((o.path for o in assignment.outputs() if o.path.exists()), None)
        if done is not None:
            raise RecordError(f"{done} is finished: nothing to resume; --force makes it again") from None
        raise RecordError(f"nothing to resume: there is no {path}; leave out --resume to start") from None
    except (ValueError, msgspec.ValidationError, OSError) as error:
        raise RecordError(f"{path} cannot be read: {error}; remove it to start over") from error
    options = json.loads(json.dumps(assignment.options()))
    # Earlier versions kept None as text.
    other = [name for name, value in options.items() if state.options.get(name) not in (value, str(value))]
    if other:
        raise RecordError(f"{path} is from a run with another {', '.join(other)}; remove it to start over")
    for source, size in zip(assignment.inputs, state.before, strict=False):
        if size_of(source) != size:
            raise InputChanged(
                f"{source} was {size:,} bytes long when the interrupted run read it, and is not now: what became of it "
                f"stands in the output. Remove {path} to start over"
            )
    return state


def size_of(source: Path) -> int:
    """Bytes of an input as it lies on the disk; 0 of one that does not."""
    return source.stat().st_size if source != STDIN and source.exists() else 0


def indented(value: object) -> bytes:
    """As JSON; lone surrogates, of programs or of files' names, as the escapes that are read back as the same."""
    try:
        return json.dumps(value, indent=2, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value, indent=2).encode()
