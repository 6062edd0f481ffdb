"""Graders: how they are found and set up, and what a verdict becomes."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest

from comparing import answer, trajectory, turn
from retcon.core.errors import InfrastructureFault, RecipeError
from retcon.tasks.graders.judge import read_verdict as judged
from retcon.tasks.graders.mean import MeanGrader
from retcon.tasks.grading.grading import GradeSettings, Grading, reward_of
from retcon.tasks.grading.registry import Fault, Kind, Reply, Verdict, kinds
from retcon.tasks.grading.worker import read_verdict
from retcon.tasks.registry import try_grade
from retcon.tasks.types import Task

TASK = Task("t/0", "which?", "B")


def test_graders_are_found_in_their_folder() -> None:
    assert {"math", "exact", "choice", "code", "judge", "mean"} <= set(kinds())
    assert list(kinds()) == sorted(kinds())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            GradeSettings("maths"),
            r"no grader 'maths' \(did you mean 'math'\?\); there are: choice, .*my_module:my_grade",
        ),
        (GradeSettings("function"), "grader function: give the function's import path"),
        (GradeSettings(options={"cod": {}}), "no grader 'cod'"),
        (GradeSettings(options={"code": {"second": 1}}), r"grader code: no key 'second' \(did you mean 'seconds'\?\)"),
        (GradeSettings(options={"code": {"seconds": 0}}), "grader code: seconds: .*greater than 0"),
        (GradeSettings(options={"code": {"score": "most"}}), "grader code: score: "),
        (GradeSettings("judge"), "grader judge: url: Field required"),
        (GradeSettings("mean", options={"mean": {"of": {}}}), "grader mean: of: "),
        (GradeSettings("no.dots:", options={}), "path: "),
    ],
)
def test_what_is_wrong_in_settings_is_refused_before_anything_starts(settings: GradeSettings, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        Grading(settings)


def test_rewards_are_as_the_settings_say() -> None:
    half = Verdict(0.5, False)
    assert [reward_of(half, rewards) for rewards in ("signed", "binary", "graded")] == [-1.0, 0.0, 0.5]
    assert [reward_of(Verdict.of(True), rewards) for rewards in ("signed", "binary", "graded")] == [1.0, 1.0, 1.0]
    for score in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="within"):
            Verdict(score, False)


def test_a_task_may_name_its_grader() -> None:
    async def main() -> list[object]:
        async with Grading(GradeSettings("exact")) as grading:
            chosen = replace(TASK, meta={"grader": "choice"})
            reply = trajectory("t/0/0", answer("The answer is (b)."), reward=None)
            return [(await grading.grade(task, reply)).reward for task in (TASK, chosen)]

    assert asyncio.run(main()) == [-1.0, 1.0]


@pytest.mark.parametrize("said", ["B<|im_end|>", "#### B<|eot_id|>\n", "b</s>"])
def test_the_mark_that_ends_a_turn_is_no_part_of_its_answer(said: str) -> None:
    async def main() -> float | None:
        async with Grading(GradeSettings("exact")) as grading:
            return (await grading.grade(TASK, trajectory("t/0/0", answer(said), reward=None))).reward

    assert asyncio.run(main()) == 1.0


def test_a_rollout_without_an_answer_is_wrong_and_one_that_was_lost_has_no_reward() -> None:
    async def main() -> None:
        async with Grading(GradeSettings("exact")) as grading:
            ended = replace(trajectory("t/0/0", turn("1", "1"), reward=None), stop="turns")
            assert (await grading.grade(TASK, ended)).reward == -1.0
            lost = replace(ended, stop="infrastructure")
            assert await grading.grade(TASK, lost) == lost

    asyncio.run(main())


@dataclass
class Raising:
    error: Exception

    async def grade(self, task: Task, reply: Reply) -> Verdict:
        raise self.error

    async def check(self, task: Task) -> None:
        """Nothing to be wrong with."""

    async def close(self) -> None:
        """Nothing to end."""


def test_why_a_rollout_could_not_be_graded_is_told() -> None:
    told: list[tuple[str, str]] = []

    async def main() -> None:
        async with Grading(GradeSettings("exact")) as grading:
            odd = replace(TASK, id="t/1", meta={"grader": "odd"})
            grading._graders["odd"] = Raising(KeyError("mood"))
            made = trajectory("t/1/0", answer("B"), reward=None)
            lost = await try_grade(odd, made, grading.reward, lambda *said: told.append(said))
            assert (lost.reward, lost.stop) == (None, "infrastructure")
            assert await try_grade(odd, lost, grading.reward, lambda *said: told.append(said)) == lost

    asyncio.run(main())
    assert told == [("t/1/0", "odd: it raised KeyError: 'mood'")]


@pytest.mark.parametrize("error", [InfrastructureFault("gone"), ValueError("odd"), ZeroDivisionError("by nought")])
def test_a_grader_that_raises_costs_its_rollout_alone(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Grading(GradeSettings("exact")) as grading:
            right = trajectory("t/0/0", answer("B"), reward=None)
            odd = replace(TASK, id="t/1", meta={"grader": "odd"})
            grading._graders["odd"] = Raising(error)
            lost, fine = await asyncio.gather(grading.judge(odd, right), grading.judge(TASK, right))
            assert (lost[0].reward, lost[0].stop) == (None, "infrastructure")
            assert isinstance(lost[1], Fault)
            assert str(error) in lost[1].why
            assert fine[0].reward == 1.0

    asyncio.run(main())


@dataclass
class Giving:
    score: float

    async def grade(self, task: Task, reply: Reply) -> Verdict:
        return Verdict(self.score, self.score == 1.0)

    async def check(self, task: Task) -> None:
        """Nothing to be wrong with."""

    async def close(self) -> None:
        """Nothing to end."""


def test_a_mean_is_weighted() -> None:
    async def verdict(right_from: float, **parts: tuple[float, float]) -> Verdict:
        grader = MeanGrader({n: (Giving(score), weight) for n, (score, weight) in parts.items()}, right_from)
        return await grader.grade(TASK, Reply(""))

    said = asyncio.run(verdict(0.75, a=(1.0, 3.0), b=(0.0, 1.0)))
    assert (said.score, said.right, said.why) == (0.75, True, "a 1, b 0")
    assert not asyncio.run(verdict(1.0, a=(1.0, 3.0), b=(0.9, 1.0))).right
    assert asyncio.run(verdict(1.0, a=(1.0, 0.1), b=(1.0, 0.2), c=(1.0, 0.3))).right


def test_the_parts_of_a_mean_are_opened_by_name() -> None:
    async def main() -> Verdict | Fault:
        options = {"mean": {"of": {"exact": 1, "choice": 1}, "right_from": 0.5}}
        async with Grading(GradeSettings("mean", options=options)) as grading:
            return await grading.outcome(TASK, Reply("the answer is B"))

    said = asyncio.run(main())
    assert said == Verdict(0.5, True, "exact 0, choice 1", "B")


@pytest.mark.parametrize(
    ("said", "score", "right"),
    [
        (True, 1.0, True), (False, 0.0, False), (0.25, 0.25, False), (1, 1.0, True),
        ({"score": 0.5, "acc": True}, 0.5, True), ({"score": 1.0, "acc": True, "pred": "7"}, 1.0, True),
        ({"score": -1.0, "acc": False, "pred": "8"}, 0.0, False), ({"score": 0.5, "acc": 0.5}, 0.5, False),
        (-1.0, 0.0, False), ({"score": 0.5, "right": True, "why": "near"}, 0.5, True),
        ({"score": 0.0, "acc": None, "why": None}, 0.0, False),
        ({"score": 1.0, "acc": None, "right": None}, 1.0, True), (Verdict(0.3, True), 0.3, True),
        (0.2 + 0.4 + 0.3 + 0.1, 1.0, True),
    ],
)  # fmt: skip
def test_what_functions_may_return(said: Any, score: float, right: bool) -> None:
    verdict = read_verdict(said)
    assert (verdict.score, verdict.right) == (score, right)
    assert verdict.why in ("", "near")


@pytest.mark.parametrize("said", [None, "yes", [1], 2, math.nan, -math.inf, {"reward": 1}])
def test_what_functions_may_not_return(said: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        read_verdict(said)


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ("It is equal.\n\nVERDICT: right", 1.0), ("**VERDICT: wrong**\n", 0.0), ("verdict: Right.", 1.0),
        ("SCORE: 0.75", 0.75), ("VERDICT: right\nno:\nSCORE: 0", 0.0),
    ],
)  # fmt: skip
def test_a_judges_verdict_is_its_last_line(said: str, score: float) -> None:
    assert judged(said).score == score


@pytest.mark.parametrize(
    "said", ["", "right", "VERDICT: right or wrong", "VERDICT: right\nI think", "SCORE: 7", "SCORE: 1.5", "SCORE: -0"]
)
def test_an_unreadable_verdict_is_a_fault(said: str) -> None:
    with pytest.raises(InfrastructureFault, match="no verdict"):
        judged(said)


@pytest.mark.parametrize("settings", [dict, {}, None, GradeSettings()])
def test_a_grader_whose_settings_are_no_dataclass_is_refused_by_name(settings: Any) -> None:
    with pytest.raises(TypeError, match="grader contains: settings must be a dataclass with a field for each setting"):
        Kind("contains", settings, lambda *_: None)  # type: ignore[arg-type, return-value]
