"""Annotated solutions as programs."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retcon.core.types import Observation, Segment, Trajectory, Turn
from retcon.train.demos.annotated import Progress, reachable, wanted_of, with_share
from retcon.train.demos.solutions import (
    NoArithmetic,
    Unusable,
    broken,
    parse,
    plain_number,
    read_steps,
    value_of,
    words_and_code,
)
from retcon.train.demos.types import Made

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


def test_a_number_of_the_question_stays_one_where_a_result_is_equal_to_it() -> None:
    solution = (
        "Four $5 notes are 4 x 5 = $<<4*5=20>>20.\nThree $20 notes are 3 x $20 = $<<3*20=60>>60.\n"
        "Together 20 + 60 = $<<20+60=80>>80.\n#### 80"
    )
    code = code_of(solution, "Four $5 notes and three $20 notes: how much?", "80")
    assert [line for line in code.splitlines() if line.startswith("x")] == ["x1 = 4 * 5", "x2 = 3 * 20", "x3 = x1 + x2"]


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
        "",
        "$ $",
        "1/0",
        "9**9**9",
        "2**1000",
        "2**65",
        "2**-1",
        "4**.5",
        "a+1",
        "__import__('os')",
        "1+" * 100 + "1",
        "(1",
    ],
)
def test_what_is_no_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(NoArithmetic):
        parse(text)


@given(st.text(alphabet="0123456789+-*/.()<>=$%, x\n#", max_size=80))
def test_any_text_is_a_program_or_unusable(text: str) -> None:
    try:
        steps = read_steps(text, "5 and 6?", "11")
    except Unusable:
        return
    assert steps[0].name == "x1"
    compile(words_and_code(steps, "comments")[1], "program", "exec")


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
    variants = [list(broken(code, steps, random.Random(seed))) for seed in (1, 1, 2)]
    assert variants[0] == variants[1] != variants[2]
    assert code not in variants[0]
    assert len(set(variants[0])) == len(variants[0]) >= 6


@pytest.mark.parametrize("known", ["30", ".3", "70", ".7", "1.3", "130"])
def test_a_share_of_which_the_question_speaks_is_known_with_what_follows_from_it(known: str) -> None:
    product = 50 * Fraction(known)
    solution = f"50*{known} is <<50*{known}={product}>>{product}.\n#### {product}"
    (step,) = read_steps(solution, "30% of 50?", str(product))
    assert step.value == product


def test_a_number_that_follows_from_nothing_is_not_known() -> None:
    with pytest.raises(Unusable, match="neither the question nor an earlier step"):
        read_steps("<<50*29=1450>>1450\n#### 1450", "30% of 50?", "1450")


def test_a_program_of_one_step_can_be_broken_too() -> None:
    steps = read_steps("It is <<3*4=12>>12.\n#### 12", "3 by 4?", "12")
    _, code = words_and_code(steps, "comments")
    assert all(len(set(broken(code, steps, random.Random(seed)))) >= 2 for seed in range(20))


def shown(failed: bool) -> Trajectory:
    observation = Observation("0.0.0", "", "error" if failed else "ok")
    return Trajectory("t", "t", (), (Turn((Segment("sampled", ""),), observations=(observation,)),))


@given(st.lists(st.booleans(), max_size=60), st.floats(0, 1), st.integers(1, 60))
def test_a_share_is_met_to_within_rounding_by_as_many_as_can_be(failed: list[bool], share: float, wanted: int) -> None:
    kept = with_share([shown(one) for one in failed], share, wanted)
    assert sum(one.failures for one in kept) == wanted_of(len(kept), share)
    more = range(len(kept) + 1, min(wanted, len(failed)) + 1)
    clean = len(failed) - sum(failed)
    assert not any(wanted_of(n, share) <= sum(failed) and n - wanted_of(n, share) <= clean for n in more)
    assert reachable(sum(failed), clean, "any", wanted) == min(wanted, len(failed))


def test_progress_is_what_can_be_had_and_the_candidates_since_that_grew() -> None:
    progress = Progress(0.5, 4)
    found: list[tuple[int, int]] = []
    for seen, failed in ((3, [True, True]), (2, []), (5, [True]), (1, [False]), (4, [False, False]), (2, [False])):
        progress.add(Made(seen, tuple(shown(one) for one in failed)))
        found.append((progress.done, progress.fruitless))
    assert found == [(1, 0), (1, 2), (1, 7), (3, 0), (4, 0), (4, 2)]


def test_half_a_demonstration_is_a_whole_one() -> None:
    assert [wanted_of(total, 0.5) for total in range(6)] == [0, 1, 1, 2, 2, 3]


def test_values_are_exact() -> None:
    assert read_steps("1/3 = <<1/3=0.33>>0.33 of it.\n#### 0.33", "a third: 1 of 3?", "0.33")[0].value == Fraction(1, 3)
