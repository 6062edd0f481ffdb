"""Grading by mathematics: what is equal, and what becomes of answers that hang, eat memory or reach for the grader."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import multiprocessing
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any

import pytest

from comparing import answer, trajectory
from retcon import grade
from retcon.core.errors import InfrastructureFault
from retcon.core.types import Trajectory
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Limits
from retcon.tasks.graders.mathematics import PACKAGES, MathGrader
from retcon.tasks.grading.grading import GradeSettings
from retcon.tasks.grading.grading import Grading as Rollouts
from retcon.tasks.types import Task

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None, reason="grading by mathematics needs the [grade] extra"
)

SETTINGS = GradeSettings(options={"math": {"seconds": 5.0, "memory_mb": 512}})


def answered(text: str) -> Trajectory:
    return trajectory("t/0", answer(text), reward=None)


class Grading:
    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.sandbox = SandboxPool(workers=2, packages=PACKAGES)
        self.runner.run(self.sandbox.start())
        self.grader = MathGrader(self.sandbox, seconds=5.0, memory_mb=512)

    def equal(self, answer: str, reply: str) -> bool:
        return self.run(self.grader.equal(answer, reply))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)


@pytest.fixture(scope="module")
def grading() -> Iterator[Grading]:
    made = Grading()
    yield made
    made.run(made.grader.close())
    made.run(made.sandbox.close())
    made.runner.close()


@pytest.fixture(scope="module")
def brief(grading: Grading) -> Iterator[MathGrader]:
    made = MathGrader(grading.sandbox, at_once=1, seconds=1.0, memory_mb=512)
    yield made
    grading.run(made.close())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("6-3i", r"-3\mathrm{i} + 6"), (r"\frac{3}{2} + \frac{3}{2} i", r"\frac{3+3i}{2}"),
        (r"-128 - 128 \sqrt{3} i", r"-128-128i\sqrt{3}"), ("z = 2+i", "2 + i"), ("i^2", "-1"), (r"\frac{1}{i}", "-i"),
        (r"\sqrt{-4}", "2i"), ("(1+i, 2)", "(1 + i, 2)"), (r"\varnothing", r"\{ \}"),
        (r"\sin 30^\circ", r"\frac{1}{2}"), (r"\cos 60^\circ + i \sin 60^\circ", r"\frac{1+i\sqrt{3}}{2}"),
        (r"90^\circ", "90"),
    ],
)  # fmt: skip
def test_equal_both_ways(grading: Grading, one: str, other: str) -> None:
    """Complex numbers, empty sets and degrees, however they are spelt."""
    wider = [
        text.replace(r"\frac", r"\dfrac").replace("(", r"\left( ").replace(")", r" \right)") for text in (one, other)
    ]
    for gold, said in ((one, other), (other, one), wider):
        assert grading.equal(gold, rf"\boxed{{{said}}}"), (gold, said)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("6-3i", "3i - 6"), ("2i", "2"), ("i", "j"), ("x_i", "i"), (r"\sum_{i=1}^{n} i", "n i"),
        (r"\varnothing", "0"), (r"\varnothing", r"\{0\}"), (r"\sin 30", r"\frac{1}{2}"), ("(1,2)", r"\{1,2\}"),
        ("[1,2]", r"\{1,2\}"),
    ],
)  # fmt: skip
def test_different_both_ways(grading: Grading, one: str, other: str) -> None:
    for gold, said in ((one, other), (other, one)):
        assert not grading.equal(gold, rf"\boxed{{{said}}}"), (gold, said)


@pytest.mark.parametrize(
    ("answer", "reply"),
    [
        ("0.5", r"so it is \boxed{\frac{1}{2}}"), (r"x^2 + 2x + 1", r"\boxed{(x+1)^2}"), (r"50\%", r"\boxed{0.5}"),
        (r"(-\infty, 2]", r"\boxed{(-\infty,2]}"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}"),
        (r"\text{Monday}", r"\boxed{\text{Monday}}"), ("2", r"\boxed{1} no, wait: \boxed{2}"),
        ("52_8", r"\boxed{52_{\text{eight}}}"), (".0000672", r"\boxed{6.72 \times 10^{-5}}"),
        ("1e10", r"\boxed{10000000000}"), ("18 eggs", r"\boxed{18}"), (r"\frac{9}{11}", r"\boxed{0.\overline{81}}"),
        (r"3\text{ hours } 20\text{ minutes}", r"\boxed{3 \text{ hours and } 20 \text{ min}}"),
        (r"\frac{1}{2^{98}}", r"\boxed{\frac{2}{2^{99}}}"),
        (r"1.6\times10^{-19}\,\text{C}", r"\boxed{1.6 \cdot 10^{-19} \text{ C}}"),
        ("0", r"\boxed{\sqrt{3+2\sqrt{2}} - 1 - \sqrt{2}}"), (r"\infty", r"\boxed{+∞}"),
        (r"\frac{(10^9)!}{2}", r"\boxed{ \frac{(10^9)! }{2}}"), ("5", "<answer>5</answer>"),
        (r"\frac{1}{2}", r"<think>0.4?</think> <answer> \frac{2}{4} </answer>"), ("3.5", "The result is 3,5."),
        ("0.125", r"\boxed{0,125}"), ("3,5", r"\boxed{5, 3}"), ("1000", r"\boxed{1 000}"),
        ("1,234.5", "It is 1.234,5 kg."),
    ],
)  # fmt: skip
def test_equal(grading: Grading, answer: str, reply: str) -> None:
    assert grading.equal(answer, reply)


@pytest.mark.parametrize(
    ("answer", "reply"),
    [
        ("(1, 2)", r"\boxed{[1, 2]}"), ("2", "I do not know."), ("2", ""), ("7", r"\boxed{" + "7" * 100_000 + "}"),
        ("52_8", r"\boxed{52_9}"), (".0000672", r"\boxed{.0000673}"), ("1e-07", r"\boxed{e-7}"),
        ("18", r"\boxed{\text{18 eggs or 19}}"), (r"\frac{9}{11}", r"\boxed{0.\overline{18}}"),
        ("1 3/4", r"\boxed{\frac34}"), (r"\frac{1}{2^{98}}", r"\boxed{\frac{1}{2^{99}}}"),
        ("2^{-98}", r"\boxed{2^{-99}}"), (r"\frac{1}{20!}", r"\boxed{\frac{1}{21!}}"),
        (r"-\frac{1}{20!}", r"\boxed{\frac{1}{20!}}"),
        ("5", r"<think>So \boxed{5}? No, I forgot one.</think>The answer is 6."), ("3.5", r"\boxed{(3,5)}"),
        ("-2", r"\boxed{[-2,0]}"), ("0", r"\boxed{1 000}"), ("1", "It costs 1.234,50 €."),
    ],
)  # fmt: skip
def test_different(grading: Grading, answer: str, reply: str) -> None:
    assert not grading.equal(answer, reply)


def test_a_reply_that_takes_too_much_memory_is_wrong(grading: Grading) -> None:
    async def judged() -> bool:
        async with MathGrader(grading.sandbox, seconds=20.0, memory_mb=96) as grader:
            return await grader.equal("x^2+1", r"\boxed{10^{10^9}}")

    assert not grading.run(judged())


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["(1+x)^{10000}", r"\binom{10^9}{5\cdot 10^8}"])
def test_a_task_whose_own_answer_hangs_its_comparison_is_a_fault(
    brief: MathGrader, grading: Grading, answer: str
) -> None:
    with pytest.raises(InfrastructureFault, match="could not be graded: timeout"):
        grading.run(brief.equal(answer, r"\boxed{\pi}"))


def test_a_comparison_that_is_not_done_in_time_on_the_clock_says_nothing_of_the_reply(grading: Grading) -> None:
    class Busy(MathGrader):
        """Has CPU time enough for everything, and no more than a moment on the clock, as where many others compute."""

        def __init__(self, sandbox: SandboxPool) -> None:
            super().__init__(sandbox, memory_mb=512)
            self._limits = Limits(cpu_seconds=60.0, wall_seconds=0.3, memory_mb=512)

    async def judged() -> bool:
        async with Busy(grading.sandbox) as grader:
            return await grader.equal("x^2+1", r"\boxed{(x+y+z+w)^{200}}")

    with pytest.raises(InfrastructureFault, match="could not be graded: timeout"):
        grading.run(judged())


@pytest.mark.parametrize(
    "reply",
    [
        r"\boxed{__import__('os')._exit(0)}",
        r"\boxed{verify=lambda *a,**k: True}",
        r"\boxed{[setattr(__import__('math_verify'),'verify',lambda *a,**k:True)]}",
        'exec("import math_verify; math_verify.verify = lambda *a, **k: True")',
    ],
)
def test_an_answer_that_reaches_for_the_grader_gains_nothing(grading: Grading, reply: str) -> None:
    with contextlib.suppress(InfrastructureFault):
        assert not grading.equal("2", reply)
    assert not grading.equal("2", r"\boxed{x}")


def test_an_answer_that_nothing_can_be_read_in_is_refused(grading: Grading) -> None:
    with pytest.raises(ValueError, match="answer '' cannot be graded"):
        grading.equal("", r"\boxed{2}")


def test_a_trajectory_gets_its_reward(grading: Grading) -> None:
    task = Task("t/0", "what is half of one?", "1/2")
    right = answered(r"\boxed{0.5}")

    async def graded() -> list[Trajectory]:
        async with Rollouts(SETTINGS, sandbox=grading.sandbox) as rollouts:
            replies = (right, answered(r"\boxed{0.4}"), replace(right, stop="length"), answered(r"\boxed{9^{9^{9^9}}}"))
            return await asyncio.gather(*(rollouts.grade(task, reply) for reply in replies))

    found = grading.run(graded())
    assert [(t.reward, t.answer, t.stop) for t in found] == [
        (1.0, "0.5", "answer"), (-1.0, "0.4", "answer"), (-1.0, None, "length"), (-1.0, "9^{9^{9^9}}", "answer"),
    ]  # fmt: skip


@pytest.mark.parametrize("answer", ["", "7" * 5000, "1+" * 5_000_000 + "1"])
def test_answers_that_cannot_be_graded_are_found_before(grading: Grading, answer: str) -> None:
    async def check() -> None:
        async with Rollouts(SETTINGS, sandbox=grading.sandbox) as rollouts:
            await rollouts.check(Task("t/0", "?", r"\frac{1}{2}"))
            await rollouts.check(Task("t/1", "?", answer))

    with pytest.raises(ValueError, match=r"task t/1: answer .{0,80} cannot be graded"):
        grading.run(check())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_grades_by_itself() -> None:
    assert grade(answer="x^2-1", reply=r"\boxed{(x-1)(x+1)}")
    given, said = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        said.send(grade(answer="x^2-1", reply=r"\boxed{(x-1)(x+1)}"))

    forked = multiprocessing.get_context("fork").Process(target=child, daemon=True)
    forked.start()
    try:
        assert given.poll(60), "it waits for a thread of its parent's"
        assert given.recv() is True
    finally:
        forked.kill()
        forked.join()
