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
        ("**Answer:** 72 clips, of 100", "72"),
        (r"The answer: \(\frac{3}{4}\)", r"\frac{3}{4}"),
        ("### Answer\n\n42", "42"),
        ("The answer is 4. No: the answer is 5.", "5"),
        ("the answer is x^2+1.", "x^2+1"),
        ("First 48.\n\nTherefore, Natalia sold 72 clips.", "72"),
        ("She has 3 and 4. Together that is **7** apples.", "7"),
        ("So 48+24 = 72.", "72"),
        ("3. The total is $1,234.50", "1,234.50"),
        ("It is 50%.", "50%"),
        ("The answer is −3.", "-3"),
        (r"The final answer is $\$32,\!348$.", r"32,\!348"),
        (r"It costs \$36.", "36"),
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
        "There are 3 apples and 4 pears",
        "it is 0.5, or 1/2",
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
