"""Numbers that are written with their base: the same digits in another base are another number."""

import pytest

from retcon.tasks.graders.mathematics import same_in_base


@pytest.mark.parametrize(
    "said",
    [
        "52_8",
        "52_{8}",
        "52_{(8)}",
        "(52)_8",
        r"\left(52\right)_{8}",
        r"\text{52}_8",
        r"52_\text{eight}",
        r"52_{\text{eight}}",
        r"52_{\rm eight}",
        r"52_{\text{base }8}",
        r"52 \text{ base } 8",
        "52 in base 8",
        "52 (base eight)",
        "$52_8$.",
        "052_8",
        "N = 52_8",
        "42_{10} = 52_8",
    ],
)
def test_spellings_of_a_base(said: str) -> None:
    assert same_in_base("52_8", rf"\boxed{{{said}}}")
    assert same_in_base("52_8", f"42 is 110_6, and {said}")
    assert same_in_base(said, "#### 52_8")


@pytest.mark.parametrize("said", ["52_9", "52_0", "53_8", "-52_8", "5.2_8", "42_{10}", "42", "52", "520_80", "x_8", ""])
def test_another_number_or_base_and_a_number_without_one(said: str) -> None:
    assert same_in_base("52_8", rf"\boxed{{{said}}}") is False


def test_a_base_behind_the_box_belongs_to_it_and_no_other_does() -> None:
    assert same_in_base("52_8", r"$\boxed{52}_8$")
    assert same_in_base("52_8", r"$\boxed{52}_{8}$")
    assert same_in_base("52_8", r"52_8, so $\boxed{42}$") is False


def test_a_base_that_was_only_thought_is_not_said() -> None:
    assert same_in_base("52_8", "<think>52_9</think>It is 52_8.")
    assert same_in_base("52_8", "<think>52_8</think>I do not know.") is False


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("43_5.", "43_5"),
        (r"\text{A5}_{11}", "A5_{11}"),
        ("152A_{11}", r"152\text{a}_{11}"),
        ("0.0011_{2}", ".0011_2"),
        ("-221_3", "-(221)_3"),
        ("861_{12}", "861_12"),
        ("1,010,100_2", "1010100_2"),
        (r"1{,}010_2", r"1\,010_2"),
        (r"\boxed{25_6}", "25_6"),
    ],
)
def test_digits_as_they_are_written(answer: str, said: str) -> None:
    assert same_in_base(answer, rf"\boxed{{{said}}}")
    assert same_in_base(answer, rf"\boxed{{1{said}}}") is False


@pytest.mark.parametrize("answer", ["52", "x_1", "a_{11}", "2x_{36}", "5C_2", "10_1", r"\log_2 8", "1_2, 11_2"])
def test_what_is_no_number_with_a_base_is_left_to_others(answer: str) -> None:
    assert same_in_base(answer, r"\boxed{52_8}") is None


def test_base_ten_need_not_be_written() -> None:
    assert same_in_base("24_{10}", r"\boxed{24}") is None
    assert same_in_base("24_{10}", r"\boxed{24_{ten}}")
    assert same_in_base("24_{10}", r"\boxed{24_8}") is False
