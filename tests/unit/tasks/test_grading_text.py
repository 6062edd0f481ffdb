"""Reading and comparing answers as text."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retcon.tasks.graders.text import final_answer, integer, rational, same_choice, same_code, same_text


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (r"first \boxed{1}, then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("48/2 = 24\n#### 72\n", "72"),
        ("#### 1\nno:\n#### 2", "2"),
        (r"\boxed{3} and #### 4", "3"),
        ("#### Solution\n\n6 times 7 is 42.\n\n**The answer is 42.**", None),
        ("#### Step 1\n6 and 7\n\n#### **Final Answer:**\n\nforty-two", "forty-two"),
        ("#### Answer\n\n41\n\nor 42", None),
        ("#### 42\n\nLet me double check.\n\n#### Verification\nok", "42"),
        ("#### 41\nno:\n#### 42\n#### 2. Check\nok", "42"),
        ("#### 5 apples\n\nThat is it.", "5 apples"),
        ("#### B. twelve\n\nThat is it.", "B. twelve"),
        ("#### sqrt(2)\n\nThat is it.", "sqrt(2)"),
        ("so #### New York\n\nThat is it.", "New York"),
        ("#### Step 1\n\n#### New York\n\n", "New York"),
        ("##### 7\n####\n", "7"),
        (r"\boxed{never closed", None),
        ("it is 7", None),
        ("", None),
        ("<answer>5</answer>", "5"),
        ("It is 4. <answer>\n5\n</answer> <answer> 6 </answer>, as said", "6"),
        (r"<answer>so \boxed{5}</answer>", "5"),
        ("#### 4\n<answer>#### 5</answer>", "5"),
        ("#### 4\n<answer>5</answer>\n#### 6", "5"),
        ("I put it between <answer></answer>. #### 5", "5"),
        ("<answer>5", None),
        ("5</answer>", None),
        (r"<think>\boxed{5}? No, I forgot one.</think>It is 6.", None),
        (r"<think>\boxed{5}</think>\boxed{6}", "6"),
        ("<think>#### 5\n</think>\n#### 6", "6"),
        ("<think>or <answer>5</answer></think>It is 6.", None),
        (r"<think>so \boxed{5}</think>", "5"),
        (r"[THINK]so \boxed{5}[/THINK]<|im_end|>", "5"),
        (r"<think>so \boxed{5}, or", "5"),
    ],
)
def test_the_final_answer(reply: str, answer: str | None) -> None:
    assert final_answer(reply) == answer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("72", 72),
        (" 1,234,567. ", 1234567),
        (r"$-5$", -5),
        (r"10\,000", 10000),
        ("+3", 3),
        ("1,23", None),
        ("0,125", None),
        ("3.5", None),
    ],
)
def test_integers_as_people_write_them(text: str, number: int | None) -> None:
    assert integer(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (r"\frac{3}{6}", "1/2"),
        (r"-\dfrac{1}{4}", "-1/4"),
        ("$0.50$", "1/2"),
        ("10/4", "5/2"),
        ("1,000", "1000"),
        (".5", "1/2"),
        ("-.25", "-1/4"),
        (r"6.72 \times 10^{-5}", "0.0000672"),
        (r"$-.5\cdot 10^3$", "-500"),
        ("3 x 10^{2}", "300"),
        ("1.5e-5", "0.000015"),
        ("-2E3", "-2000"),
        ("$.5e+1$", "5"),
        (r"\frac34", "3/4"),
        (r"-\frac1{20}", "-1/20"),
        ("1 3/4", "7/4"),
        ("-1 3/4", "-7/4"),
        (r"$1\frac{3}{4}$", "7/4"),
        (r"2 \tfrac12", "5/2"),
        (r"0.\overline{81}", "9/11"),
        (r"-.1\overline{6}", "-1/6"),
        (r"12.\bar{3}", "37/3"),
        (r"0.\dot{9}", "1"),
        ("1 13/4", None),
        ("1 3/0", None),
        ("1 -3/4", None),
        (r"1 - \frac{3}{4}", None),
        (r"3\overline{4}", None),
        (r"0.\dot{1}4\dot{2}", None),
        (r"\frac345", None),
        (r"\overline{AB}", None),
        (r"0.\overline{" + "3" * 2000 + "}", None),
        ("1e9999", None),
        ("e-7", None),
        ("2e", None),
        (r"2 \times 10^{9999}", None),
        (".", None),
        ("1/0", None),
        (r"\frac{1}{0}", None),
        (r"50\%", None),
        ("1/2/3", None),
        (r"\frac{x}{2}", None),
        ("0." + "3" * 2000, None),
        ("٣/٤", None),
    ],
)
def test_numbers_that_are_compared_without_more_ado(text: str, number: str | None) -> None:
    assert rational(text) == (None if number is None else Fraction(number))


def test_an_integer_of_millions_of_digits_is_not_converted() -> None:
    assert integer("9" * 10_000_000) is None


@pytest.mark.parametrize(
    ("answer", "reply", "right"),
    [
        ("B", r"\boxed{B}", True),
        ("(b)", "#### B", True),
        ("B", r"\boxed{\text{B}}", True),
        ("B", "A looks right, but the answer is **B**.", True),
        ("B", "Answer: (B)", True),
        ("B", "The answer is a banana", False),
        ("A", "The answer is a banana", False),
        ("C", "The answer is B, not C", False),
        ("B", "b", True),
        ("B", "", False),
        ("B", r"\boxed{BC}", False),
        ("B", r"\boxed{B. 42}", True),
        ("B", r"\boxed{(B) 12}", True),
        ("B", r"\boxed{\text{(B) 12}}", True),
        ("B", r"\boxed{\textbf{(B) } 12}", True),
        ("B", r"\boxed{\textbf{(B)}\ \frac{1}{2}}", True),
        ("B", r"\boxed{\text{Option B}}", True),
        ("B", "#### **B)** 12", True),
        ("B", "The answer is $\\text{B}$.", True),
        ("B", "The answer is \\textbf{(B)}.", True),
        ("B", "The correct option is **B**.", True),
        ("B", "The answer is option B.", True),
        ("B", "The answer is **option (B)**. A is too small.", True),
        ("B", "The answer is B, as A is too small.", True),
        ("(B) 2", "B", True),
        (r"\textbf{(B)}", "B", True),
        ("A", r"\boxed{A. 12}", True),
        ("B", r"\boxed{B. 12 or C. 13}", False),
        ("B", r"\boxed{(B) 12, (c) 13}", False),
        ("B", r"\boxed{(B) or C}", False),
        ("B", r"\boxed{B, C}", False),
        ("B", r"\boxed{Because}", False),
        ("B", "The answer is B or C.", False),
        ("B", "The answer is **B** and **C**.", False),
        ("B", "The answer is B, C.", False),
        ("B", "The answer is B. The answer is C or D.", False),
        ("B", "The incorrect option is B.", False),
        ("B", "The correct option is not B.", False),
        ("B", "<think>The answer is A.</think>\n\nB", True),
        ("A", "<think>The answer is A.</think>\n\nThe answer is B.", False),
        ("B", r"<think>\boxed{A}</think>The answer is B.", True),
        ("A", r"<think>\boxed{A}</think>The answer is B.", False),
        ("A", r"<think>\boxed{A}</think>I do not know.", False),
        ("A", r"<think>\boxed{A}</think>", True),
        ("B", "<answer>B</answer>", True),
        ("B", "<answer>The answer is B.</answer>", True),
        ("B", "The answer is B. <answer>C</answer>", False),
        ("B", "<answer>B or C</answer>", False),
    ],
)
def test_choices(answer: str, reply: str, right: bool) -> None:
    assert same_choice(answer, reply) is right


def test_a_choice_whose_answer_is_no_letter_is_refused() -> None:
    with pytest.raises(ValueError, match="answer '42' is not a letter"):
        same_choice("42", "B")


def test_texts_are_the_same_but_for_case_and_space() -> None:
    assert same_text("New  York", r"It is \boxed{\text{new york}}.")
    assert same_text("yes", " Yes ")
    assert same_text("yes", "<think>\nno, or yes?\n</think>\n\nYes")
    assert same_text("yes", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes")
    assert same_text("yes", "I think so.\n<answer> Yes </answer>")
    assert not same_text("yes", "yes, but no")
    assert not same_text("yes", r"<think>\boxed{yes}</think>no")


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_text_is_compared(answer: str, reply: str) -> None:
    assert same_text(answer, answer) or r"\boxed" in answer or "####" in answer
    same_text(answer, reply)
    same_choice("A", reply)


def test_headings_mark_no_answer() -> None:
    assert same_choice("B", "#### Step 1\n6 times 7\n\n#### Final Answer\n\nB")
    assert same_choice("B", "#### Solution\nIt is 42.\n\nThe answer is (B).")
    assert same_text("Paris", "#### Solution\nIn France.\n#### Answer\n**Paris**")
    assert not same_choice("B", "#### A\n#### B\n#### Solution\n#### C")


@pytest.mark.parametrize(
    ("answer", "said", "same"),
    [
        ("2024-05-01", "2024-05-01", True),
        ("2024-05-01", r"\text{2024/5/1}.", True),
        ("2024-05-01", "2024-01-05", False),
        ("2024-05-01", "2018", False),
        ("01/02/2024", "02/01/2024", False),
        ("01/02/2024", "1/4048", False),
        ("192.168.0.1", r"\texttt{192.168.0.1}", True),
        ("192.168.0.1", "192.168.0.2", False),
        ("192.168.0.1", "10.0.0.1", False),
        ("3.1.4", "3.4.1", False),
        ("555-1234", "555-1234.", True),
        ("555-1234", "-679", False),
        ("800-555-1234", "-989", False),
        ("2018", "2024-5-1", False),
        ("-679", "555-1234", False),
        ("0", "0x5", False),
        ("0", "-0xA", False),
        ("-1950", "50-2000", None),
        ("2018", "2024-6", None),
        ("1.234.567", "1234567", None),
        ("12/5", "2.4", None),
        ("3.14", "3.14", None),
        ("0x", "0", None),
        ("0x1F", "0", None),
    ],
)
def test_dates_addresses_and_telephone_numbers_are_no_formulas(answer: str, said: str, same: bool | None) -> None:
    assert same_code(answer, said) is same
