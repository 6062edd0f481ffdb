"""Making demonstrations, whatever their source: candidates in stretches, until there are as many as are wanted.

What was made is kept as it comes; a run that was killed goes on, and ends with the bytes of one that was not.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from retcon.build import build_tasks
from retcon.chat.chat import Chat
from retcon.config.schema import Recipe
from retcon.core.codec import from_dict
from retcon.core.errors import CheckpointError, RecipeError, SandboxUnavailable, StorageError
from retcon.core.types import Trajectory, Turn, ids_of
from retcon.runs.folder import Values, as_now, differing, relevant
from retcon.store import jsonl
from retcon.store.jsonl import attach_children, lines_of
from retcon.store.lines import JOURNAL, SUFFIX, LineAppender
from retcon.store.whole import check_regular_file, lock_file
from retcon.tasks.registry import TaskSet
from retcon.train.demos.annotated import Progress, with_share
from retcon.train.demos.rolling import TOO_LONG
from retcon.train.demos.types import LOST, DemoSetup, Made, Source

# What was made of a file of demonstrations so far: a line for every stretch of candidates, there whole or not at all.
#
# {"made_from": {…}}
# {"stop": 64, "rejected": {"wrong to the grader": 3}, "kept": [{a trajectory}, …]}


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
            with lock_file(path):
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
        check_regular_file(self.path)
        with ExitStack() as opening:
            opening.enter_context(lock_file(self.path))
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
                kept = list(attach_children(from_dict(one, f"{self.path}, line {number}") for one in stretch["kept"]))
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
        kept = [json.loads(node) for one in made.kept for node in lines_of(one)]
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


MAX_LOST_SHARE = 0.05
"""Of a stretch of candidates, through infrastructure faults."""
FEW = 4
"""Of a stretch that may be lost whatever share of it they are, once some are kept: there are problems that a teacher
never answers, and asked again it would not either."""
PATIENCE = 2_000
"""Candidates in a row that add no demonstration, as none is kept or none of the sort that the share lacks, before a
source, which may be endless, is given up."""
WITHOUT_ROOM = 32
"""Candidates after which it is given up if every one of them had too few tokens: so will the others."""
OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Summary:
    """What became of the candidates. left_over: right ones that the wanted share had no place for."""

    kept: int
    failed: int
    rejected: Mapping[str, int]
    left_over: int = 0

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def of_dict(cls, value: Mapping[str, Any]) -> Summary:
        """Of what `as_dict` gave."""
        return cls(value["kept"], value["failed"], value["rejected"], value["left_over"])


async def demonstrations(
    recipe: Recipe,
    chat: Chat,
    *,
    tasks: TaskSet | None = None,
    on_progress: OnProgress | None = None,
) -> list[Trajectory]:
    """`recipe.sft.demonstrations` graded trajectories as [demos] says, on training problems alone, or as many as there
    are. tasks: in place of the recipe's own. on_progress gets (kept, wanted). Raises as `write_demonstrations`."""
    setup = DemoSetup(recipe, chat, lambda: tasks or build_tasks(recipe))
    async with recipe.demos.open(setup) as source:
        return await _make(recipe, source, Journal(), on_progress)


def write_demonstrations(
    recipe: Recipe,
    chat: Chat,
    out: Path,
    *,
    tasks: TaskSet | None = None,
    on_progress: OnProgress | None = None,
    on_place: Callable[[Any], None] | None = None,
    on_made: Callable[[Summary], None] | None = None,
) -> Summary:
    """The demonstrations of a recipe as JSONL in the file `out`, which is there whole or not at all; until then, what
    was made is in `out`.partial, and the same call goes on from there. tasks: in place of the recipe's own. on_place:
    told where a teacher that is a model computes. on_made: told what became of the candidates before the file is there,
    for what is to be beside it at any rate.

    Raises RecipeError for what cannot be made and where nothing is kept, CheckpointError for an `out`.partial of
    another recipe, SandboxUnavailable where faults take more than a few of a stretch and more than one in twenty, and
    what a source raises.
    """
    setup = DemoSetup(recipe, chat, lambda: tasks or build_tasks(recipe), on_place)

    async def make() -> Summary:
        async with recipe.demos.open(setup) as source:
            made_from = {**relevant(recipe, "demonstrations"), "inputs": {**source.inputs, "chat": _told_by(chat)}}
            with FileJournal(out, made_from, recipe) as journal:
                made = await _make(recipe, source, journal, on_progress)
                summary = _summary(made, journal)
                if on_made is not None:
                    on_made(summary)
                jsonl.write(out, made)
                journal.remove()
                return summary

    return asyncio.run(make())


async def _make(recipe: Recipe, source: Source, journal: Journal, on_progress: OnProgress | None) -> list[Trajectory]:
    wanted, share = recipe.sft.demonstrations, recipe.demos.failed_share
    progress = Progress(share, wanted)
    for stretch in journal.stretches:
        progress.add(stretch)
    while progress.done < wanted and (source.ends or not _given_up(progress, journal)):
        # While nothing is rejected, as with a teacher whose mistakes are kept, no candidate is made for nothing.
        count = source.chunk if journal.rejected else min(source.chunk, wanted - progress.done)
        made = await source.make(journal.stop, journal.stop + count, len(journal.kept))
        lost = made.rejected.get(LOST, 0)
        if lost > max(MAX_LOST_SHARE * made.seen, FEW if journal.kept or made.kept else 0):
            raise SandboxUnavailable(
                f"{lost} of {made.seen} demonstrations were lost to faults of the sandbox or the model; what was made "
                "before them is kept. See `retcon doctor`, then run the same command again"
            )
        if made.seen:
            journal.add(replace(made, kept=tuple(map(_repeatable, made.kept))))
            progress.add(made)
        if on_progress is not None:
            on_progress(progress.done, wanted)
        if made.seen < count:
            break
    found = with_share(journal.kept, share, wanted)
    if not found:
        raise RecipeError(f"demos: none of {journal.stop} candidates is kept: {_told(journal, share)}")
    return found


def _given_up(progress: Progress, journal: Journal) -> bool:
    return progress.fruitless >= PATIENCE or WITHOUT_ROOM <= journal.stop == journal.rejected[TOO_LONG]


def _repeatable(trajectory: Trajectory) -> Trajectory:
    """Without the seconds that its calls took, which differ from run to run: the same seed gives the same bytes."""

    def still(turn: Turn) -> Turn:
        return replace(turn, observations=tuple(replace(o, seconds=0.0) for o in turn.observations))

    return replace(trajectory, turns=tuple(map(still, trajectory.turns)))


def _summary(made: list[Trajectory], journal: Journal) -> Summary:
    failed = sum(one.failures > 0 for one in made)
    return Summary(len(made), failed, dict(journal.rejected.most_common()), len(journal.kept) - len(made))


def _told(journal: Journal, share: object) -> str:
    reasons = [f"{count} {why}" for why, count in journal.rejected.most_common()]
    if journal.kept:
        failed = sum(one.failures > 0 for one in journal.kept)
        reasons.append(f"{len(journal.kept)}, {failed} with a failed call, do not make up failed_share = {share}")
    return ", ".join(reasons) or "there are none"


def _told_by(chat: Chat) -> str:
    """What tells two chats apart: their style, and the ids of some text in it."""
    ids = list(ids_of(chat.prompt("9 + 1", "Compute.")))
    return hashlib.sha256(repr((chat.style, ids)).encode()).hexdigest()[:16]
