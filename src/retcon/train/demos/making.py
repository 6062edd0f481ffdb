"""Making of demonstrations from any source, in resumable batches.

Each batch is journaled; a killed run goes on, and ends with the bytes of an uninterrupted one.
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
from retcon.train.demos.types import LOST, DemoBatch, DemoSetup, Source

# Journal of a file of demonstrations: a line for every batch of candidates, whole or not at all.
#
# {"made_from": {…}}
# {"stop": 64, "rejected": {"wrong to the grader": 3}, "kept": [{a trajectory}, …]}


def has_journal(file: Path) -> bool:
    """Return whether `FILE.partial` is a journal of `file`. Raises CheckpointError for another program's file, which
    may hold hours of work: for an interrupted `retcon purify`, it names that command."""
    path = file.with_name(file.name + SUFFIX)
    if not path.is_file():
        return False
    with path.open("rb") as opened:
        first = opened.read(len(JOURNAL))
    if JOURNAL.startswith(first):  # cut off, or not written yet
        return bool(first)
    if not path.with_name(path.name + ".json").exists():
        raise CheckpointError(f"{path} is not a journal of demonstrations, and is left as it is: name another file")
    raise CheckpointError(
        f"{path} is of an interrupted `retcon purify … -o {file}`: go on with the same command and --resume, or name "
        "another file"
    )


def remove_journal(file: Path) -> None:
    """Remove the journal that a killed process left beside a finished `file`. Other files, and a journal that another
    process uses, stay."""
    with suppress(CheckpointError, StorageError, OSError):
        if has_journal(file):
            path = file.with_name(file.name + SUFFIX)
            with lock_file(path):
                path.unlink()


class Journal:
    """Journal in memory. stop: candidates done, in `batches`; `kept` and `rejected` are of these."""

    def __init__(self) -> None:
        self.stop = 0
        self.batches: list[DemoBatch] = []
        self.kept: list[Trajectory] = []
        self.rejected: Counter[str] = Counter()

    def add(self, made: DemoBatch) -> None:
        """Add the next batch."""
        self.stop += made.seen
        self.batches.append(made)
        self.kept += made.kept
        self.rejected.update(made.rejected)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: no file is open."""


class FileJournal(Journal):
    """Journal in `FILE.partial`, locked and resumed; use it in a `with`.

    made_from: its inputs, section to key to value. recipe: whose defaults complete a journal of an earlier Retcon
    (`as_now`). Raises CheckpointError if another process has it, it has other inputs, is broken, or another program's
    (see `has_journal`); RecordError or StorageError if it cannot be written.
    """

    def __init__(self, file: Path, made_from: Values, recipe: Recipe) -> None:
        super().__init__()
        self.path = file.with_name(file.name + SUFFIX)
        check_regular_file(self.path)
        with ExitStack() as opening:
            opening.enter_context(lock_file(self.path))
            has_journal(file)
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
            batches: list[Any] = [msgspec.json.decode(line) for line in lines[1:]]
            for number, batch in enumerate(batches, start=2):
                if batch["stop"] <= self.stop:
                    raise CheckpointError(
                        f"{self.path}, line {number}: candidates up to {batch['stop']} after those up to "
                        f"{self.stop}: two commands wrote it at once; remove it, and start over"
                    )
                kept = list(attach_children(from_dict(one, f"{self.path}, line {number}") for one in batch["kept"]))
                super().add(DemoBatch(batch["stop"] - self.stop, tuple(kept), batch["rejected"]))
        except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError) as error:
            raise CheckpointError(f"{self.path} is broken ({error!r}): remove it, and start over") from error
        if changed := list(differing(as_now(before, recipe, made_from), made_from)):
            raise CheckpointError(
                f"{self.path} was begun with another recipe or other data ({'; '.join(changed)}): remove it, or name "
                "another file"
            )

    def add(self, made: DemoBatch) -> None:
        """Add the next batch and write it at once."""
        kept = [json.loads(node) for one in made.kept for node in lines_of(one)]
        self._write({"stop": self.stop + made.seen, "rejected": dict(made.rejected), "kept": kept})
        super().add(made)

    def remove(self) -> None:
        """Remove the file and its lock."""
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
"""Largest share of a batch of candidates lost to infrastructure faults."""
FEW = 4
"""Candidates of a batch that may be lost in any case, once some are kept: a teacher never answers some problems."""
PATIENCE = 2_000
"""Candidates in a row without a needed demonstration, after which a source, which may be endless, is given up."""
WITHOUT_ROOM = 32
"""Candidates after which a source is given up if all of them had too few tokens."""
OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts of candidates by outcome. left_over: right ones beyond the wanted share."""

    kept: int
    failed: int
    rejected: Mapping[str, int]
    left_over: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the counts for JSON."""
        return asdict(self)

    @classmethod
    def of_dict(cls, value: Mapping[str, Any]) -> Summary:
        """Read the result of `as_dict`."""
        return cls(value["kept"], value["failed"], value["rejected"], value["left_over"])


async def demonstrations(
    recipe: Recipe,
    chat: Chat,
    *,
    tasks: TaskSet | None = None,
    on_progress: OnProgress | None = None,
) -> list[Trajectory]:
    """Make `recipe.sft.demonstrations` graded trajectories by [demos], of training problems alone; fewer at the end of
    the source. tasks: in place of the recipe's own. on_progress gets (kept, wanted). Raises as `write_demonstrations`.
    """
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
    """Write a recipe's demonstrations to `out`, as JSONL.

    Until it is whole they are in `out`.partial, from which the same call goes on. tasks: in place of the recipe's own.
    on_place: called with the placement of a teacher that is a model. on_made: called with the counts before the file is
    there, to write what must lie beside it.

    Raises RecipeError for an unusable recipe and if no candidate is kept, CheckpointError for an `out`.partial of
    another recipe, SandboxUnavailable if faults take more than a few of a batch and more than one in twenty, and what a
    source raises.
    """
    setup = DemoSetup(recipe, chat, lambda: tasks or build_tasks(recipe), on_place)

    async def make() -> Summary:
        async with recipe.demos.open(setup) as source:
            made_from = {**relevant(recipe, "demonstrations"), "inputs": {**source.inputs, "chat": _fingerprint(chat)}}
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
    for batch in journal.batches:
        progress.add(batch)
    while progress.done < wanted and (source.ends or not _is_fruitless(progress, journal)):
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
            journal.add(replace(made, kept=tuple(map(_without_times, made.kept))))
            progress.add(made)
        if on_progress is not None:
            on_progress(progress.done, wanted)
        if made.seen < count:
            break
    found = with_share(journal.kept, share, wanted)
    if not found:
        raise RecipeError(f"demos: none of {journal.stop} candidates is kept: {_reasons(journal, share)}")
    return found


def _is_fruitless(progress: Progress, journal: Journal) -> bool:
    return progress.fruitless >= PATIENCE or WITHOUT_ROOM <= journal.stop == journal.rejected[TOO_LONG]


def _without_times(trajectory: Trajectory) -> Trajectory:
    """Drop the seconds of calls, which differ from run to run, so that equal seeds give equal bytes."""

    def untimed(turn: Turn) -> Turn:
        return replace(turn, observations=tuple(replace(o, seconds=0.0) for o in turn.observations))

    return replace(trajectory, turns=tuple(map(untimed, trajectory.turns)))


def _summary(made: list[Trajectory], journal: Journal) -> Summary:
    failed = sum(one.failures > 0 for one in made)
    return Summary(len(made), failed, dict(journal.rejected.most_common()), len(journal.kept) - len(made))


def _reasons(journal: Journal, share: object) -> str:
    reasons = [f"{count} {why}" for why, count in journal.rejected.most_common()]
    if journal.kept:
        failed = sum(one.failures > 0 for one in journal.kept)
        reasons.append(f"{len(journal.kept)}, {failed} with a failed call, do not make up failed_share = {share}")
    return ", ".join(reasons) or "the source has no candidates"


def _fingerprint(chat: Chat) -> str:
    """Hash a chat's style, and the ids of some text in it."""
    ids = list(ids_of(chat.prompt("9 + 1", "Compute.")))
    return hashlib.sha256(repr((chat.style, ids)).encode()).hexdigest()[:16]
