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
        ("6-3i", "6 - 3 i"),
        ("6-3i", r"-3\mathrm{i} + 6"),
        (r"\frac{3}{2} + \frac{3}{2} i", r"\frac{3+3i}{2}"),
        (r"-128 - 128 \sqrt{3} i", r"-128-128i\sqrt{3}"),
        ("1, i, -i", "1,i,- i"),
        ("z = 2+i", "2 + i"),
        ("i^2", "-1"),
        (r"\frac{1}{i}", "-i"),
        (r"\sqrt{-4}", "2i"),
        (r"e^{i\theta} + e^{-i\theta}", r"2\cos\theta"),
        (r"\sum_{i=1}^{n} i", r"\frac{n(n+1)}{2}"),
        ("(1+i, 2)", "(1 + i, 2)"),
        (r"\varnothing", r"\emptyset"),
        (r"\varnothing", r"\{ \}"),
        (r"\sin 30^\circ", r"\frac{1}{2}"),
        (r"\frac{\cos(60^{\circ})}{2}", "0.25"),
        (r"\cos 60^\circ + i \sin 60^\circ", r"\frac{1+i\sqrt{3}}{2}"),
        (r"90^\circ", "90"),
    ],
)
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
        ("6-3i", "6+3i"),
        ("6-3i", "3i - 6"),
        ("2i", "2"),
        ("i", "j"),
        ("x_i", "i"),
        (r"\sum_{i=1}^{n} i", "-1"),
        (r"\sum_{i=1}^{n} i", "n i"),
        (r"\sqrt{-4}", "2"),
        (r"\varnothing", "0"),
        (r"\varnothing", r"\{0\}"),
        (r"\sin 10", r"\sin 10^\circ"),
        (r"\sin 30", r"\frac{1}{2}"),
        ("(1,2)", r"\{1,2\}"),
        ("[1,2]", r"\{1,2\}"),
    ],
)
def test_different_both_ways(grading: Grading, one: str, other: str) -> None:
    for gold, said in ((one, other), (other, one)):
        assert not grading.equal(gold, rf"\boxed{{{said}}}"), (gold, said)


@pytest.mark.parametrize(
    ("answer", "reply"),
    [
        ("72", "#### 72"),
        ("1,234", r"\boxed{1234}"),
        ("0.5", r"so it is \boxed{\frac{1}{2}}"),
        (r"\frac{1}{2}", "The final answer is $0.5$."),
        (r"x^2 + 2x + 1", r"\boxed{(x+1)^2}"),
        (r"\sqrt{8}", r"\boxed{2\sqrt{2}}"),
        (r"50\%", r"\boxed{0.5}"),
        (r"\{1, 2, 3\}", r"\boxed{\{3, 1, 2\}}"),
        (r"(-\infty, 2]", r"\boxed{(-\infty,2]}"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}"),
        (r"\text{Monday}", r"\boxed{\text{Monday}}"),
        ("12", "The answer is 12."),
        (r"90^\circ", r"\boxed{90}"),
        (r"\pi/2", r"\boxed{\frac{\pi}{2}}"),
        ("2", r"\boxed{1} no, wait: \boxed{2}"),
        ("52_8", r"\boxed{52_{\text{eight}}}"),
        ("24_{10}", r"\boxed{24}"),
        (".0000672", r"\boxed{6.72 \times 10^{-5}}"),
        ("110111", r"\boxed{110111_2}"),
        ("1e-07", r"\boxed{0.0000001}"),
        ("0.000015", r"\boxed{1.5e-5}"),
        ("1e10", r"\boxed{10000000000}"),
        ("1e3", r"\boxed{10 \cdot 100}"),
        ("1/1000", "The answer is 1e-3."),
        ("18", "#### 18 eggs"),
        ("1800", "**#### $1,800 per month**"),
        ("18", r"\boxed{\text{18 eggs}}"),
        ("18 eggs", r"\boxed{18}"),
        ("9 (apples)", "#### 9 apples"),
        ("90", r"\boxed{90°}"),
        (r"2\sqrt{3}", r"\boxed{√12}"),
        (r"\frac{5}{2}", r"\boxed{2½}"),
        ("x^2", r"\boxed{x²}"),
        (r"(0, \infty)", r"\boxed{(0, ∞)}"),
        (r"\frac{9}{11}", r"\boxed{0.\overline{81}}"),
        (r"0.\overline{3}", r"\boxed{\frac13}"),
        ("1 3/4", r"\boxed{\frac74}"),
        ("1.75", r"\boxed{1 3/4}"),
        ("1 3/4", r"\boxed{1\frac{3}{4}\text{ cups}}"),
        (r"3\text{ hours } 20\text{ minutes}", r"\boxed{3 \text{ hours and } 20 \text{ min}}"),
        (r"\frac{1}{2^{98}}", r"\boxed{\frac{2}{2^{99}}}"),
        (r"\frac{4}{\binom{52}{5}}", r"\boxed{\frac{1}{649740}}"),
        (r"1.6\times10^{-19}\,\text{C}", r"\boxed{1.6 \cdot 10^{-19} \text{ C}}"),
        ("0", r"\boxed{\sqrt{3+2\sqrt{2}} - 1 - \sqrt{2}}"),
        ("25", r"\boxed{25\%}"),
        (r"\infty", r"\boxed{+∞}"),
        ("10^{10^{10}}", r"\boxed{ 10^{10 ^{10}} }"),
        (r"\frac{(10^9)!}{2}", r"\boxed{ \frac{(10^9)! }{2}}"),
        ("5", "<answer>5</answer>"),
        (r"\frac{1}{2}", r"<think>0.4?</think> <answer> \frac{2}{4} </answer>"),
        ("7", "<answer>x is 3 and y is 4. The answer is 7.</answer>"),
        ("6", r"<think>So \boxed{5}? No, I forgot one.</think>The answer is 6."),
        ("5", r"<think>So \boxed{5}.</think>"),
        ("3.5", "The answer is 3,5."),
        ("3.5", "The result is 3,5."),
        (r"3.5\text{ cm}", r"\boxed{3{,}5\text{ cm}}"),
        (r"\frac{5}{2}", r"\boxed{x = 2,5}"),
        (r"12.5\%", "It is 12,5 %."),
        ("0.125", r"\boxed{0,125}"),
        ("1000", r"\boxed{1,000}"),
        ("3,5", r"\boxed{5, 3}"),
        ("1000", r"\boxed{1 000}"),
        ("12500", r"\boxed{12~500\text{ eggs}}"),
        ("1000.5", "It is 1 000,5 kg."),
        ("1,234.5", "It is 1.234,5 kg."),
        ("3/2", r"\boxed{1 100/200}"),
    ],
)
def test_equal(grading: Grading, answer: str, reply: str) -> None:
    assert grading.equal(answer, reply)


@pytest.mark.parametrize(
    ("answer", "reply"),
    [
        ("72", "#### 73"),
        ("0.5", r"\boxed{\frac{1}{3}}"),
        ("(1, 2)", r"\boxed{[1, 2]}"),
        (r"x^2", r"\boxed{x^3}"),
        ("2", "I do not know."),
        ("2", ""),
        ("2", r"\boxed{}"),
        ("2", r"\boxed{2} no, wait: \boxed{3}"),
        (r"\{1, 2\}", r"\boxed{\{1, 2, 3\}}"),
        ("7", r"\boxed{" + "7" * 100_000 + "}"),
        ("52_8", r"\boxed{52_9}"),
        ("52_8", r"\boxed{52}"),
        ("24_{10}", r"\boxed{25}"),
        (".0000672", r"\boxed{.0000673}"),
        (".0000672", r"\boxed{6.73 \times 10^{-5}}"),
        ("1e-07", r"\boxed{e-7}"),
        ("0.000015", r"\boxed{1.5e-6}"),
        ("18", "#### 19 eggs"),
        ("18", "#### 18 dozen"),
        ("18", r"\boxed{\text{18 eggs or 19}}"),
        ("18 eggs", r"\boxed{18 pears}"),
        ("9 (apples)", r"\boxed{8}"),
        ("20 June", r"\boxed{20 July}"),
        ("90", r"\boxed{91°}"),
        (r"\sqrt{2}", r"\boxed{√3}"),
        ("5", r"\boxed{5½}"),
        ("x^2", r"\boxed{x³}"),
        (r"(0, \infty)", r"\boxed{(-∞, 0)}"),
        (r"\frac{9}{11}", r"\boxed{0.\overline{18}}"),
        ("0.3", r"\boxed{0.\overline{3}}"),
        (r"0.1\overline{6}", r"\boxed{0.\overline{16}}"),
        ("1 3/4", r"\boxed{13/4}"),
        (r"\frac{13}{4}", r"\boxed{1 3/4}"),
        ("1 3/4", r"\boxed{\frac34}"),
        (r"3\text{ hours } 20\text{ minutes}", r"\boxed{3\text{ hours } 30\text{ minutes}}"),
        (r"3\text{ hours } 20\text{ minutes}", r"\boxed{3}"),
        (r"2 \text{ R } 3", r"\boxed{2 \text{ R } 4}"),
        (r"\frac{1}{2^{98}}", r"\boxed{\frac{1}{2^{99}}}"),
        ("2^{-98}", r"\boxed{2^{-99}}"),
        (r"\frac{1}{20!}", r"\boxed{\frac{1}{21!}}"),
        (r"1.6\times10^{-19}\,\text{C}", r"\boxed{9.1\times10^{-31}\,\text{C}}"),
        (r"6.72\times10^{-5}\text{ m}", r"\boxed{6.73\times10^{-5}\text{ m}}"),
        ("0", r"\boxed{e^{-20}}"),
        (r"-\frac{1}{20!}", r"\boxed{\frac{1}{20!}}"),
        ("5", "5? <answer>6</answer>"),
        ("3", "<answer>x is 3 and y is 4. The answer is 7.</answer>"),
        ("5", r"<think>So \boxed{5}? No, I forgot one.</think>The answer is 6."),
        ("5", r"<think>So \boxed{5}?</think>I cannot tell."),
        ("3", "The result is 3,5."),
        ("35", r"\boxed{3,5}"),
        ("3.5", r"\boxed{(3,5)}"),
        ("3.5", r"\boxed{\left( 3,5 \right)}"),
        ("3.5", r"\boxed{\{ 3,5 \}}"),
        ("-3.5", r"\boxed{(-3,5)}"),
        ("-2", r"\boxed{[-2,0]}"),
        ("-2", "The vertex is (-2,0)."),
        ("1", r"\boxed{1,000}"),
        ("1", r"\boxed{0,001}"),
        ("0", r"\boxed{1 000}"),
        ("1", "The answer is 1 000 eggs."),
        ("1", "It costs 1.234,50 €."),
    ],
)
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
        (1.0, "0.5", "answer"),
        (-1.0, "0.4", "answer"),
        (-1.0, None, "length"),
        (-1.0, "9^{9^{9^9}}", "answer"),
    ]


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
