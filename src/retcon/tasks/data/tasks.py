"""A task set made of what was read: which task comes when, and which are held out. Implements `TaskSet`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from retcon.core.errors import RecipeError
from retcon.core.seeds import derive
from retcon.core.texts import strip_turn_end
from retcon.core.types import Trajectory
from retcon.tasks.data.rows import short_name
from retcon.tasks.graders.text import final_answer
from retcon.tasks.grading.registry import Options
from retcon.tasks.registry import RIGHT, WRONG, Grade, Rewards, TaskSet, Ungraded, evaluation_tasks, training_tasks
from retcon.tasks.types import Task

FAMILY = "family"  # in the meta of tasks that another task set made, and grades
LOOK = 100  # tasks of another task set that its identity is told by


@dataclass(frozen=True, slots=True)
class Part:
    """One source of training tasks: those that were read, or another task set. weight: see `TaskSource`."""

    name: str
    tasks: Sequence[Task] | TaskSet
    weight: float = 0.0

    def draw(self, seed: int) -> Iterator[Task]:
        """A pass: each task once, in an order that the seed and the tasks' ids make, not their order in a file."""
        if not isinstance(self.tasks, Sequence):
            return (self._named(task) for task in training_tasks(self.tasks, seed))
        return iter(sorted(self.tasks, key=lambda task: derive("order", seed, task.id)))

    def draws(self, count: int, seed: int) -> Iterator[Task]:
        """`count` tasks, pass after pass; fewer only where there are none."""
        passed, drawn = 0, 0
        while drawn < count:
            before = drawn
            for task in islice(self.draw(derive("pass", seed, passed)), count - drawn):
                drawn += 1
                yield task
            passed += 1
            if drawn == before:
                return

    def held_out(self, count: int, seed: int) -> list[Task]:
        """Evaluation tasks of another task set."""
        if isinstance(self.tasks, Sequence):
            return []
        return [self._named(task) for task in evaluation_tasks(self.tasks, count, seed)]

    def graded_by(self, grader: Grade) -> Part:
        """The same, with a task set that leaves grading to others graded so."""
        return replace(self, tasks=self.tasks.graded_by(grader)) if isinstance(self.tasks, Ungraded) else self

    def _named(self, task: Task) -> Task:
        system = None if isinstance(self.tasks, Sequence) else self.tasks.system
        return replace(task, system=task.system or system, meta={**task.meta, FAMILY: self.name})


@dataclass(frozen=True, slots=True)
class DataTasks:
    """Tasks from data. system: of tasks that bring none. parts: what trains. held_out: what evaluates, besides what
    parts that are task sets hold out themselves. identity: JSON types, what the run manifest keeps; two sets with one
    `identity["fingerprint"]` hold the same tasks. rewards, grader_options: as in `GradeSettings`, where those are its
    `options`."""

    name: str
    system: str | None
    parts: tuple[Part, ...]
    held_out: tuple[Task, ...]
    identity: Mapping[str, Any]
    rewards: Rewards = "signed"
    grader_options: Options = field(default_factory=dict)
    grader: Grade | None = field(default=None, compare=False)

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits: of the tasks' content, whatever file or order they came in."""
        return str(self.identity["fingerprint"])

    def source_of(self, task: Task) -> str:
        """What gave one of the tasks, as the recipe names it; of what was read, all that its id may be of."""
        sources = self.identity.get("sources", ())
        sets = [source["path"] for source in sources if source["origin"] in ("family", "import")]
        read = [source["path"] for source in sources if source["path"] not in sets]
        families = (part.name for part in self.parts if not isinstance(part.tasks, Sequence))
        for name, path in zip(families, sets, strict=True):
            if name == task.meta.get(FAMILY):
                return str(path)
        alike = [path for path in read if task.id.startswith(f"{short_name(path)}/")]
        return ", ".join(alike or read) or self.name

    @property
    def ends(self) -> bool:
        """Whether a pass comes to an end: none of its parts is a task set."""
        return all(isinstance(part.tasks, Sequence) for part in self.parts)

    @property
    def graders(self) -> frozenset[str]:
        """See `Ungraded.graders`."""
        own = (part.tasks for part in self.parts if isinstance(part.tasks, Sequence))
        named = (task.meta.get("grader") for tasks in (*own, self.held_out) for task in tasks)
        theirs = (part.tasks.graders for part in self.parts if isinstance(part.tasks, Ungraded))
        return frozenset(name for name in named if isinstance(name, str) and name).union(*theirs)

    def train(self, seed: int) -> Iterator[Task]:
        """One pass. Where sources have weights it is as long as all their tasks together, each source has its share of
        it, and a source that is smaller than its share comes again within it; task sets alone may be endless."""
        if not self.parts:  # all is held out
            return iter(())
        if len(self.parts) == 1:
            return self.parts[0].draw(seed)
        if not self.parts[0].weight:
            everything = [t for part in self.parts if isinstance(part.tasks, Sequence) for t in part.tasks]
            return Part(self.name, everything).draw(seed)
        return self._mixed(seed)

    def evaluation(self, count: int, seed: int) -> list[Task]:
        """`count` tasks that are held out, drawn by the seed; all, in their order, where there are no more."""
        families = [part for part in self.parts if not isinstance(part.tasks, Sequence)]
        own = min(count // (len(families) + 1), len(self.held_out))
        theirs: list[Task] = []
        for n, part in enumerate(families):
            theirs += part.held_out((count - own - len(theirs)) // (len(families) - n), seed)
        own = max(own, count - len(theirs))  # some may have had fewer
        drawn = sorted(range(len(self.held_out)), key=lambda n: derive("evaluation", seed, self.held_out[n].id))
        return [self.held_out[n] for n in sorted(drawn[:own])] + theirs

    def graded_by(self, grader: Grade) -> DataTasks:
        """The same tasks, whose rollouts `grader` grades."""
        return replace(self, grader=grader, parts=tuple(part.graded_by(grader) for part in self.parts))

    def grade(
        self, task: Task, trajectory: Trajectory
    ) -> Trajectory | Awaitable[Trajectory]:  # awaited: `rollout_group`
        """The trajectory with its answer and reward: by the task set that the task is from, by the grader that this
        was given (`graded_by`), else by the text of the answer alone (`retcon.grade`), which refuses programs."""
        own = self.set_of(task)
        return (self.grader or _grade)(task, trajectory) if own is self else own.grade(task, trajectory)

    def set_of(self, task: Task) -> TaskSet:
        """The task set that one of the tasks is from; this one, where it was read."""
        for part in self.parts:
            if part.name == task.meta.get(FAMILY) and not isinstance(part.tasks, Sequence):
                return part.tasks
        return self

    def _mixed(self, seed: int) -> Iterator[Task]:
        length = sum(len(part.tasks) for part in self.parts if isinstance(part.tasks, Sequence))
        weights = [part.weight for part in self.parts]
        counts = shares(length or 10_000, weights)
        drawn = [
            part.draws(n, derive("part", seed, i)) for i, (part, n) in enumerate(zip(self.parts, counts, strict=True))
        ]
        slots = [(derive("slot", seed, i, n), i) for i, count in enumerate(counts) for n in range(count)]
        for _, i in sorted(slots):
            yield from islice(drawn[i], 1)


def shares(total: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to the weights, which add up to `total` (largest remainders)."""
    exact = [total * weight / sum(weights) for weight in weights]
    counts = [int(value) for value in exact]
    by_rest = sorted(range(len(exact)), key=lambda n: (counts[n] - exact[n], n))
    for n in by_rest[: total - sum(counts)]:
        counts[n] += 1
    return counts


def content(task: Task) -> str:
    """A hash of all that a task says."""
    told = [task.id, task.question, task.answer, task.system, dict(task.meta), *([task.before] if task.before else [])]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


async def _grade(task: Task, trajectory: Trajectory) -> Trajectory:
    kind = str(task.meta.get("grader", "math"))
    if kind not in ("math", "exact", "choice"):
        raise RecipeError(
            f"task {task.id} is graded by '{kind}', which runs programs: open a grader, and give its grade to graded_by"
        )
    if trajectory.stop == "infrastructure":
        return trajectory
    if not trajectory.turns or trajectory.stop != "answer":
        return replace(trajectory, answer=None, reward=WRONG)
    reply = strip_turn_end(trajectory.turns[-1].text)
    import asyncio

    from retcon.tasks.graders.plain import grade  # with the sandbox

    right = await asyncio.to_thread(grade, answer=task.answer, reply=reply, kind=kind)
    return replace(trajectory, answer=final_answer(reply), reward=RIGHT if right else WRONG)
