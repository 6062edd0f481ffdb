"""Demonstrations from annotated solutions: programs that ran, with right answers.

First every program is run unchanged; of the right ones, the wanted share then gets a call that fails first, which is
run, too: only real failures count.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from math import floor
from typing import TYPE_CHECKING, Literal

from retcon.core.errors import RecipeError
from retcon.core.seeds import derive
from retcon.core.texts import counted
from retcon.core.types import Trajectory
from retcon.tasks.types import Lesson, Task
from retcon.train.demos.rolling import TOO_LONG, WRONG, Roller, Teacher, check_python, open_roller, why_rejected
from retcon.train.demos.solutions import (
    OPEN,
    Reasoning,
    Step,
    Unusable,
    failing_variants,
    plain_number,
    read_steps,
    words_and_code,
)
from retcon.train.demos.types import DemoBatch, DemoSetup

if TYPE_CHECKING:
    from retcon.train.demos.kinds.annotated import Annotated

Share = Literal["any"] | float


def share_of(total: int, share: float) -> int:
    """Return a share of `total`, rounded half up."""
    return floor(total * share + 0.5)


def reachable(failed: int, clean: int, share: Share, wanted: int) -> int:
    """Return how many demonstrations, up to `wanted`, meet the share."""
    most = min(wanted, failed + clean)
    if share == "any":
        return most
    while most and not (share_of(most, share) <= failed and most - share_of(most, share) <= clean):
        most -= 1
    return most


@dataclass
class Progress:
    """Progress towards `wanted` demonstrations with a share of failures. done: how many meet it; fruitless: candidates
    since that last grew, kept or not."""

    share: Share
    wanted: int
    done: int = 0
    fruitless: int = 0
    _failed: int = 0
    _clean: int = 0

    def add(self, made: DemoBatch) -> None:
        """Count the next batch of candidates."""
        failed = sum(one.failures > 0 for one in made.kept)
        self._failed, self._clean = self._failed + failed, self._clean + len(made.kept) - failed
        before, self.done = self.done, reachable(self._failed, self._clean, self.share, self.wanted)
        self.fruitless = 0 if self.done > before else self.fruitless + made.seen


def with_share(found: Sequence[Trajectory], share: Share, wanted: int) -> list[Trajectory]:
    """Return the first failed and clean ones, in order, as `reachable` allows."""
    failed = sum(one.failures > 0 for one in found)
    total = reachable(failed, len(found) - failed, share, wanted)
    if share == "any":
        return list(found[:total])
    left = {True: share_of(total, share), False: total - share_of(total, share)}
    kept: list[Trajectory] = []
    for one in found:
        if left[one.failures > 0]:
            left[one.failures > 0] -= 1
            kept.append(one)
    return kept


MOST_TASKS = 1_000_000
"""Most tasks of a stream, which may be endless."""
FAILED = "the program fails in the sandbox"
OTHER = "the program prints another number than the answer"
AGAIN = "That failed. I correct it."
SLOT = "{answer}"


@dataclass(frozen=True, slots=True)
class Style:
    """Style of demonstrations. answer: the last turn, {answer} for the output. failed: the share whose first call
    fails; twice: of those, the share whose second fails too."""

    reasoning: Reasoning
    answer: str
    failed: Share
    twice: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """A problem, its program, and failing programs that come first."""

    task: Task
    steps: tuple[Step, ...]
    style: Style
    failing: tuple[str, ...] = ()

    def lesson(self, printed: Sequence[str], rng: random.Random) -> tuple[str, str | None]:
        """Return the next turn, as a `Lesson` does."""
        words, code = words_and_code(self.steps, self.style.reasoning)
        if len(printed) > len(self.failing):
            return self.style.answer.replace(SLOT, plain_number(printed[-1])), None
        if len(printed) < len(self.failing):
            code = self.failing[len(printed)]
        return (AGAIN if printed else words), code


@dataclass
class AnnotatedSource:
    """A `Source` of annotated solutions."""

    tasks: Sequence[Task]
    roller: Roller
    style: Style
    seed: int
    inputs: Mapping[str, str] = field(default_factory=dict)
    chunk: int = 128
    ends: bool = True

    async def make(self, start: int, stop: int, kept: int) -> DemoBatch:
        """Run programs of annotated solutions, then failing variants of some."""
        tasks = list(self.tasks[start:stop])
        rejected: Counter[str] = Counter()
        candidates: list[Candidate] = []
        for task in tasks:
            try:
                steps = read_steps(str(task.meta.get("reference", "")), task.question, task.answer)
            except Unusable as unusable:
                rejected[str(unusable)] += 1
                continue
            if self.roller.fits(task):
                candidates.append(Candidate(task, steps, self.style))
            else:
                rejected[TOO_LONG] += 1
        right: list[tuple[Candidate, Trajectory]] = []
        for candidate, trajectory in zip(candidates, await self._run(candidates), strict=True):
            if why := _why_rejected(trajectory):
                rejected[why] += 1
            else:
                right.append((candidate, trajectory))
        found = await self._with_failures(right, kept)
        return DemoBatch(len(tasks), tuple(found), rejected)

    async def _run(self, candidates: Sequence[Candidate]) -> list[Trajectory]:
        lessons: dict[str, Lesson] = {f"{one.task.id}/0/0": one.lesson for one in candidates}
        teacher = Teacher(lessons, self.roller.context.chat)
        return await self.roller.roll([one.task for one in candidates], teacher)

    async def _with_failures(self, right: Sequence[tuple[Candidate, Trajectory]], kept: int) -> list[Trajectory]:
        """Return the right ones, the wanted share with failures: counted over all that are kept, so that it holds at
        any stop."""
        found = [trajectory for _, trajectory in right]
        counts = {n: count for n in range(len(right)) if (count := self._failures(kept + n))}
        spare = [n for n in range(len(right)) if n not in counts]
        waiting = {n: self._broken(right[n][0], count) for n, count in counts.items()}
        while waiting:
            tried = {n: one.next() for n, one in waiting.items()}
            running = [(n, candidate) for n, candidate in tried.items() if candidate is not None]
            for n in [n for n, candidate in tried.items() if candidate is None]:
                given_up = waiting.pop(n)
                if spare:  # another one has the failure instead
                    other = spare.pop(0)
                    waiting[other] = self._broken(right[other][0], given_up.count)
            made = await self._run([candidate for _, candidate in running])
            for (n, candidate), trajectory in zip(running, made, strict=True):
                if trajectory.failures == len(candidate.failing) and why_rejected(trajectory) is None:
                    found[n] = trajectory
                    del waiting[n]
        return found

    def _broken(self, candidate: Candidate, count: int) -> _FailingVariants:
        return _FailingVariants(candidate, count, random.Random(derive("broken", self.seed, candidate.task.id)))

    def _failures(self, position: int) -> int:
        """Return how many calls fail first in the kept demonstration of this position, 0-based."""
        share = 0.0 if self.style.failed == "any" else self.style.failed
        before = share_of(position, share)
        if share_of(position + 1, share) == before:
            return 0
        return 2 if share_of(before + 1, self.style.twice) > share_of(before, self.style.twice) else 1


class _FailingVariants:
    """Variants of a candidate whose first `count` calls fail, one after another."""

    def __init__(self, candidate: Candidate, count: int, rng: random.Random) -> None:
        self._candidate, self.count = candidate, count
        _, code = words_and_code(candidate.steps, candidate.style.reasoning)
        self._variants = list(failing_variants(code, candidate.steps, rng))
        self._tried = 0

    def next(self) -> Candidate | None:
        """Return the next variant, None after the last."""
        variants = self._variants[self._tried : self._tried + self.count]
        self._tried += 1
        if len(variants) < self.count:
            return None
        return Candidate(self._candidate.task, self._candidate.steps, self._candidate.style, tuple(variants))


def _why_rejected(trajectory: Trajectory) -> str | None:
    if trajectory.failures:
        return FAILED
    why = why_rejected(trajectory)
    return OTHER if why == WRONG else why


@asynccontextmanager
async def open_annotated(section: Annotated, setup: DemoSetup) -> AsyncIterator[AnnotatedSource]:
    """Open annotated tasks. Raises RecipeError without annotated solutions, and for too few turns."""
    recipe, tasks = setup.recipe, setup.tasks()
    turns = 2 + (section.failed_share not in ("any", 0)) + bool(section.failed_twice_share)
    if recipe.sft.max_turns < turns:
        raise RecipeError(f"sft.max_turns = {recipe.sft.max_turns}: these demonstrations have up to {turns} turns")
    drawn = list(islice(tasks.train(derive("annotated", recipe.run.seed)), MOST_TASKS))
    if not any(OPEN in str(task.meta.get("reference", "")) for task in drawn):
        raise RecipeError(
            f"demos.kind = 'annotated': of {counted(len(drawn), 'training task')} of '{tasks.name}' none has a "
            "solution that is annotated, as in `She sold 48/2 = <<48/2=24>>24 clips.`; columns of worked "
            'solutions are named by task.columns, as { solution = "…" }'
        )
    style = Style(section.reasoning, section.answer, section.failed_share, section.failed_twice_share)
    async with open_roller(setup, tasks, Teacher({}, setup.chat), model="annotated") as roller:
        check_python(roller, "annotated")
        yield AnnotatedSource(drawn, roller, style, recipe.run.seed)
