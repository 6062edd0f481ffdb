"""Rollouts of a group that somebody else's loop makes: what the loop is given, and how what it made is graded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from playing import LIMITS, TASK
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.errors import InfrastructureFault
from retcon.core.seeds import derive
from retcon.core.types import Provenance, Segment, Trajectory, Turn
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.purify.saar import Saar
from retcon.rollout.context import HarnessResult, RolloutContext, is_purified
from retcon.rollout.group import rollout_group
from retcon.tasks.types import Task

SAID = (Turn((Segment("sampled", "I think"),)), Turn((Segment("sampled", "It is 42."),), stop="answer"))


@dataclass
class Loop:
    """A harness that says SAID."""

    answer: str | None = None
    reward: float | None = None
    given: list[tuple[Task, RolloutContext, str, int, Provenance]] = field(default_factory=list)

    async def run(
        self, task: Task, context: RolloutContext, *, id: str, seed: int, provenance: Provenance
    ) -> HarnessResult:
        self.given.append((task, context, id, seed, provenance))
        made = Trajectory(id, task.id, (), SAID, reward=self.reward, stop="answer", provenance=provenance)
        return HarnessResult(made, self.answer)


Grading = Callable[[Task, Trajectory], Trajectory]


def context(loop: Loop, **changed: object) -> RolloutContext:
    engine = ScriptedEngine(ByteTokenizer(), [])
    return replace(RolloutContext(engine, Chat(engine.tokenizer), {}, LIMITS, harness=loop), **changed)


def made(where: RolloutContext, grade: Grading, count: int = 1) -> list[Trajectory]:
    return asyncio.run(rollout_group(TASK, where, count=count, seed=5, step=2, grade=grade))


def test_a_loop_is_given_the_task_and_what_names_and_seeds_the_rollout() -> None:
    loop = Loop(reward=1.0)
    where = context(loop, repair=Saar(), probability=0.5, model="m")
    armed = [is_purified(0.5, 5, 2, "t", n) for n in range(6)]
    assert set(armed) == {True, False}
    made(where, lambda _, trajectory: trajectory, count=6)
    assert loop.given == [
        (
            TASK, where if armed[n] else replace(where, repair=None), f"t/2/{n}", derive("rollout", 5, 2, "t", n),
            Provenance(step=2, index=n, model="m"),
        )
        for n in range(6)
    ]  # fmt: skip


@pytest.mark.parametrize("answer", [None, "42"])
def test_a_reward_of_the_loops_own_stands(answer: str | None) -> None:
    def grade(_: Task, trajectory: Trajectory) -> Trajectory:
        raise AssertionError

    (one,) = made(context(Loop(answer, 0.25)), grade)
    assert (one.reward, one.turns) == (0.25, SAID)


@pytest.mark.parametrize(
    ("answer", "graded"), [(None, SAID), ("42", (Turn((Segment("sampled", "42"),)),))], ids=["last message", "answer"]
)
def test_else_its_answer_is_graded_or_what_the_model_said(answer: str | None, graded: tuple[Turn, ...]) -> None:
    seen: list[tuple[Task, Trajectory]] = []

    def grade(task: Task, trajectory: Trajectory) -> Trajectory:
        seen.append((task, trajectory))
        return replace(trajectory, reward=0.5, answer="forty-two")

    (one,) = made(context(Loop(answer)), grade)
    ((task, trajectory),) = seen
    assert (task, trajectory.id, trajectory.stop, trajectory.turns) == (TASK, "t/2/0", "answer", graded)
    assert (one.turns, one.reward, one.answer) == (SAID, 0.5, "forty-two")


@pytest.mark.parametrize("answer", [None, "42"])
def test_what_cannot_be_graded_is_lost_and_says_why(answer: str | None, caplog: pytest.LogCaptureFixture) -> None:
    def grade(_: Task, trajectory: Trajectory) -> Trajectory:
        raise InfrastructureFault("no grader")

    (one,) = made(context(Loop(answer)), grade)
    assert (one.turns, one.reward, one.stop) == (SAID, None, "infrastructure")
    assert [record.getMessage() for record in caplog.records] == ["rollout t/2/0 is lost: no grader"]
