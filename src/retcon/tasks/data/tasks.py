"""Task set of the tasks that were read: their order, and those held out. Implements `TaskSet`."""

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
LOOK = 100  # tasks of another task set that its identity hashes


@dataclass(frozen=True, slots=True)
class Part:
    """One source of training tasks: tasks that were read, or another task set. weight: of `TaskSource`."""

    name: str
    tasks: Sequence[Task] | TaskSet
    weight: float = 0.0

    def draw(self, seed: int) -> Iterator[Task]:
        """Draw a pass: each task once, in an order by seed and task ids, not by file."""
        if not isinstance(self.tasks, Sequence):
            return (self._named(task) for task in training_tasks(self.tasks, seed))
        return iter(sorted(self.tasks, key=lambda task: derive("order", seed, task.id)))

    def draws(self, count: int, seed: int) -> Iterator[Task]:
        """Draw `count` tasks, pass after pass; fewer only without any tasks."""
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
        """Return the evaluation tasks of another task set."""
        if isinstance(self.tasks, Sequence):
            return []
        return [self._named(task) for task in evaluation_tasks(self.tasks, count, seed)]

    def graded_by(self, grader: Grade) -> Part:
        """Return the part with this grader for an `Ungraded` task set."""
        return replace(self, tasks=self.tasks.graded_by(grader)) if isinstance(self.tasks, Ungraded) else self

    def _named(self, task: Task) -> Task:
        system = None if isinstance(self.tasks, Sequence) else self.tasks.system
        return replace(task, system=task.system or system, meta={**task.meta, FAMILY: self.name})


@dataclass(frozen=True, slots=True)
class DataTasks:
    """Tasks from data. system: of tasks without their own. parts: for training. held_out: for evaluation, besides
    those that task sets among the parts hold out themselves. identity: JSON types, for the run manifest; sets with one
    `identity["fingerprint"]` hold the same tasks. rewards, grader_options: `rewards` and `options` of
    `GradeSettings`."""

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
        """Return 16 hexadecimal digits of the tasks' content, independent of order."""
        return str(self.identity["fingerprint"])

    def source_of(self, task: Task) -> str:
        """Name a task's source as in the recipe; for a task from a file, all that match its id."""
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
        """Return whether a pass ends: it may not with task sets among the parts."""
        return all(isinstance(part.tasks, Sequence) for part in self.parts)

    @property
    def graders(self) -> frozenset[str]:
        """Return the names of the graders that its tasks name."""
        own = (part.tasks for part in self.parts if isinstance(part.tasks, Sequence))
        named = (task.meta.get("grader") for tasks in (*own, self.held_out) for task in tasks)
        theirs = (part.tasks.graders for part in self.parts if isinstance(part.tasks, Ungraded))
        return frozenset(name for name in named if isinstance(name, str) and name).union(*theirs)

    def train(self, seed: int) -> Iterator[Task]:
        """Draw one pass. Where sources have weights it is as long as all their tasks together, each source has its
        share of it, and a source smaller than its share repeats within it; task sets alone may be endless."""
        if not self.parts:  # all is held out
            return iter(())
        if len(self.parts) == 1:
            return self.parts[0].draw(seed)
        if not self.parts[0].weight:
            everything = [t for part in self.parts if isinstance(part.tasks, Sequence) for t in part.tasks]
            return Part(self.name, everything).draw(seed)
        return self._mixed(seed)

    def evaluation(self, count: int, seed: int) -> list[Task]:
        """Draw `count` held-out tasks by the seed; all, in order, if there are no more."""
        families = [part for part in self.parts if not isinstance(part.tasks, Sequence)]
        own = min(count // (len(families) + 1), len(self.held_out))
        theirs: list[Task] = []
        for n, part in enumerate(families):
            theirs += part.held_out((count - own - len(theirs)) // (len(families) - n), seed)
        own = max(own, count - len(theirs))  # some may have had fewer
        drawn = sorted(range(len(self.held_out)), key=lambda n: derive("evaluation", seed, self.held_out[n].id))
        return [self.held_out[n] for n in sorted(drawn[:own])] + theirs

    def graded_by(self, grader: Grade) -> DataTasks:
        """Return the task set with `grader` for its rollouts."""
        return replace(self, grader=grader, parts=tuple(part.graded_by(grader) for part in self.parts))

    def grade(
        self, task: Task, trajectory: Trajectory
    ) -> Trajectory | Awaitable[Trajectory]:  # awaited: `rollout_group`
        """Return the trajectory with its answer and reward. They come from the task's own task set, the grader of
        `graded_by`, or else the answer's text alone (`retcon.grade`), which refuses programs."""
        own = self.set_of(task)
        return (self.grader or _grade)(task, trajectory) if own is self else own.grade(task, trajectory)

    def set_of(self, task: Task) -> TaskSet:
        """Return the task set of a task; this one, where it was read."""
        for part in self.parts:
            if part.name == task.meta.get(FAMILY) and not isinstance(part.tasks, Sequence):
                return part.tasks
        return self

    def _mixed(self, seed: int) -> Iterator[Task]:
        length = sum(len(part.tasks) for part in self.parts if isinstance(part.tasks, Sequence))
        weights = [part.weight for part in self.parts]
        counts = split_total(length or 10_000, weights)
        drawn = [
            part.draws(n, derive("part", seed, i)) for i, (part, n) in enumerate(zip(self.parts, counts, strict=True))
        ]
        slots = [(derive("slot", seed, i, n), i) for i, count in enumerate(counts) for n in range(count)]
        for _, i in sorted(slots):
            yield from islice(drawn[i], 1)


def split_total(total: int, weights: Sequence[float]) -> list[int]:
    """Split `total` into integers in proportion to the weights (largest remainders)."""
    exact = [total * weight / sum(weights) for weight in weights]
    counts = [int(value) for value in exact]
    by_rest = sorted(range(len(exact)), key=lambda n: (counts[n] - exact[n], n))
    for n in by_rest[: total - sum(counts)]:
        counts[n] += 1
    return counts


def hash_task(task: Task) -> str:
    """Hash all fields of a task."""
    rest = [task.before] if task.before else []
    fields = [task.id, task.question, task.answer, task.system, dict(task.meta), *rest]
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()


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
