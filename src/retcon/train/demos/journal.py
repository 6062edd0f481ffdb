"""What was made of a file of demonstrations so far: a line for every stretch of candidates, there whole or not at all.

{"made_from": {…}}
{"stop": 64, "rejected": {"wrong to the grader": 3}, "kept": [{a trajectory}, …]}
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from retcon.config.schema import Recipe
from retcon.core.codec import from_dict
from retcon.core.errors import CheckpointError, StorageError
from retcon.core.types import Trajectory
from retcon.runs.comparing import Values, as_now, differing
from retcon.store.alone import alone_on
from retcon.store.jsonl import line_of
from retcon.store.lines import LineAppender
from retcon.store.outputs import refuse_special
from retcon.store.partial import JOURNAL, SUFFIX
from retcon.train.demos.types import Made


def begun(file: Path) -> bool:
    """Whether `file` is being made, and `FILE.partial` is the journal of it. Raises CheckpointError where that is
    somebody else's, who may have put hours into it: of an interrupted `retcon purify`, it names that command."""
    path = file.with_name(file.name + SUFFIX)
    if not path.is_file():
        return False
    with path.open("rb") as opened:
        first = opened.read(len(JOURNAL))
    if JOURNAL.startswith(first):  # cut off, or not written yet
        return bool(first)
    if not path.with_name(path.name + ".json").exists():
        raise CheckpointError(f"{path} is no journal of demonstrations, and is left as it is: name another file")
    raise CheckpointError(
        f"{path} is what `retcon purify … -o {file}` had done when it stopped: go on with the same command and "
        "--resume, or name another file"
    )


def clear(file: Path) -> None:
    """Remove the journal of a `file` that is made, which a process that was killed may have left beside it. One that
    another process is at, or that is none, stays."""
    with suppress(CheckpointError, StorageError, OSError):
        if begun(file):
            path = file.with_name(file.name + SUFFIX)
            with alone_on(path):
                path.unlink()


class Journal:
    """In memory. stop: candidates that were gone through, in `stretches`; `kept` and `rejected` are of these."""

    def __init__(self) -> None:
        self.stop = 0
        self.stretches: list[Made] = []
        self.kept: list[Trajectory] = []
        self.rejected: Counter[str] = Counter()

    def add(self, made: Made) -> None:
        """The next stretch."""
        self.stop += made.seen
        self.stretches.append(made)
        self.kept += made.kept
        self.rejected.update(made.rejected)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open."""


class FileJournal(Journal):
    """In `FILE.partial`, which goes on where it stopped, and which no other process writes meanwhile; use it in a
    `with`.

    made_from: of what, section to key to value. recipe: that this is part of, by whose defaults a journal of an earlier
    Retcon is read (`as_now`). Raises CheckpointError where another process is at it, where it was begun with something
    else, is broken, or somebody else's (see `begun`); RecordError or StorageError where it cannot be written.
    """

    def __init__(self, file: Path, made_from: Values, recipe: Recipe) -> None:
        super().__init__()
        self.path = file.with_name(file.name + SUFFIX)
        refuse_special(self.path)
        with ExitStack() as opening:
            opening.enter_context(alone_on(self.path))
            begun(file)
            # Under the lock, as it removes a line that was cut off, or that another process is writing.
            self._lines = opening.enter_context(LineAppender(self.path))
            self._read(made_from, recipe)
            self._open = opening.pop_all()

    def _read(self, made_from: Values, recipe: Recipe) -> None:
        lines = self.path.read_bytes().splitlines()
        if not lines:
            self._write({"made_from": made_from})
            return
        try:
            before = msgspec.json.decode(lines[0], type=dict[str, dict[str, dict[str, Any]]])["made_from"]
            stretches: list[Any] = [msgspec.json.decode(line) for line in lines[1:]]
            for number, stretch in enumerate(stretches, start=2):
                if stretch["stop"] <= self.stop:
                    raise CheckpointError(
                        f"{self.path}, line {number}: candidates up to {stretch['stop']} after those up to "
                        f"{self.stop}: two commands wrote it at once; remove it, and start over"
                    )
                kept = [from_dict(one, f"{self.path}, line {number}") for one in stretch["kept"]]
                super().add(Made(stretch["stop"] - self.stop, tuple(kept), stretch["rejected"]))
        except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError) as error:
            raise CheckpointError(f"{self.path} is broken ({error!r}): remove it, and start over") from error
        if changed := list(differing(as_now(before, recipe, made_from), made_from)):
            raise CheckpointError(
                f"{self.path} was begun with another recipe or other data ({'; '.join(changed)}): remove it, or name "
                "another file"
            )

    def add(self, made: Made) -> None:
        """The next stretch, handed to the system at once."""
        kept = [json.loads(line_of(one)) for one in made.kept]
        self._write({"stop": self.stop + made.seen, "rejected": dict(made.rejected), "kept": kept})
        super().add(made)

    def remove(self) -> None:
        """The file is no longer needed."""
        self.path.unlink(missing_ok=True)
        self._open.close()

    def _write(self, line: Mapping[str, object]) -> None:
        text = json.dumps(line, ensure_ascii=False, separators=(",", ":"))
        self._lines.add(text.encode() + b"\n", name="what was made")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
