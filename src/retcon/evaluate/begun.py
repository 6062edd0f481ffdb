"""What there is of an evaluation that was interrupted: the rollouts of each problem, kept as the last of them ends."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType

import msgspec

from retcon.core.codec import from_dict
from retcon.core.errors import CheckpointError, RecordError
from retcon.core.types import Trajectory
from retcon.evaluate.result import Result
from retcon.runs.cost import Cost, Meter
from retcon.store.alone import alone_on
from retcon.store.jsonl import line_of
from retcon.store.lines import LineAppender
from retcon.store.outputs import refuse_special
from retcon.store.partial import SUFFIX


class Begun:
    """The problems of a setting that were measured, in memory alone. meter: of what they cost."""

    def __init__(self) -> None:
        self.groups: dict[str, list[Trajectory]] = {}
        self.meter = Meter()

    def add(self, task: str, group: Sequence[Trajectory]) -> None:
        """All rollouts of a problem. One of which some were lost is not kept: it gets another chance."""
        if all(t.reward is not None for t in group):
            self.groups[task] = list(group)


class BegunFile(Begun, AbstractContextManager["BegunFile"]):
    """In `FILE.partial`, whose first line says of which evaluation it is; goes on where that stopped. No other process
    writes it meanwhile.

    Raises CheckpointError where another process is at it, or it is broken; RecordError or StorageError where it cannot
    be written.
    """

    def __init__(self, file: Path, of: Result) -> None:
        super().__init__()
        self._path = partial(file)
        refuse_special(self._path)
        with ExitStack() as opening:
            opening.enter_context(alone_on(self._path))
            # Under the lock, as it removes a line that was cut off, or that another process is writing.
            self._lines = opening.enter_context(LineAppender(self._path))
            self._read(of)
            self._open = opening.pop_all()

    def _read(self, of: Result) -> None:
        _, *lines = self._path.read_bytes().splitlines() or [b""]
        if evaluation_of(self._path) is None:
            os.truncate(self._path, 0)
            self._lines.add(msgspec.json.encode(of) + b"\n", name="what is measured")
        try:
            for number, line in enumerate(lines, start=2):
                said = msgspec.json.decode(line)
                group = [from_dict(one, f"{self._path}, line {number}") for one in said["rollouts"]]
                super().add(said["task"], group)
                self.meter = Meter(Cost(said["cpu_s"], said["wall_s"]))
        except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError, RecordError) as error:
            raise _broken(self._path, error) from error

    def add(self, task: str, group: Sequence[Trajectory]) -> None:
        super().add(task, group)
        if task in self.groups:
            cost = self.meter.read()
            about = {"task": task, "cpu_s": cost.cpu_s, "wall_s": cost.wall_s}
            line = {**about, "rollouts": [json.loads(line_of(one)) for one in group]}
            self._lines.add(msgspec.json.encode(line) + b"\n", name=f"problem {task}")

    def remove(self) -> None:
        """The setting is whole, and kept elsewhere."""
        self._path.unlink(missing_ok=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()


def partial(file: Path) -> Path:
    """Where the rollouts of a file stand until it is whole."""
    return file.with_name(file.name + SUFFIX)


def evaluation_of(path: Path) -> Result | None:
    """Of which evaluation the rollouts of a partial file are, None where it has none, as of one that another server
    than the one meant did not answer. Raises CheckpointError."""
    try:
        with path.open("rb") as file:
            line, more = file.readline(), file.read(1)
        of = msgspec.json.decode(line, type=Result) if line.endswith(b"\n") else None
        return of if more else None
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _broken(path, error) from error


def _broken(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path} is broken ({error}): remove it, and what it keeps is measured again")
