"""What a reply answers that marks no answer: only what it states counts, and not any number in it."""

import time

import pytest

from retcon.tasks.graders.stated import stated


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("The answer is 1/2", "1/2"),
        (r"The answer is $\frac{1}{2}$, as 3 > 2. So 7 is wrong.", r"\frac{1}{2}"),
        ("So the final answer is: 12.", "12"),
        ("**Answer:** 72 clips, of 100", r"72 \text{clips}"),
        (r"The answer: \(\frac{3}{4}\)", r"\frac{3}{4}"),
        ("### Answer\n\n42", "42"),
        ("The answer is 4. No: the answer is 5.", "5"),
        ("the answer is x^2+1.", "x^2+1"),
        ("First 48.\n\nTherefore, Natalia sold 72 clips.", r"72 \text{clips}"),
        ("She has 3 and 4. Together that is **7** apples.", r"7 \text{apples}"),
        ("So 48+24 = 72.", "72"),
        ("3. The total is $1,234.50", "$1,234.50"),
        ("It is 50%.", "50%"),
        ("The result is 3,5.", "3,5"),
        ("The answer is 3,5 cm.", r"3,5 \text{cm}"),
        ("It is 12,5 %.", "12,5 %"),
        ("The answer is 0.25 mc^2.", "0.25 mc^2"),
        ("So it is 18xy^2", "18 xy^2"),
        ("It is 4 ft^2.", r"4 \text{ft^2}"),
        ("It is long (3,5 cm).", r"3,5 \text{cm}"),
        ("The total (1,234) is even.", "1,234"),
        ("The value of f(3,5) is 2.", "2"),
        ("There are 12 500 eggs.", r"12 500 \text{eggs}"),
        ("The answer is 12\u00a0500 eggs.", "12\u00a0500 \\text{eggs}"),
        ("There are 3 250 ml bottles.", r"3 250 \text{ml bottles}"),
        ("It costs 1.234,50 €.", "1.234,50"),
        ("The answer is 5 100-dollar bills.", "5"),
        ("The answer is −3.", "-3"),
        ("The date is 2024-05-01.", "2024-05-01"),
        ("So it was on **5/1/2024**.", "5/1/2024"),
        (r"The final answer is $\$32,\!348$.", r"\$32,\!348"),
        (r"It costs \$36.", r"\$36"),
        ("There are 3 apples and 4 pears", "3 apples and 4 pears"),
        ("The answer is 48 + 24 = 72 clips in May.", r"72 \text{clips}"),
        ("**Answer:** 9 eggs × $2 = **$18**", "$18"),
        ("So she spends $8 + $24 = $32 in all.", "$32"),
        ("Each costs $5, and she needs 15, so she spends $5*15 = $75.00 on them.", "$75.00"),
        ("It takes 3 hours and 20 minutes.", "3 hours and 20 minutes"),
        ("The answer is 5 dozen.", r"5 \text{dozen}"),
        ("The answer is 72, as 48 + 24 = 72.", "72"),
        ("The answer is $12\\pi$ cm.", r"12\pi \text{cm}"),
        ("The answer is $2$ and $3$.", "2, 3"),
        ("The answer is 8:34 p.m.", r"8:34 \text{pm}"),
        ("The answer is 72.\n\nTo check our answer: 72 - 24 = 48.", "72"),
        ("- 12", "12"),
        ("= 4", "4"),
        ("x = 5", "x = 5"),
        ("(3, 4)", "(3, 4)"),
        (r"\frac{3}{4}", r"\frac{3}{4}"),
        (r"\[ \sqrt{2} \]", r"\sqrt{2}"),
        ("we get\n\\[\nx = 5\n\\]", "x = 5"),
        ("which is\n$$\n7\n$$.", "7"),
        ("<think>\nThe answer is 4. Or 5?\n</think>\n\nIt is **6**.", "6"),
        ("<answer>Both are 3. So the answer is 6.</answer>", "6"),
    ],
)
def test_a_stated_answer(reply: str, answer: str) -> None:
    assert stated(reply) == answer


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "I do not know.",
        "There are 3 apples and 4",
        "Answer: 5 or 6",
        "The answer is 5 out of 6.",
        "The answer is 5 and a half.",
        "The answer is at least 5.",
        "The answer is March 5.",
        "The answer is not 5.",
        "The answer is 0xA.",
        "She did not sell 72 clips.",
        "The answer is 5 times as many.",
        "Of 9 eggs she sold 7",
        "it is 0.5, or 1/2",
        "The roots are 1,2,3.",
        "The vertex is (-2,0).",
        "The interval is ( 3,5 ).",
        "In 2020 300 people came.",
        "It needs version 1.2.3.",
        "The date is not 2024-05-01.",
        "It is open from 2024-04-01 to 2024-05-01.",
        "On 2024-05-01 it rained.",
        "That is 1999-2024-05-01.",
        "9/2 at first.\nOne has to understand the context.",
        "$a = 1,$ b=1, and c=2.$",
        "$x = 1$ or $x = 2$",
        "$1$, $2$",
        "In 1999 it was 5. Then the tokens ran out in the",
        "height:20;width:x",
        "the values f_2 of M1",
        "<think>The answer is 4.</think>\n\nI do not know.",
        "\\]",
        "$$",
    ],
)
def test_no_answer_or_several(reply: str) -> None:
    assert stated(reply) is None


@pytest.mark.parametrize("piece", ["7 ", "1,111", "answer ", "answer is ", "$", "\\[", "$$", "(", "= ", "a.", "\\("])
def test_a_long_unmarked_reply_is_read_in_no_time(piece: str) -> None:
    start = time.process_time()
    for end in ("", ".", " 5", "$", "\\]"):
        stated(piece * 50_000 + end)
    assert time.process_time() - start < 5
