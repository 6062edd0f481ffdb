"""Failures in demonstrations of annotated solutions: in the wanted shares wherever one stops, of what can fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.types import Status, Trajectory
from retcon.engine.types import SamplingParams
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.tasks.types import Task
from retcon.tools.scripted import ScriptedTool
from retcon.train.demos.annotated import AnnotatedSource, Share, Style, wanted_of
from retcon.train.demos.rolling import Roller, Teacher
from teaching import annotated

CHAT = Chat(ByteTokenizer())


def ran(code: str) -> tuple[str, Status, str | None]:
    """What a program puts out, without a sandbox."""
    printed: list[str] = []
    try:
        exec(code, {"print": lambda *values: printed.append(" ".join(map(str, values)))})
    except (ArithmeticError, AttributeError, NameError, SyntaxError, TypeError, ValueError) as error:
        return str(error), "error", type(error).__name__
    return "\n".join(printed), "ok", None


@dataclass(frozen=True)
class Grading:
    """Right is what says the answer; of the tasks in `strict`, only without a failure."""

    strict: frozenset[str]

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        right = f"boxed{{{task.answer}}}" in trajectory.turns[-1].text
        return replace(trajectory, reward=float(right and not (task.id in self.strict and trajectory.failures)))


def made(total: int, share: Share, twice: float, *, chunk: int, strict: Sequence[int] = ()) -> list[int]:
    """The failures in each demonstration that is kept."""
    rows = annotated(total)
    tasks = [
        Task(str(n), row["question"], row["answer"].rpartition("#### ")[2], meta={"reference": row["answer"]})
        for n, row in enumerate(rows)
    ]
    limits = RolloutLimits(4000, 4)
    grading: Any = Grading(frozenset(map(str, strict)))
    context = RolloutContext(Teacher({}, CHAT), CHAT, {"python": ScriptedTool(ran)}, limits, SamplingParams())
    style = Style("comments", "So \\boxed{{answer}}.", share, twice)
    source = AnnotatedSource(tasks, Roller(context, grading, 0), style, 0)

    async def found() -> list[int]:
        kept: list[int] = []
        for start in range(0, total, chunk):
            stretch = await source.make(start, start + chunk, len(kept))
            assert not stretch.rejected
            kept += [trajectory.failures for trajectory in stretch.kept]
        return kept

    return asyncio.run(found())


@pytest.mark.parametrize(("share", "twice", "chunk"), [(0.3, 0.5, 7), (1.0, 0.25, 1), (0.5, 0.0, 30), (0.12, 1.0, 4)])
def test_both_shares_are_met_in_every_beginning_however_it_is_cut(share: float, twice: float, chunk: int) -> None:
    kept = made(30, share, twice, chunk=chunk)
    for total in range(1, 31):
        failing = sum(failures > 0 for failures in kept[:total])
        assert failing == wanted_of(total, share)
        assert sum(failures > 1 for failures in kept[:total]) == wanted_of(failing, twice)


def test_where_no_share_is_wanted_none_fails() -> None:
    assert made(5, "any", 1.0, chunk=5) == [0] * 5


@pytest.mark.parametrize(("strict", "failing"), [((), [1, 3, 6, 8]), ((3, 4), [0, 1, 6, 8]), ((0, 2, 3), [1, 4, 6, 8])])
def test_where_one_cannot_fail_as_it_should_another_one_does(strict: tuple[int, ...], failing: list[int]) -> None:
    """As the grader takes none of its repairs: the first of those that were not to fail, or the next one of them."""
    found = made(10, 0.4, 1.0, chunk=10, strict=strict)
    assert [n for n, failures in enumerate(found) if failures] == failing
    assert set(found) == {0, 2}
