"""Which option a reply chooses: one that it labels, says or marks, and none where it names another as well."""

import time

import pytest

from retcon.tasks.graders.text import same_choice


@pytest.mark.parametrize(
    "reply",
    [
        r"\boxed{B. A decrease in supply}",
        r"\boxed{\text{(B) A decrease in supply}}",
        "#### B. A decrease in supply",
        r"\boxed{B. Vitamin C}",
        r"\boxed{B. I am}",
        r"\boxed{\text{(B) } x}",
        r"\boxed{B. A man}",
        "B. Paris",
        "(B) Paris",
        "B) Paris",
        "**B. Paris**",
        "**B.** Paris",
        "Option B is correct",
        "Therefore, B is correct.",
        "So **B** is the correct answer. A is too small.",
        "(B) is right, since A is wrong.",
        r"The answer is \(B\)",
        r"The answer is \(B\).",
        r"\boxed{\(B\)}",
        "B is correct. The statement A is correct?",
        r"\boxed{(B) $\frac{A}{C}$}",
        r"\boxed{B. 12 (not C)}",
        "<answer>(B) Paris</answer>",
        "B. Vitamin C",
        "Answer: B is correct. A is wrong.",
        "Answer:\nB is correct.\nD is too small.",
        "The correct answer: (B) is right.\n(A) no",
        "<answer>B: Paris</answer>",
        "<answer>[B]</answer>",
    ],
)
def test_a_reply_that_chooses_b(reply: str) -> None:
    assert same_choice("B", reply)
    assert not same_choice("C", reply)
    assert not same_choice("A", reply)


@pytest.mark.parametrize(
    "reply",
    [
        r"\boxed{B. 12 or C. 13}",
        r"\boxed{B. 12 or C}",
        r"\boxed{B. 12, C}",
        r"\boxed{B. 12 and C.}",
        r"\boxed{B. A}",
        r"\boxed{B. C}",
        r"\boxed{(B) (C)}",
        r"\boxed{B. 12 C. 13}",
        r"\boxed{B. No, C is right}",
        r"\boxed{B. Wait, the answer is C}",
        r"\boxed{B. The answer is A}",
        r"\boxed{(B)/(C)}",
        r"\boxed{(B) or maybe C}",
        "A. 12 is too small.\nB. 14 fits.",
        "B. 12 is too small.\nC. 14 fits.",
        "B. Paris\n\nNo, it is C.",
        "I don't think that B is correct.",
        "One might think B is correct because it is hot, but C fits.",
        "I initially thought B is correct. Upon reflection, C fits better.",
        "Statement B is correct. Statement C is wrong.",
        "Vitamin B is best.",
        "B is correct. So I will go with C.",
        "B is right. C also is right.",
        "B is correct.\nNo, C is correct.",
        "B. This option says that heat flows. It is incorrect because",
        "B. Incorrect. This is",
        "(B) Let's check it first.",
        "B. Let me think.\nActually C.",
        "B. 5\nC: 6\nD: 7",
        "<answer>B, C</answer>",
        "<answer>B or C</answer>",
        "B. Paris or C. Lyon",
        "Neither A nor B is correct.",
        "If B is correct, we are done.",
        "A or B is correct.",
        "A, B is correct.",
        "A is correct. B is correct.",
        "B is correct in part.",
        "Is B correct?",
        "B is incorrect.",
        "B is not correct.",
        "B is correct, but C is better.",
        "B is correct?",
        "B: Paris",
        "BTW. Paris",
        "The answer is C. B is correct.",
        "E. coli",
        "B is correctly put.",
        "Unless B is correct.",
        "B. Paris\nThe answer is C.",
    ],
)
def test_a_reply_that_does_not_choose_b(reply: str) -> None:
    assert not same_choice("B", reply)


@pytest.mark.parametrize("piece", ["B ", "B. ", "(B) ", "B is ", "B is the best ", "and B", "answer ", "B.\n", "* "])
def test_a_long_reply_is_read_in_no_time(piece: str) -> None:
    start = time.process_time()
    for begin in ("", "B. ", "#### "):
        same_choice("B", begin + piece * 20_000)
    assert time.process_time() - start < 5
