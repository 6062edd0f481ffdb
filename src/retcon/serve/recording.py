"""What goes through the endpoint, in a folder: whole conversations in one file, those that are open in one each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from retcon.core.types import Trajectory
from retcon.store import jsonl
from retcon.store.lookup import all_ids
from retcon.store.whole import PARTIAL, explained

FILE = "trajectories.jsonl"
OPEN = "open"


class Record:
    """`FOLDER/trajectories.jsonl`, a line a trajectory, and `FOLDER/open/SESSION.jsonl` until a session ends; nothing
    where folder is None.

    What a server that was killed has left open is taken in when the next one begins. numbers: by the name of a session,
    what the next trajectory of that name is numbered, where the record has some: some 200 bytes of memory a session, as
    long as the server runs. Raises RecordError, StorageError.
    """

    def __init__(self, folder: Path | None) -> None:
        self._open = None if folder is None else folder / OPEN
        self.file = None if folder is None else folder / FILE
        self.taken_in = 0
        self.numbers: dict[str, int] = {}
        if self.file is not None and self.file.is_file():
            for id in all_ids(self.file):
                self._count(id)
        if self._open is not None:
            with explained(self._open):
                self._open.mkdir(parents=True, exist_ok=True)
            for left in sorted(self._open.glob("[!.]*.jsonl")):
                self.taken_in += self.finish(left.stem, list(jsonl.read(left)))

    def keep(self, session: str, lines: Iterable[bytes]) -> None:
        """What a session has come to so far, a line a trajectory. Whole whenever this process is killed; it is not
        waited for until it is on the disk, as each answer waits for this."""
        if self._open is not None:
            target = self._open / f"{session}.jsonl"
            partial = target.with_name(f"{PARTIAL}{target.name}")
            with explained(target):
                partial.write_bytes(b"".join(lines))
                partial.replace(target)

    def finish(self, session: str, trajectories: Sequence[Trajectory]) -> int:
        """The session is over. How many of its trajectories were not on the record yet: some are where this has been
        tried before, by a server that was killed meanwhile, or on a disk that was full."""
        left = [t for t in trajectories if _parts(t.id)[1] >= self.numbers.get(session, 0)]
        if self.file is not None:
            with jsonl.Appender(self.file) as file:
                for trajectory in left:
                    file.add(trajectory)
                    self._count(trajectory.id)
        self.drop(session)
        return len(left)

    def _count(self, id: str) -> None:
        name, number = _parts(id)
        self.numbers[name] = max(self.numbers.get(name, 0), number + 1)

    def drop(self, session: str) -> None:
        if self._open is not None:
            (self._open / f"{session}.jsonl").unlink(missing_ok=True)


def _parts(id: str) -> tuple[str, int]:
    """The name of a trajectory's session, and its number there."""
    name, _, number = id.rpartition("/")
    return name, int(number) if number.isdecimal() else 0
