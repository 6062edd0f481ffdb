"""Numbers that are written with their base: the same digits in another base are another number."""

import pytest

from retcon.tasks.graders.mathematics import same_in_base


@pytest.mark.parametrize(
    "said",
    [
        "52_8", "52_{8}", "52_{(8)}", "(52)_8", r"\left(52\right)_{8}", r"\text{52}_8", r"52_\text{eight}",
        r"52_{\text{eight}}", r"52_{\rm eight}", r"52_{\text{base }8}", r"52 \text{ base } 8", "52 in base 8",
        "52 (base eight)", "$52_8$.", "052_8", "N = 52_8", "42_{10} = 52_8",
    ],
)  # fmt: skip
def test_spellings_of_a_base(said: str) -> None:
    assert same_in_base("52_8", rf"\boxed{{{said}}}")
    assert same_in_base("52_8", f"42 is 110_6, and {said}")
    assert same_in_base(said, "#### 52_8")


@pytest.mark.parametrize("said", ["52_9", "52_0", "53_8", "-52_8", "5.2_8", "42_{10}", "42", "52", "520_80", "x_8", ""])
def test_another_number_or_base_and_a_number_without_one(said: str) -> None:
    assert same_in_base("52_8", rf"\boxed{{{said}}}") is False


def test_a_base_that_was_only_thought_is_not_said() -> None:
    assert same_in_base("52_8", "<think>52_9</think>It is 52_8.")
    assert same_in_base("52_8", "<think>52_8</think>I do not know.") is False


@pytest.mark.parametrize("answer", ["52", "x_1", "a_{11}", "2x_{36}", "5C_2", "10_1", r"\log_2 8", "1_2, 11_2"])
def test_what_is_no_number_with_a_base_is_left_to_others(answer: str) -> None:
    assert same_in_base(answer, r"\boxed{52_8}") is None
