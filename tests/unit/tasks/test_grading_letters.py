"""Which option a reply chooses: one that it labels, says or marks, and none where it names another as well."""

import time

import pytest

from retcon.tasks.graders.text import chosen_letter, same_choice


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


REFUTED = "Answer choice (A) is incorrect because it is hot.\nAnswer choice (D) is incorrect because it is cold."
CHOICES = [
    # Options that are spoken of after the choice, or before it.
    ("B", f"The correct answer is (B).\n\n{REFUTED}"),
    ("B", "The correct answer is B.\n\n**Why not the others?**\n- Answer A is incorrect.\n- Answer C: too small."),
    ("B", "Answer: B\n\nThe answer A is wrong because it's hot."),
    ("B", "The best answer is B. While answer A might seem plausible, it needs intent."),
    ("B", "The answer is B. If the answer were A, mass would be lost. The answer D would only do without friction."),
    ("B", "Option A is too narrow. Option C is off the point.\n\nTherefore, the correct option is **(B)**."),
    ("B", "I said the answer is C, but the sign is wrong, so the answer is B."),
    ("B", "The answer is C. Wait, I forgot a factor. The answer is B."),
    ("B", "After eliminating A and C, I choose B."),
    ("B", "The right answer is B, not A."),
    ("B", "The correct answer is not A but B."),
    ("C", "Many would say that the correct answer is A, but it is really C."),
    ("C", "It might look like the answer is A. It's C."),
    # Ways of saying it.
    ("B", "ANSWER: B"),
    ("B", "It sinks, as it is dense.\n\nANSWER: (B)"),
    ("B", "#### Answer: B"),
    ("B", "B ) 120"),
    ("B", r"\boxed{B ) 120}"),
    ("B", "The answer is B ) 120"),
    ("B", "[B]"),
    ("B", '{"answer": "B", "reason": "A does not conserve it."}'),
    ("B", "The answer must be B."),
    ("B", "Thus, the correct answer would be **B**."),
    ("B", "The answer is most likely B."),
    ("B", "The answer that fits the data best is B."),
    ("B", "The correct answer, B, is in the second paragraph."),
    ("B", "The most accurate choice is B."),
    ("B", "I would go with option B."),
    ("B", "I'd say the answer is B, but I am not sure."),
    ("B", "I think B is the best."),
    ("B", "Among the given options, B is the answer."),
    ("B", "Answer (B) is correct: the reaction is fast."),
    ("B", "The correct answer is 3.5 N (option B)."),
    ("B", "The answer is 12 N, which corresponds to option (B)."),
    ("B", "Since A is not even, the answer is B."),
    ("B", "Therefore B."),
    ("B", "**Answer**\n\nB. Osmosis"),
    ("A", "The answer is A because it is even."),
    ("D", "The answer is D. Both A and C."),
    # An option with its text, and no more or only what explains it.
    ("C", "C. False, True"),
    ("B", "B. Not wrong, Wrong"),
    ("A", "A. True"),
    ("B", "(B) No effect"),
    ("B", "B. It must be even"),
    ("B", "B. No, because the offer was revoked."),
    ("C", "**C) Not enough information**"),
    ("C", "C. The seller is not liable."),
    ("B", "B. Paris\n\nIt is the capital of France."),
    ("B", "**B**\n\nExplanation: it is the capital."),
    ("B", "B, because it is the capital."),
    # None is chosen.
    (None, "Answer A is incorrect."),
    (None, "Answer A: too hot\nAnswer B: too cold"),
    (None, "I don't think the answer is B."),
    (None, "One might think the answer is B."),
    (None, "If the answer is B, then x = 3, which is impossible."),
    (None, "Suppose the answer is B. Then mass is lost."),
    (None, "It is unclear whether the answer is B."),
    (None, "Some say the answer is A, others say B."),
    (None, "It is unlikely that the answer is B."),
    (None, "Perhaps the answer is B."),
    (None, "The answer would be B if there were no friction."),
    (None, "The answer is not B."),
    (None, "The answer is B? I must check."),
    (None, "The answer is B, or perhaps C."),
    (None, "The answer is A and C together."),
    (None, "The correct answer is either A or B."),
    (None, "I would not choose B."),
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
]


@pytest.mark.parametrize(("letter", "reply"), CHOICES)
def test_the_letter_that_a_reply_chooses(letter: str | None, reply: str) -> None:
    assert chosen_letter(reply) == letter


PIECES = ["B ", "B. ", "(B) ", "B is ", "B is the best ", "and B", "answer ", "B.\n", "* ", "answer is ", "the\n"]


@pytest.mark.parametrize("piece", [*PIECES, "it is ", "so (", "I go with B, ", "answer is 1 (option ", "answer to "])
def test_a_long_reply_is_read_in_no_time(piece: str) -> None:
    start = time.process_time()
    for begin in ("", "B. ", "#### "):
        same_choice("B", begin + piece * 20_000)
    assert time.process_time() - start < 5
