"""Task set of an environment, graded by its own reward. Implements `TaskSet`."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

from pydantic import Field

from retcon.config.schema import Recipe, TaskSection
from retcon.config.section import Probability, StrList
from retcon.core.errors import InfrastructureFault, RecipeError, reraise_as
from retcon.core.seeds import derive
from retcon.core.types import Observation, Status, ToolCall, ToolSpec, Trajectory
from retcon.sandbox.jail.capture import cut_middle
from retcon.tasks.environments.types import CallFailed, Environment, Rollback
from retcon.tasks.registry import RIGHT, WRONG, CountTokens
from retcon.tasks.types import Task

UNGRADED = 1 << 14
"""Most states kept for grading. That of a lost rollout is kept until another one of its id begins."""


class Sessions:
    """The sessions of an environment's trajectories."""

    def __init__(self, environment: Environment, rollback: Rollback) -> None:
        self.environment = environment
        self.rollback = rollback
        self._open: dict[str, EnvironmentSession] = {}
        self._over: OrderedDict[str, Any] = OrderedDict()

    def tools(self, output_chars: int) -> list[StatelessTool] | list[EnvironmentTool]:
        """Build the environment's tools. output_chars: most characters of an observation."""
        if self.rollback == self.environment.rollback == "unneeded":  # else its calls need a state
            return [StatelessTool(self.environment, spec, output_chars) for spec in self.environment.specs]
        return [EnvironmentTool(self, spec, output_chars) for spec in self.environment.specs]

    def forget(self, trajectory: str) -> None:
        """Drop the state of an earlier, lost rollout of this id."""
        self._over.pop(trajectory, None)

    async def open(self, task: str, trajectory: str) -> EnvironmentSession:
        """Open a trajectory's session for one more of its tools. Raises InfrastructureFault."""
        if trajectory not in self._open:
            state = await self.environment.begin(task)
            self._open[trajectory] = EnvironmentSession(self.environment, self.rollback, task, state)
        self._open[trajectory].users += 1
        return self._open[trajectory]

    async def release(self, trajectory: str) -> None:
        """Release one tool's share; after the last one the state is kept for grading."""
        session = self._open[trajectory]
        session.users -= 1
        if session.users:
            return
        del self._open[trajectory]
        self._over[trajectory] = session.state
        while len(self._over) > UNGRADED:
            self._over.popitem(last=False)
        await self.environment.end(session.state)

    async def take_final(self, task: str, trajectory: str) -> Any:
        """Take a trajectory's final state, once, for grading; a fresh state if it made no call. Raises
        InfrastructureFault."""
        if trajectory in self._over:
            return self._over.pop(trajectory)
        state = await self.environment.begin(task)
        await self.environment.end(state)
        return state


@dataclass(frozen=True, slots=True)
class _CallRecord:
    """A call with its answer, cut to `output_chars` characters."""

    call: ToolCall
    answer: Observation
    output_chars: int

    def same(self, other: Observation) -> bool:
        mine = self.answer
        return (mine.text, mine.status, mine.error_type) == (other.text, other.status, other.error_type)


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """A checkpoint: the calls that led to it, and the state where it is copied."""

    made: tuple[_CallRecord, ...]
    state: Any = None


class EnvironmentSession:
    """State of one trajectory with its checkpoints. users: tools that hold it."""

    def __init__(self, environment: Environment, rollback: Rollback, task: str, state: Any) -> None:
        self.state = state
        self.users = 0
        self._environment, self._rollback, self._task = environment, rollback, task
        self._made: tuple[_CallRecord, ...] = ()
        self._kept: dict[str, _Checkpoint] = {}
        self._named = 0
        self._at: _Checkpoint | None = None  # of the present state, which several tools share

    async def call(self, call: ToolCall, output_chars: int) -> Observation:
        self._at = None
        answer = await run_call(self._environment, self.state, call, output_chars)
        self._made = (*self._made, _CallRecord(call, answer, output_chars))
        return answer

    async def checkpoint(self) -> str:
        """Keep the present state and return its id (`retcon.tools.types.OpenTool`)."""
        if self._rollback == "impossible":
            raise InfrastructureFault(f"the state of {self._environment.name} cannot be kept (task.rollback)")
        if self._at is None:
            copy = self._rollback == "copy"
            self._at = _Checkpoint(self._made, self._copy(self.state) if copy else None)
        self._named += 1
        self._kept[str(self._named)] = self._at
        return str(self._named)

    async def rollback(self, checkpoint: str) -> None:
        kept = self._kept.get(checkpoint)
        if kept is None:
            raise InfrastructureFault(f"no checkpoint {checkpoint!r} of {self._environment.name}")
        if kept is self._at:
            return
        if self._rollback == "copy":
            self.state = self._copy(kept.state)
        elif self._rollback == "replay":
            await self._replay(kept.made)
        self._made, self._at = kept.made, kept

    async def discard(self, checkpoint: str) -> None:
        self._kept.pop(checkpoint, None)

    async def _replay(self, made: Sequence[_CallRecord]) -> None:
        await self._environment.end(self.state)
        self.state = await self._environment.begin(self._task)
        for one in made:
            again = await run_call(self._environment, self.state, one.call, one.output_chars)
            if not one.same(again):
                raise InfrastructureFault(
                    f"{self._environment.name}: the same calls were answered otherwise when they were made again, so "
                    f"that its state cannot be gone back to by task.rollback = 'replay': {one.call.name}"
                )

    def _copy(self, state: Any) -> Any:
        try:
            return self._environment.copy_state(state)
        except Exception as error:  # copying runs the user's own code
            raise InfrastructureFault(f"the state of {self._environment.name} cannot be copied: {error}") from error


async def run_call(environment: Environment, state: Any, call: ToolCall, output_chars: int) -> Observation:
    """Run a well-formed call and return its observation; `infrastructure` for the environment's own faults."""
    assert not isinstance(call.arguments, str)  # `rollout.calls` answers those
    began = time.perf_counter()
    status: Status = "ok"
    kind: str | None = None
    try:
        text = await environment.call(state, call.name, dict(call.arguments))
    except CallFailed as failed:
        text, status, kind = failed.text, failed.status, failed.error_type
    except InfrastructureFault as fault:
        text, status, kind = str(fault), "infrastructure", type(fault).__name__
    seconds = time.perf_counter() - began
    return Observation(call.id, cut_middle(text, output_chars), status, kind, seconds)


class StatelessTool:
    """Tool whose answers depend on the call alone. Implements `retcon.tools.types.Tool`."""

    def __init__(self, environment: Environment, spec: ToolSpec, output_chars: int) -> None:
        self.name, self.spec = spec.name, spec
        self._environment, self._output_chars = environment, output_chars

    async def __call__(self, call: ToolCall) -> Observation:
        return await run_call(self._environment, None, call, self._output_chars)


class EnvironmentTool:
    """Tool of an environment that begins with a task. Implements `retcon.tools.types.TaskTool`."""

    def __init__(self, sessions: Sessions, spec: ToolSpec, output_chars: int) -> None:
        self.name, self.spec = spec.name, spec
        self._sessions, self._output_chars = sessions, output_chars

    def of(self, task: str, trajectory: str, model: object = None) -> _SessionTool:
        self._sessions.forget(trajectory)
        return _SessionTool(self._sessions, self.spec, self._output_chars, task)


class _SessionTool:
    """Tool of one task. Implements `retcon.tools.types.StatefulTool`."""

    def __init__(self, sessions: Sessions, spec: ToolSpec, output_chars: int, task: str) -> None:
        self.name, self.spec = spec.name, spec
        self._sessions, self._output_chars, self._task = sessions, output_chars, task

    async def open(self, trajectory: str) -> _OpenTool:
        session = await self._sessions.open(self._task, trajectory)
        return _OpenTool(self._sessions, session, self.spec, self._output_chars, trajectory)


class _OpenTool:
    """One tool's share of a session. Implements `retcon.tools.types.OpenTool`."""

    def __init__(
        self, sessions: Sessions, session: EnvironmentSession, spec: ToolSpec, output_chars: int, trajectory: str
    ) -> None:
        self.name, self.spec = spec.name, spec
        self.checkpoint, self.rollback, self.discard = session.checkpoint, session.rollback, session.discard
        self._sessions, self._session = sessions, session
        self._output_chars, self._trajectory = output_chars, trajectory

    async def __call__(self, call: ToolCall) -> Observation:
        return await self._session.call(call, self._output_chars)

    async def close(self) -> None:
        await self._sessions.release(self._trajectory)


_RANGE = 2**63  # of `derive`


class EnvironmentTasks:
    """The tasks of an environment. evaluation_share: share held out if it has no evaluation tasks. right_from: the
    reward from which a rollout is right (1, else -1); None: rewards stay as they are."""

    system: str | None = None
    ends = True
    """All held-out rows can be evaluated on (`retcon.tasks.registry.problems_of`)."""

    def __init__(self, sessions: Sessions, *, evaluation_share: float, right_from: float | None) -> None:
        self.sessions = sessions
        self.name = sessions.environment.name
        self._share = evaluation_share
        self._right_from = right_from

    def train(self, seed: int) -> Iterator[Task]:
        """Draw each task once, in an order by the seed."""
        return iter(sorted(self._split[0], key=lambda task: derive("order", seed, task.id)))

    def evaluation(self, count: int, seed: int) -> list[Task]:
        """Draw `count` held-out tasks by the seed; all if there are no more."""
        return sorted(self._split[1], key=lambda task: derive("evaluation", seed, task.id))[:count]

    async def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        """Return the trajectory with its answer and the environment's reward. Raises InfrastructureFault without a
        reward."""
        if trajectory.stop == "infrastructure":
            return trajectory
        state = await self.sessions.take_final(task.id, trajectory.id)
        reward, answer = await self.sessions.environment.reward(task, trajectory, state)
        if self._right_from is not None:
            reward = RIGHT if reward >= self._right_from else WRONG
        return replace(trajectory, reward=reward, answer=answer)

    @cached_property
    def _split(self) -> tuple[list[Task], list[Task]]:
        """Return training and evaluation tasks; an evaluation problem never trains, whatever its id."""
        own = list(self.sessions.environment.tasks("train"))
        held_out = list(self.sessions.environment.tasks("evaluation"))
        if not own and not held_out:
            raise RecipeError(f"task.environment: {self.name} has no task at all")
        if held_out:
            asked = {_content(task) for task in held_out}
            if train := [task for task in own if _content(task) not in asked]:
                return train, held_out
            problems = self._problems([*own, *held_out])  # they may all begin alike
            evaluates = set(problems[len(own) :])
            return [task for problem, task in zip(problems, own, strict=False) if problem not in evaluates], held_out
        problems = self._problems(own)
        first: dict[object, Task] = {}
        for problem, task in zip(problems, own, strict=True):
            first.setdefault(problem, task)
        drawn = self._held_out(list(first.values()))
        ids = {task.id for task in drawn}
        return [task for problem, task in zip(problems, own, strict=True) if first[problem].id not in ids], drawn

    def _problems(self, tasks: Sequence[Task]) -> Sequence[object]:
        """Return each task's problem."""
        problems = [self._same(task) for task in tasks]
        if len(set(problems)) == 1 and not tasks[0].answer:  # equal rows: the environment draws the differences
            return [task.id for task in tasks]
        return problems

    def _same(self, task: Task) -> tuple[object, ...]:
        """Return a key of the task's problem. Without answers, all tasks may share a question (a game with a hidden
        word): their rows differ."""
        if task.answer:
            return _content(task)
        return (*_content(task), repr(sorted(self.sessions.environment.row(task.id).items())))

    def _held_out(self, own: list[Task]) -> list[Task]:
        """Draw the held-out tasks by their ids, so that added tasks move no other; at least one if any. own: the first
        task of each problem, which draws for all of them."""
        drawn = sorted((derive("held out", task.id), n) for n, task in enumerate(own))
        within = [n for place, n in drawn if place < self._share * _RANGE]
        return [own[n] for n in sorted(within or [n for _, n in drawn[: self._share > 0]])]


def _content(task: Task) -> tuple[object, ...]:
    return task.before, task.question, task.answer


class EnvironmentSection(TaskSection):
    """Base of task sections with an environment. A kind has `adapter()`."""

    rollback: Literal["auto", "unneeded", "copy", "replay", "impossible"] = Field("auto", description="how tools go "
        "back to where a failed call began: unneeded: they keep nothing; copy: their state is copied; replay: the "
        "environment begins anew and the calls before are made again; impossible: nothing can be repaired; auto: as "
        "the environment says")  # fmt: skip
    faults: StrList = Field(("ConnectionError",), description="exceptions of tools, by the names of their "
                            "classes or bases, that are not the model's fault")  # fmt: skip
    right_from: float = Field(0.0, description="reward from which a rollout is right, and gets 1, else -1; 0: rewards "
                              "stay as the environment gives them, and above 0 is right")  # fmt: skip
    evaluation_share: Probability = Field(0.1, description="of the tasks that are held out, where the environment has "
                                          "none for evaluation")  # fmt: skip

    @abstractmethod
    def adapter(self) -> Environment:
        """Open the environment. Raises RecipeError where it is unavailable, MissingExtra without its package."""

    def build(self, count_tokens: CountTokens | None = None) -> EnvironmentTasks:
        return _open_tasks(type(self), self.model_dump_json())

    def tools(self, recipe: Recipe) -> Sequence[Any]:
        """Return the environment's tools."""
        return self.build().sessions.tools(recipe.sandbox.output_chars)

    def check_rollouts(self, recipe: Recipe) -> None:
        """Raise RecipeError where the recipe restores states, which is impossible here."""
        sessions = self.build().sessions
        name, how = sessions.environment.name, sessions.rollback
        if how == "impossible" and recipe.repair.kind != "none" and sessions.environment.specs:
            raise RecipeError(
                f"{name} keeps a state that cannot be gone back to, and a repair would go on from what the failed call "
                "left: set task.rollback to replay, where the same calls are always answered alike, or to unneeded, "
                "where an answer depends on the call alone; or repair.kind, of evaluations evaluate.repair, to none"
            )

    def check_branching(self, recipe: Recipe) -> None:
        """Raise RecipeError where branching rollouts would share a state."""
        if not recipe.strategy.branching:
            return
        sessions = self.build().sessions
        name, needless = sessions.environment.name, sessions.environment.rollback == "unneeded"
        if not (needless and sessions.rollback == "unneeded"):  # else each rollout has a state
            raise RecipeError(
                f"strategy.kind = '{recipe.strategy.kind}': the state of {name} is one for all its tools, and rollouts "
                "cannot branch with it; set strategy.kind to independent"
            )


@lru_cache(maxsize=8)
def _open_tasks(kind: type[EnvironmentSection], keys: str) -> EnvironmentTasks:
    """Open the tasks, once for equal sections: grading must see the states that the tools left."""
    section = kind.model_validate_json(keys)
    with reraise_as(RecipeError, f"task.kind = '{section.kind}': the environment"):  # is made, and begun
        environment = section.adapter()
    how = environment.rollback if section.rollback == "auto" else section.rollback
    return EnvironmentTasks(
        Sessions(environment, how), evaluation_share=section.evaluation_share, right_from=section.right_from or None
    )
