"""Failures in demonstrations of annotated solutions: in the wanted shares wherever one stops, of what can fail."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.types import Observation, Segment, Status, Trajectory, Turn
from retcon.engine.types import SamplingParams
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.tasks.types import Task
from retcon.tools.scripted import ScriptedTool
from retcon.train.demos.annotated import AnnotatedSource, Progress, Share, Style, reachable, share_of, with_share
from retcon.train.demos.rolling import Roller, Teacher
from retcon.train.demos.solutions import (
    NoArithmetic,
    Step,
    Unusable,
    failing_variants,
    parse,
    plain_number,
    read_steps,
    value_of,
    words_and_code,
)
from retcon.train.demos.types import DemoBatch
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
        assert failing == share_of(total, share)
        assert sum(failures > 1 for failures in kept[:total]) == share_of(failing, twice)


def test_where_no_share_is_wanted_none_fails() -> None:
    assert made(5, "any", 1.0, chunk=5) == [0] * 5


@pytest.mark.parametrize(("strict", "failing"), [((), [1, 3, 6, 8]), ((3, 4), [0, 1, 6, 8]), ((0, 2, 3), [1, 4, 6, 8])])
def test_where_one_cannot_fail_as_it_should_another_one_does(strict: tuple[int, ...], failing: list[int]) -> None:
    """As the grader takes none of its repairs: the first of those that were not to fail, or the next one of them."""
    found = made(10, 0.4, 1.0, chunk=10, strict=strict)
    assert [n for n, failures in enumerate(found) if failures] == failing
    assert set(found) == {0, 2}


# Which numbers of an annotated solution become variables, what its sentences then say, and how programs go wrong.


def expressions(solution: str, question: str, answer: str = "") -> list[str]:
    return [step.expression for step in read_steps(solution, question, answer)]


def words(solution: str, question: str) -> list[str]:
    return [step.words for step in read_steps(solution, question, "")]


def test_a_step_that_says_a_result_again_is_none() -> None:
    solution = "They have 6*4 = <<6*4=24>>24.\nSo <<24=24>>24 it is.\nTwice that is 24*2 = <<24*2=48>>48.\n#### 48"
    assert expressions(solution, "6 and 4?") == ["6 * 4", "x1 * 2"]


def test_results_that_are_equal_are_taken_in_turn() -> None:
    solution = "Ann has 2+3 = <<2+3=5>>5.\nBob has 4+1 = <<4+1=5>>5.\nWith mine it is 5+5+5 = <<5+5+5=15>>15.\n#### 15"
    assert expressions(solution, "2 and 3, 4 and 1?") == ["2 + 3", "4 + 1", "x2 + x1 + x2"]


CRATES, OF = "20 crates, each with 4 boxes of 5?", "A crate has 4*5 = <<4*5=20>>20 pieces.\n"


@pytest.mark.parametrize(
    ("then", "steps"),
    [
        ("Twice that is 20*2 = <<20*2=40>>40.\nIn all 40*20 = <<40*20=800>>800.", ["x1 * 2", "x2 * 20"]),
        ("Of 20 crates each is two: 20*2 = <<20*2=40>>40.\nIn all 40*20 = <<40*20=800>>800.", ["20 * 2", "x2 * x1"]),
        ("Of 20 crates each is two: 20*2 = <<20*2=40>>40.\n#### 40", ["x1 * 2"]),
        ("Twice 7 is 7*2 = <<7*2=14>>14.\nSo 20*14 = <<20*14=280>>280.\nIn all 20+9 = <<20+9=29>>29.",
         ["7 * 2", "20 * x2", "x1 + 9"]),
    ],
    ids=["right after its step", "where the sentence speaks of it", "that nothing else takes up", "not right after it"],
)  # fmt: skip
def test_of_a_number_that_the_question_has_too(then: str, steps: list[str]) -> None:
    assert expressions(OF + then, CRATES) == ["4 * 5", *steps]


def test_a_part_that_is_one_of_no_common_number_is_not_known() -> None:
    with pytest.raises(Unusable, match="neither the question nor an earlier step"):
        read_steps("It is <<50*.003=.15>> then.", "50?", "")


@pytest.mark.parametrize(
    ("annotated", "written"),
    [("-3+10", "-3 + 10"), ("+3+10", "3 + 10"), ("10-(-7)", "10 - -x1"), ("3.0*.5", "3 * 0.5")],
)
def test_numbers_have_their_signs_and_no_more_places_than_they_need(annotated: str, written: str) -> None:
    solution = f"Both are 3+4 = <<3+4=7>>7.\nIt is <<{annotated}=0>>0 then."
    assert expressions(solution, "3, 4, 10 and .5?") == ["3 + 4", written]


def test_what_stands_after_the_answers_mark_is_no_step() -> None:
    solution = "He has 2+3 = <<2+3=5>>5.\n#### 5\nOr 4+1 = <<4+1=5>>5."
    assert expressions(solution, "2 and 3, 4 and 1?", "5") == ["2 + 3"]


def test_a_line_may_have_steps_with_and_without_annotation() -> None:
    solution = "There are 5 x 8 = 40 seats, of 6 - 1 = 6 kinds, and 40 - 6 = <<40-6=34>>34 are free."
    steps = read_steps(solution, "5 rows of 8 seats, 6 of them taken?", "")
    assert [(step.expression, step.words) for step in steps] == [
        ("5 * 8", "There are x1 seats, of 6 - 1 = 6 kinds, and x2 are free."), ("x1 - 6", "")
    ]  # fmt: skip


def test_what_is_wrong_without_annotation_is_no_step() -> None:
    solution = "There are 5 x 8 = 41 seats.\nOf these 40 - 6 = <<40-6=34>>34 are free.\n#### 34"
    assert expressions(solution, "5 rows of 8, 40 seats, 6 of them taken?") == ["40 - 6"]


def test_where_only_the_result_is_annotated_the_sentence_says_how_it_comes() -> None:
    assert expressions("That is 287 x 4 = <<1148=1148>>1148.", "287, four times?") == ["287 * 4"]


def test_a_sentence_names_results_by_their_variables_and_the_questions_numbers_as_they_are() -> None:
    solution = "Four sacks cost 4*9 = <<4*9=36>>36.\nOf those 36 dollars in 4 sacks he gets 36/3 = <<36/3=12>>12."
    assert words(solution, "4 sacks at 9?") == ["Four sacks cost x1.", "Of those x1 dollars in 4 sacks he gets x2."]
    shops = "Four sacks cost 4*9 = <<4*9=36>>36.\nIn 36 shops he gets 36/3 = <<36/3=12>>12."
    assert words(shops, "4 sacks at 9 in 36 shops?")[1] == "In 36 shops he gets x2."


def test_a_sentence_keeps_the_money_that_no_step_has() -> None:
    sentence = "Of the $60 and another $7.50 he has 60-12 = <<60-12=48>>48 left."
    assert words(sentence, "$60, of which 12 are spent?") == ["Of the $60 and another $7.50 he has x1 left."]


STEPS = (
    Step("x1", "", "4 * 9", Fraction(36)),
    Step("x2", "", "60 - x1", Fraction(24), frozenset({"x1"})),
    Step("x3", "", "x2 / 3", Fraction(8), frozenset({"x2"})),
)
CODE = "x1 = 4 * 9\nx2 = 60 - x1\nx3 = x2 / 3\nprint(x3)"
CHANGES = {
    "print(x3)": ("print(x3", "print(x4)", "pint(x3)", "prin(x3)", "printf(x3)", "show(x3)", "print(math.floor(x3))",
                  "print(math.ceil(x3))", "print(np.round(x3))"),
    "x1 = 4 * 9\n": ("", "x1 = $4 * 9\n", "x1 = 4% * 9\n", 'x1 = "4" * 9\n', "x1 = 4 * $9\n", "x1 = 4 * 9%\n",
                     'x1 = 4 * "9"\n'),
    "x2 = 60 - x1\n": ("", "x2 = $60 - x1\n", "x2 = 60% - x1\n", 'x2 = "60" - x1\n'),
    "x3 = x2 / 3\n": ("x3 = x2 / $3\n", "x3 = x2 / 3%\n", 'x3 = x2 / "3"\n'),
}  # fmt: skip
"""What goes wrong in a line; the last step, which no other uses, is not left out."""


def ways(code: str, steps: tuple[Step, ...]) -> set[str]:
    return {variant for seed in range(200) for variant in failing_variants(code, steps, random.Random(seed))}


def test_a_program_goes_wrong_in_one_place_at_a_time() -> None:
    assert ways(CODE, STEPS) == {CODE.replace(line, wrong) for line, changes in CHANGES.items() for wrong in changes}


def test_of_a_program_without_numbers_what_is_printed_goes_wrong() -> None:
    found = ways("x1 = y\nprint(x1)", (Step("x1", "", "y", Fraction(1)),))
    printed = {wrong.replace("x3", "x1").replace("x4", "x2") for wrong in CHANGES["print(x3)"]}
    assert found == {"print(x1)", *(f"x1 = y\n{line}" for line in printed)}, "its only step is left out, too"


# Annotated solutions as programs.


QUESTION = "A baker has $60 and buys 4 sacks at $9 each. A third of the rest is saved. How much is that?"
SOLUTION = """The sacks cost 4 * $9 = $<<4*9=36>>36.
So $60 - $36 = $<<60-36=24>>24 are left.
He saves $8 because 24/3 = <<24/3=8>>8.
#### 8"""


def code_of(solution: str, question: str, answer: str) -> str:
    return words_and_code(read_steps(solution, question, answer), "comments")[1]


def test_a_solution_becomes_a_program_whose_comments_tell_no_result() -> None:
    assert code_of(SOLUTION, QUESTION, "8") == (
        "# The sacks cost x1.\nx1 = 4 * 9\n# So x2 are left.\nx2 = 60 - x1\n# He saves x3.\nx3 = x2 / 3\nprint(x3)"
    )


def test_sentences_may_go_before_the_program_or_nowhere() -> None:
    steps = read_steps(SOLUTION, QUESTION, "8")
    bare = "x1 = 4 * 9\nx2 = 60 - x1\nx3 = x2 / 3\nprint(x3)"
    assert words_and_code(steps, "before") == ("The sacks cost x1.\nSo x2 are left.\nHe saves x3.", bare)
    assert words_and_code(steps, "none") == ("", bare)


def test_what_is_computed_without_annotation_is_a_step_where_it_is_right() -> None:
    solution = "There are 5 x 8 = 40 seats.\nOf these 40 - 6 = <<40-6=34>>34 are free.\n#### 34"
    assert code_of(solution, "5 rows of 8 seats, 6 taken?", "34").splitlines()[1::2] == ["x1 = 5 * 8", "x2 = x1 - 6"]


def test_the_program_ends_with_the_step_that_gives_the_answer() -> None:
    solution = "He has 2+3 = <<2+3=5>>5.\nShe has 5*4 = <<5*4=20>>20.\n#### 5"
    assert code_of(solution, "2 and 3, times 4?", "5").endswith("x1 = 2 + 3\nprint(x1)")


@pytest.mark.parametrize(
    ("solution", "why"),
    [
        ("It is 8.\n#### 8", "no annotated step"),
        ("It is <<n*2=8>>8.\n#### 8", "a step that is not arithmetic"),
        (
            "It is 777*2 = <<777*2=1554>>1554.\n#### 1554",
            "a number that neither the question nor an earlier step contains",
        ),
        ("We have x = 4*2 = <<4*2=8>>8\n#### 8", "an equation with an unknown, which is not a program"),
    ],
)
def test_what_is_no_program_says_why(solution: str, why: str) -> None:
    with pytest.raises(Unusable, match=why):
        read_steps(solution, "4 pairs?", "8")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12 x $1,000", 12000), ("50%*8", 4), (".5*4", 2), ("007+1", 8), ("+3+4", 7), ("2^3", 8), ("9÷3−1", 2),
        ("-3+5", 2), ("7//2", 3), ("2**0", 1), ("2**64", 1 << 64), ("1+" * 99 + "11", 110),
    ],
)  # fmt: skip
def test_arithmetic_is_read_as_people_write_it(text: str, value: int) -> None:
    assert value_of(parse(text)) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "$ $", "1/0", "9**9**9", "2**1000", "2**65", "2**-1", "4**.5", "a+1", "__import__('os')",
        "1+" * 100 + "1", "(1",
    ],
)  # fmt: skip
def test_what_is_no_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(NoArithmetic):
        parse(text)


@pytest.mark.parametrize(
    ("printed", "said"), [("24.0", "24"), ("0.30000000000000004", "0.3"), ("1220", "1220"), ("-2.50", "-2.5"),
                          ("3.3333333333333335", "3.3333333333333335"), ("nan", "nan"), ("a b", "a b"),
                          ("0.12345670000000001", "0.12345670000000001"), ("1234567.8900000002", "1234567.89"),
                          ("1e-09", "0"), ("1.5e-09", "1.5e-09"), ("1000000000000000.0", "1000000000000000.0")],
)  # fmt: skip
def test_a_number_is_said_as_people_write_it(printed: str, said: str) -> None:
    assert plain_number(printed) == said


def test_broken_programs_are_all_others_and_as_the_seed_says() -> None:
    steps = read_steps(SOLUTION, QUESTION, "8")
    _, code = words_and_code(steps, "comments")
    variants = [list(failing_variants(code, steps, random.Random(seed))) for seed in (1, 1, 2)]
    assert variants[0] == variants[1] != variants[2]
    assert code not in variants[0]
    assert len(set(variants[0])) == len(variants[0]) >= 6


def test_a_number_that_follows_from_nothing_is_not_known() -> None:
    with pytest.raises(Unusable, match="neither the question nor an earlier step"):
        read_steps("<<50*29=1450>>1450\n#### 1450", "30% of 50?", "1450")


def shown(failed: bool) -> Trajectory:
    observation = Observation("0.0.0", "", "error" if failed else "ok")
    return Trajectory("t", "t", (), (Turn((Segment("sampled", ""),), observations=(observation,)),))


@given(st.lists(st.booleans(), max_size=60), st.floats(0, 1), st.integers(1, 60))
def test_a_share_is_met_to_within_rounding_by_as_many_as_can_be(failed: list[bool], share: float, wanted: int) -> None:
    kept = with_share([shown(one) for one in failed], share, wanted)
    assert sum(one.failures for one in kept) == share_of(len(kept), share)
    more = range(len(kept) + 1, min(wanted, len(failed)) + 1)
    clean = len(failed) - sum(failed)
    assert not any(share_of(n, share) <= sum(failed) and n - share_of(n, share) <= clean for n in more)
    assert reachable(sum(failed), clean, "any", wanted) == min(wanted, len(failed))


def test_progress_is_what_can_be_had_and_the_candidates_since_that_grew() -> None:
    progress = Progress(0.5, 4)
    found: list[tuple[int, int]] = []
    for seen, failed in ((3, [True, True]), (2, []), (5, [True]), (1, [False]), (4, [False, False]), (2, [False])):
        progress.add(DemoBatch(seen, tuple(shown(one) for one in failed)))
        found.append((progress.done, progress.fruitless))
    assert found == [(1, 0), (1, 2), (1, 7), (3, 0), (4, 0), (4, 2)]


def test_half_a_demonstration_is_a_whole_one() -> None:
    assert [share_of(total, 0.5) for total in range(6)] == [0, 1, 1, 2, 2, 3]


def test_values_are_exact() -> None:
    assert read_steps("1/3 = <<1/3=0.33>>0.33 of it.\n#### 0.33", "a third: 1 of 3?", "0.33")[0].value == Fraction(1, 3)
