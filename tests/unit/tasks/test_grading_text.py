"""Reading and comparing answers as text."""

from fractions import Fraction

import pytest

from retcon.tasks.graders.stated import find_stated
from retcon.tasks.graders.text import chosen_letter, final_answer, parse_integer, parse_rational, same_choice, same_text


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (r"first \boxed{1}, then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"), ("48/2 = 24\n#### 72\n", "72"),
        (r"\boxed{3} and #### 4", "3"), ("#### Solution\n\n6 times 7 is 42.\n\n**The answer is 42.**", None),
        ("#### Step 1\n6 and 7\n\n#### **Final Answer:**\n\nforty-two", "forty-two"),
        ("#### Answer\n\n41\n\nor 42", None), ("#### 42\n\nLet me double check.\n\n#### Verification\nok", "42"),
        ("#### 5 apples\n\nThat is it.", "5 apples"), ("#### sqrt(2)\n\nThat is it.", "sqrt(2)"),
        (r"\boxed{never closed", None), ("<answer>5</answer>", "5"),
        ("It is 4. <answer>\n5\n</answer> <answer> 6 </answer>, as said", "6"),
        (r"<answer>so \boxed{5}</answer>", "5"), ("#### 4\n<answer>#### 5</answer>", "5"),
        ("#### 4\n<answer>5</answer>\n#### 6", "5"), ("I put it between <answer></answer>. #### 5", "5"),
        ("5</answer>", None), (r"<think>\boxed{5}? No, I forgot one.</think>It is 6.", None),
        ("<think>or <answer>5</answer></think>It is 6.", None), (r"[THINK]so \boxed{5}[/THINK]<|im_end|>", "5"),
        ("#### 41\nno:\n#### 42\n#### 2. Check\nok", "42"), ("so #### New York\n\nThat is it.", "New York"),
        ("#### Step 1\n\n#### New York\n\n", "New York"), ("##### 7\n####\n", "7"),
    ],
)  # fmt: skip
def test_the_final_answer(reply: str, answer: str | None) -> None:
    assert final_answer(reply) == answer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("72", 72), (" 1,234,567. ", 1234567), (r"$-5$", -5), (r"10\,000", 10000), ("+3", 3), ("1,23", None),
        ("0,125", None), ("3.5", None),
    ],
)  # fmt: skip
def test_integers_as_people_write_them(text: str, number: int | None) -> None:
    assert parse_integer(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (r"\frac{3}{6}", "1/2"), ("$0.50$", "1/2"), ("10/4", "5/2"), ("1,000", "1000"), (".5", "1/2"),
        ("1.5e-5", "0.000015"), ("$.5e+1$", "5"), (r"\frac34", "3/4"), ("1 3/4", "7/4"), (r"$1\frac{3}{4}$", "7/4"),
        (r"0.\overline{81}", "9/11"), (r"-.1\overline{6}", "-1/6"), (r"0.\dot{9}", "1"), ("1 13/4", None),
        ("1 -3/4", None), (r"0.\dot{1}4\dot{2}", None), (r"\frac345", None),
        (r"0.\overline{" + "3" * 2000 + "}", None), ("1e9999", None), ("e-7", None), ("2e", None), ("1/0", None),
        (r"50\%", None), ("0." + "3" * 2000, None), ("٣/٤", None),
        ("-2E3", "-2000"), (r"-\frac1{20}", "-1/20"), (r"12.\bar{3}", "37/3"), ("1 3/0", None),
    ],
)  # fmt: skip
def test_numbers_that_are_compared_without_more_ado(text: str, number: str | None) -> None:
    assert parse_rational(text) == (None if number is None else Fraction(number))


@pytest.mark.parametrize(
    ("answer", "reply", "right"),
    [
        ("B", r"\boxed{B}", True), ("(b)", "#### B", True), ("B", r"\boxed{\text{B}}", True),
        ("B", "A looks right, but the answer is **B**.", True), ("B", "Answer: (B)", True),
        ("B", "The answer is a banana", False), ("C", "The answer is B, not C", False), ("B", "b", True),
        ("B", "", False), ("B", r"\boxed{BC}", False), ("B", r"\boxed{B. 42}", True),
        ("B", r"\boxed{\textbf{(B) } 12}", True), ("B", r"\boxed{\text{Option B}}", True),
        ("B", "#### **B)** 12", True), ("B", "The answer is $\\text{B}$.", True),
        ("B", "The correct option is **B**.", True), ("B", "The answer is **option (B)**. A is too small.", True),
        ("(B) 2", "B", True), (r"\textbf{(B)}", "B", True), ("B", r"\boxed{B. 12 or C. 13}", False),
        ("B", r"\boxed{(B) or C}", False), ("B", r"\boxed{Because}", False), ("B", "The answer is B or C.", False),
        ("B", "The answer is B. The answer is C or D.", False), ("B", "The incorrect option is B.", False),
        ("B", "The correct option is not B.", False), ("B", "<think>The answer is A.</think>\n\nB", True),
        ("B", r"<think>\boxed{A}</think>The answer is B.", True),
        ("A", r"<think>\boxed{A}</think>The answer is B.", False), ("A", r"<think>\boxed{A}</think>", True),
        ("B", "<answer>B</answer>", True), ("B", "The answer is B. <answer>C</answer>", False),
        ("B", "<answer>B or C</answer>", False),
        ("B", "The answer is **B** and **C**.", False),
    ],
)  # fmt: skip
def test_choices(answer: str, reply: str, right: bool) -> None:
    assert same_choice(answer, reply) is right


def test_a_choice_whose_answer_is_no_letter_is_refused() -> None:
    with pytest.raises(ValueError, match="answer '42' is not a letter"):
        same_choice("42", "B")


def test_texts_are_the_same_except_for_case_and_space() -> None:
    assert same_text("New  York", r"It is \boxed{\text{new york}}.")
    assert same_text("yes", " Yes ")
    assert same_text("yes", "<think>\nno, or yes?\n</think>\n\nYes")
    assert same_text("yes", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes")
    assert same_text("yes", "I think so.\n<answer> Yes </answer>")
    assert not same_text("yes", "yes, but no")
    assert not same_text("yes", r"<think>\boxed{yes}</think>no")


def test_headings_mark_no_answer() -> None:
    assert same_choice("B", "#### Step 1\n6 times 7\n\n#### Final Answer\n\nB")
    assert same_choice("B", "#### Solution\nIt is 42.\n\nThe answer is (B).")
    assert same_text("Paris", "#### Solution\nIn France.\n#### Answer\n**Paris**")
    assert not same_choice("B", "#### A\n#### B\n#### Solution\n#### C")


# Which option a reply chooses: one that it labels, says or marks, and none where it names another as well.


@pytest.mark.parametrize(
    "reply",
    [
        r"\boxed{B. A decrease in supply}", r"\boxed{\text{(B) A decrease in supply}}", r"\boxed{B. I am}",
        r"\boxed{\text{(B) } x}", "B. Paris", "(B) Paris", "**B. Paris**", "Option B is correct",
        "Therefore, B is correct.", "(B) is right, since A is wrong.", r"The answer is \(B\)",
        "B is correct. The statement A is correct?", r"\boxed{(B) $\frac{A}{C}$}", r"\boxed{B. 12 (not C)}",
        "Answer: B is correct. A is wrong.", "<answer>B: Paris</answer>", "<answer>[B]</answer>",
        "So **B** is the correct answer. A is too small.",
    ],
)  # fmt: skip
def test_a_reply_that_chooses_b(reply: str) -> None:
    assert same_choice("B", reply)
    assert not same_choice("C", reply)
    assert not same_choice("A", reply)


@pytest.mark.parametrize(
    "reply",
    [
        r"\boxed{B. 12 or C. 13}", r"\boxed{B. 12 or C}", r"\boxed{B. A}", r"\boxed{B. C}", r"\boxed{(B) (C)}",
        r"\boxed{B. No, C is right}", r"\boxed{B. Wait, the answer is C}", r"\boxed{B. The answer is A}",
        r"\boxed{(B) or maybe C}", "A. 12 is too small.\nB. 14 fits.", "B. Paris\n\nNo, it is C.",
        "I don't think that B is correct.", "One might think B is correct because it is hot, but C fits.",
        "Statement B is correct. Statement C is wrong.", "Vitamin B is best.", "B is correct. So I will go with C.",
        "B is correct.\nNo, C is correct.", "B. This option says that heat flows. It is incorrect because",
        "(B) Let's check it first.", "B. Let me think.\nActually C.", "<answer>B, C</answer>",
        "Neither A nor B is correct.", "A or B is correct.", "A is correct. B is correct.", "Is B correct?",
        "B is not correct.", "B is correct, but C is better.", "B: Paris", "BTW. Paris", "E. coli",
        "B is correctly put.", "Unless B is correct.",
        r"\boxed{B. 12 and C.}", r"\boxed{B. 12 C. 13}", "B is right. C also is right.", "B. Incorrect. This is",
    ],
)  # fmt: skip
def test_a_reply_that_does_not_choose_b(reply: str) -> None:
    assert not same_choice("B", reply)


REFUTED = "Answer choice (A) is incorrect because it is hot.\nAnswer choice (D) is incorrect because it is cold."
CHOICES = [
    # Options that are spoken of after the choice, or before it.
    ("B", f"The correct answer is (B).\n\n{REFUTED}"),
    ("B", "Answer: B\n\nThe answer A is wrong because it's hot."),
    ("B", "The answer is B. If the answer were A, mass would be lost. The answer D would only do without friction."),
    ("B", "Option A is too narrow. Option C is off the point.\n\nTherefore, the correct option is **(B)**."),
    ("B", "I said the answer is C, but the sign is wrong, so the answer is B."),
    ("B", "The answer is C. Wait, I forgot a factor. The answer is B."),
    ("B", "The right answer is B, not A."),
    ("B", "The correct answer is not A but B."),
    ("C", "Many would say that the correct answer is A, but it is really C."),
    ("C", "It might look like the answer is A. It's C."),
    # Ways of saying it.
    ("B", "ANSWER: B"),
    ("B", "It sinks, as it is dense.\n\nANSWER: (B)"),
    ("B", "#### Answer: B"),
    ("B", "B ) 120"),
    ("B", "The answer is B ) 120"),
    ("B", "[B]"),
    ("B", "The answer must be B."),
    ("B", "Thus, the correct answer would be **B**."),
    ("B", "The answer is most likely B."),
    ("B", "The correct answer, B, is in the second paragraph."),
    ("B", "The most accurate choice is B."),
    ("B", "I think B is the best."),
    ("B", "Among the given options, B is the answer."),
    ("B", "The correct answer is 3.5 N (option B)."),
    ("B", "The answer is 12 N, which corresponds to option (B)."),
    ("B", "Therefore B."),
    ("A", "The answer is A because it is even."),
    ("D", "The answer is D. Both A and C."),
    # An option with its text, and no more or only what explains it.
    ("C", "C. False, True"),
    ("A", "A. True"),
    ("B", "B. It must be even"),
    ("B", "B. No, because the offer was revoked."),
    ("C", "**C) Not enough information**"),
    ("B", "B. Paris\n\nIt is the capital of France."),
    ("B", "B, because it is the capital."),
    # None is chosen.
    (None, "Answer A is incorrect."),
    (None, "Answer A: too hot\nAnswer B: too cold"),
    (None, "I don't think the answer is B."),
    (None, "One might think the answer is B."),
    (None, "If the answer is B, then x = 3, which is impossible."),
    (None, "It is unclear whether the answer is B."),
    (None, "Some say the answer is A, others say B."),
    (None, "It is unlikely that the answer is B."),
    (None, "The answer would be B if there were no friction."),
    (None, "The answer is not B."),
    (None, "The answer is B, or perhaps C."),
    (None, "The answer is A and C together."),
    (None, "The correct answer is either A or B."),
    (None, "B\n\nWait, that is too small."),
    (None, "A\nB\nC"),
    (None, "(B) is false since 2 is prime."),
    # The letter is that of a word or a formula.
    (None, "The answer is A decrease in supply."),
    (None, "Answer: I don't know"),
    (None, "Answer: B-cells"),
    (None, "Answer: C++"),
    (None, "The answer is $C = 5$."),
    (None, "Answer: U.S. Congress"),
    ("B", "After eliminating A and C, I choose B."),
    ("B", "The answer that fits the data best is B."),
    ("B", "I would go with option B."),
    ("B", "Answer (B) is correct: the reaction is fast."),
    ("B", "**Answer**\n\nB. Osmosis"),
    ("B", "**B**\n\nExplanation: it is the capital."),
    (None, "Suppose the answer is B. Then mass is lost."),
    (None, "Perhaps the answer is B."),
    (None, "The answer is B? I must check."),
]


@pytest.mark.parametrize(("letter", "reply"), CHOICES)
def test_the_letter_that_a_reply_chooses(letter: str | None, reply: str) -> None:
    assert chosen_letter(reply) == letter


# What a reply answers that marks no answer: only what it states counts, and not any number in it.


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("The answer is 1/2", "1/2"), (r"The answer is $\frac{1}{2}$, as 3 > 2. So 7 is wrong.", r"\frac{1}{2}"),
        ("**Answer:** 72 clips, of 100", r"72 \text{clips}"), (r"The answer: \(\frac{3}{4}\)", r"\frac{3}{4}"),
        ("The answer is 4. No: the answer is 5.", "5"),
        ("First 48.\n\nTherefore, Natalia sold 72 clips.", r"72 \text{clips}"),
        ("She has 3 and 4. Together that is **7** apples.", r"7 \text{apples}"),
        ("3. The total is $1,234.50", "$1,234.50"), ("The result is 3,5.", "3,5"),
        ("The answer is 3,5 cm.", r"3,5 \text{cm}"), ("It is 12,5 %.", "12,5 %"), ("So it is 18xy^2", "18 xy^2"),
        ("It is 4 ft^2.", r"4 \text{ft^2}"), ("The total (1,234) is even.", "1,234"),
        ("The value of f(3,5) is 2.", "2"), ("The answer is 12\u00a0500 eggs.", "12\u00a0500 \\text{eggs}"),
        ("It costs 1.234,50 €.", "1.234,50"), ("The answer is −3.", "-3"),
        (r"The final answer is $\$32,\!348$.", r"\$32,\!348"), (r"It costs \$36.", r"\$36"),
        ("The answer is 48 + 24 = 72 clips in May.", r"72 \text{clips}"),
        ("So she spends $8 + $24 = $32 in all.", "$32"),
        ("Each costs $5, and she needs 15, so she spends $5*15 = $75.00 on them.", "$75.00"),
        ("The answer is 5 dozen.", r"5 \text{dozen}"), ("The answer is 72, as 48 + 24 = 72.", "72"),
        ("The answer is $12\\pi$ cm.", r"12\pi \text{cm}"), ("The answer is 8:34 p.m.", r"8:34 \text{pm}"),
        ("x = 5", "x = 5"), ("(3, 4)", "(3, 4)"), (r"\[ \sqrt{2} \]", r"\sqrt{2}"), ("which is\n$$\n7\n$$.", "7"),
        ("<think>\nThe answer is 4. Or 5?\n</think>\n\nIt is **6**.", "6"),
        ("<answer>Both are 3. So the answer is 6.</answer>", "6"),
        ("So the final answer is: 12.", "12"), ("It is 50%.", "50%"), ("**Answer:** 9 eggs × $2 = **$18**", "$18"),
        ("It takes 3 hours and 20 minutes.", "3 hours and 20 minutes"), ("The answer is $2$ and $3$.", "2, 3"),
        (r"\frac{3}{4}", r"\frac{3}{4}"),
    ],
)  # fmt: skip
def test_a_stated_answer(reply: str, answer: str) -> None:
    assert find_stated(reply) == answer


@pytest.mark.parametrize(
    "reply",
    [
        "", "I do not know.", "There are 3 apples and 4", "Answer: 5 or 6", "The answer is 5 out of 6.",
        "The answer is 5 and a half.", "The answer is at least 5.", "The answer is March 5.", "The answer is not 5.",
        "The answer is 0xA.", "She did not sell 72 clips.", "The answer is 5 times as many.", "Of 9 eggs she sold 7",
        "it is 0.5, or 1/2", "The roots are 1,2,3.", "The vertex is (-2,0).", "The interval is ( 3,5 ).",
        "In 2020 300 people came.", "It needs version 1.2.3.", "The date is not 2024-05-01.",
        "It is open from 2024-04-01 to 2024-05-01.", "On 2024-05-01 it rained.", "That is 1999-2024-05-01.",
        "9/2 at first.\nOne has to understand the context.", "$a = 1,$ b=1, and c=2.$", "$x = 1$ or $x = 2$",
        "$1$, $2$", "In 1999 it was 5. Then the tokens ran out in the", "height:20;width:x", "the values f_2 of M1",
        "<think>The answer is 4.</think>\n\nI do not know.", "\\]", "$$",
    ],
)  # fmt: skip
def test_no_answer_or_several(reply: str) -> None:
    assert find_stated(reply) is None
