"""Which numbers of an annotated solution become variables, what its sentences then say, and how programs go wrong."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from retcon.train.demos.solutions import Step, Unusable, broken, read_steps, words_and_code


def expressions(solution: str, question: str, answer: str = "") -> list[str]:
    return [step.expression for step in read_steps(solution, question, answer)]


def words(solution: str, question: str) -> list[str]:
    return [step.words for step in read_steps(solution, question, "")]


PIECES = (
    "2+3 = <<2+3=5>>5 and more.\nFour times that is 5*4 = <<5*4=20>>20.\nA quarter is 20/4 = <<20/4=5>>5.\n"
    "And one: 5+1 = <<5+1=6>>6.\n#### 5"
)


def test_a_program_ends_with_the_last_step_that_gives_the_answer_or_with_the_last_of_all() -> None:
    """A number is the newest step that has it."""
    assert expressions(PIECES, "2 and 3?", "5") == ["2 + 3", "x1 * 4", "x2 / 4"]
    assert expressions(PIECES, "2 and 3?", "99") == ["2 + 3", "x1 * 4", "x2 / 4", "x3 + 1"]


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


@pytest.mark.parametrize(("known", "written"), [("0", "50 - 0"), (".01", "50 - 0.01")])
def test_nothing_and_what_is_one_of_a_common_number_are_known(known: str, written: str) -> None:
    value = 50 - Fraction(known)
    assert expressions(f"It is <<50-{known}={value}>> then.", "50?") == [written]


def test_a_part_that_is_one_of_no_common_number_is_not_known() -> None:
    with pytest.raises(Unusable, match="neither the question nor an earlier step"):
        read_steps("It is <<50*.003=.15>> then.", "50?", "")


@pytest.mark.parametrize(
    ("question", "number"),
    [("Seventeen crates?", 17), ("seventy crates?", 70), ("A field of 1,700, or so?", 1700), ("17 crates?", 17)],
)
def test_numbers_of_a_question_are_read_in_words_too_and_before_a_comma(question: str, number: int) -> None:
    assert expressions(f"{number}*2 = <<{number}*2={2 * number}>>{2 * number}", question) == [f"{number} * 2"]
    with pytest.raises(Unusable):
        read_steps(f"{number}*2 = <<{number}*2={2 * number}>>{2 * number}", "Crates?", "")


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


@pytest.mark.parametrize(
    ("sentence", "said"),
    [
        ("The rest is 80% = <<100-20=80>>80% of it.", "The rest is 80% = x1 of it."),
        ("He pays 3 <<20+2=22>>22 of them.", "He pays 3 x1 of them."),
        ("It is <<20+2=22>>22 of them.", "It is x1 of them."),
        ("It grew because of 20+2 = <<20+2=22>>22.", "It grew because of x1."),
        ("It grew by 22 because 20+2 = <<20+2=22>>22.", "It grew by x1."),
    ],
    ids=["another sum", "another number", "nothing", "once", "twice"],
)
def test_what_a_sentence_says_besides_its_sum_stays(sentence: str, said: str) -> None:
    assert words(sentence, "20% off?") == [said]


def test_a_sentence_names_results_by_their_variables_and_the_questions_numbers_as_they_are() -> None:
    solution = "Four sacks cost 4*9 = <<4*9=36>>36.\nOf those 36 dollars in 4 sacks he gets 36/3 = <<36/3=12>>12."
    assert words(solution, "4 sacks at 9?") == ["Four sacks cost x1.", "Of those x1 dollars in 4 sacks he gets x2."]
    shops = "Four sacks cost 4*9 = <<4*9=36>>36.\nIn 36 shops he gets 36/3 = <<36/3=12>>12."
    assert words(shops, "4 sacks at 9 in 36 shops?")[1] == "In 36 shops he gets x2."


def test_a_comma_after_a_number_is_the_sentences() -> None:
    two = "There are 5 x 8 = 40, of which 40 - 6 = <<40-6=34>>34, more or less, are free."
    assert expressions(two, "5 rows of 8, 6 of them taken?") == ["5 * 8", "x1 - 6"]
    assert words(two, "5 rows of 8, 6 of them taken?")[0] == "There are x1, of which x2, more or less, are free."
    named = "The sacks cost 4*9 = <<4*9=36>>36.\nOf the 36, a third is 36/3 = <<36/3=12>>12."
    assert words(named, "4 at 9?")[1] == "Of the x1, a third is x2."


def test_a_sentence_keeps_the_money_that_no_step_has() -> None:
    sentence = "Of the $60 and another $7.50 he has 60-12 = <<60-12=48>>48 left."
    assert words(sentence, "$60, of which 12 are spent?") == ["Of the $60 and another $7.50 he has x1 left."]


def test_of_results_that_are_equal_a_sentence_names_the_one_before_it_or_its_own_first() -> None:
    one = "She has 5: 2+3 = <<2+3=5>>5 and 4+1 = <<4+1=5>>5."
    steps = read_steps(f"{one}\nThe other 5 are 4+1 = <<4+1=5>>5.", "2, 3, 4 and 1?", "")
    assert [step.words for step in steps] == ["She has x1: x1 and x2.", "", "The other x2 are x3."]
    after = words("That is 2+3 = <<2+3=5>>5 and 4+1 = <<4+1=5>>5 of the 5 here.", "2, 3, 4 and 1?")
    assert after == ["That is x1 and x2 of the x1 here.", ""]
    assert words_and_code(steps[:2], "comments") == ("", "# She has x1: x1 and x2.\nx1 = 2 + 3\nx2 = 4 + 1\nprint(x2)")
    assert words_and_code(steps, "before")[0] == "She has x1: x1 and x2.\nThe other x2 are x3."


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
    return {variant for seed in range(200) for variant in broken(code, steps, random.Random(seed))}


def test_a_program_goes_wrong_in_one_place_at_a_time() -> None:
    assert ways(CODE, STEPS) == {CODE.replace(line, wrong) for line, changes in CHANGES.items() for wrong in changes}


def test_of_a_program_without_numbers_what_is_printed_goes_wrong() -> None:
    found = ways("x1 = y\nprint(x1)", (Step("x1", "", "y", Fraction(1)),))
    printed = {wrong.replace("x3", "x1").replace("x4", "x2") for wrong in CHANGES["print(x3)"]}
    assert found == {"print(x1)", *(f"x1 = y\n{line}" for line in printed)}, "its only step is left out, too"
