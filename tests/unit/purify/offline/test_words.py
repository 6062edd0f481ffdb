"""Sentences that speak of a failure: found by their rules, and cut only where whole sentences are left."""

from __future__ import annotations

import pytest

from retcon.purify.words import (
    can_cut,
    cut_spans,
    find_comment_references,
    find_references,
    gives_up_plan,
    says_something,
    sentences,
    spans,
    takes_back,
    without_comments,
)


def kept(text: str) -> str:
    return cut_spans(text, spans(text, find_references(text, "fix")))


@pytest.mark.parametrize(
    ("sentence", "rule"),
    [
        ("Oops, another try.", "apology"), ("I apologize for the oversight.", "apology"),
        ("That raised a NameError.", "exception"), ("There was an error in the code.", "error"),
        ("I forgot to import it.", "error"), ("Let me fix that.", "fix"), ("Here is the corrected code:", "fix"),
        ("Let us try again.", "again"), ("I will use a different approach.", "again"),
        ("We use a loop instead of the function.", "instead"), ("The previous code took the root.", "previous"),
        ("The solve function is not available.", "unavailable"), ("It seems that x has no value.", "seen"),
        ("The solution is not producing the expected output.", "refuted"),
        ("The loop wouldn't end for such a list.", "refuted"),
        ("The correct sum should be that of the odd ones.", "fix"),
        ("I will update the function accordingly.", "fix"), ("I need to update the condition of the loop.", "fix"),
        ("Currently, only the first one counts.", "previous"),
        ("The current implementation counts the first one.", "previous"),
        ("Re-initializing the list of squares.", "again"), ("Redefining the symbols.", "again"),
        ("Resetting the list.", "again"), ("I tried to use x before it had a value.", "did"),
        ("We used the wide one of both.", "did"), ("We divide the product by m, not n.", "contrast"),
        ("We want the position of the bit and not its value.", "contrast"),
    ],
)  # fmt: skip
def test_a_sentence_refers_by_a_rule(sentence: str, rule: str) -> None:
    assert [one.rule for one in find_references(sentence, "fix")] == [rule]


@pytest.mark.parametrize(
    "sentence",
    [
        "The standard error of the mean is 0.1.", "The margin of error is 3 percent.",
        "Now we substitute x into the second equation.", "The sum of the roots is 5.",
        "The number of days Sam did not work is 6.", "Let us verify this calculation.",
    ],
)  # fmt: skip
def test_a_sentence_about_the_task_does_not(sentence: str) -> None:
    assert find_references(sentence, "later") == []


@pytest.mark.parametrize(
    "sentence",
    [
        "I will update the dp array in each step.",
        "The number must not be zero.",
        "We have 12 of them.",
        "We find the numbers which do not divide it.",
    ],
)
def test_right_after_a_failure_too(sentence: str) -> None:
    assert find_references(sentence, "fix") == []


def test_thanks_for_patience_are_an_apology() -> None:
    text = "Thank you for your patience. The sum is 10."
    assert [(one.start, one.rule) for one in find_references(text, "later")] == [(0, "apology")]


def test_only_the_sentences_that_refer_are_cut_and_what_leans_on_them() -> None:
    assert kept("Sorry, my mistake. This was careless. Now we take the root of 16.") == "Now we take the root of 16."
    assert kept("We take the root of 16.\nI apologize for that.\nIt is 4 in all.\n") == "We take the root of 16.\n"
    assert kept("We take the root. Sorry.\nFive is added.\n") == "We take the root.\nFive is added.\n"
    assert kept("Sorry. x") == "x"
    assert kept("We take the root. Sorry.\nLet me fix that. Five is added.") == "We take the root.\nFive is added."
    assert kept("\nSorry.\nWe take the root.") == "\nWe take the root."
    assert kept("<thought> Sorry. We add 2 and 3 up. </thought>") == "<thought> We add 2 and 3 up. </thought>"


def test_a_pronoun_whose_noun_was_cut_leans_on_it() -> None:
    assert kept("The variable oo is not defined. We define it by sympy. Now we add all roots.") == (
        "Now we add all roots."
    )
    assert kept("I fixed both squares. If they are whole, so is m. We add all up.") == "We add all up."
    assert kept("I made a mistake. I should look at the logic of the function. We add all.") == "We add all."
    # What two sentences before was cut is not leant on.
    assert kept("Sorry. We take the root. We add it up.") == "We take the root. We add it up."


def test_where_what_comes_before_is_gone_the_first_sentence_may_lean_too() -> None:
    text = "Let us import it by name. Then we take the root."
    assert [text[one.start : one.end] for one in find_references(text, "fix", first="leans")] == [
        "Let us import it by name.",
        "Then we take the root.",
    ]
    assert find_references("We take the root.", "fix", first="leans") == []


def test_sentences_end_where_they_end() -> None:
    text = "Take e.g. 3.14 as pi. Then\ngo on. 1. First, add."
    assert [text[s.start : s.end] for s in sentences(text)] == [
        "Take e.g. 3.14 as pi.",
        "Then\ngo on.",
        "1. First, add.",
    ]
    counted = "It is 4. That is not right. Step 1. Add.\n2. Take: 1. a root 2. Two. See no. 3. Or x = 9. So"
    assert [counted[s.start : s.end] for s in sentences(counted)] == [
        "It is 4.", "That is not right.", "Step 1. Add.", "2. Take:", "1. a root 2.", "Two.", "See no. 3. Or x = 9.",
        "So",
    ]  # fmt: skip
    tagged = " ten toes. <thought> So so\n</thought> Now we add it up"
    assert [tagged[s.start : s.end] for s in sentences(tagged)] == ["ten toes.", "So so", "Now we add it up"]
    shows = "We take this. ```python\nx = 1  # Sorry.\n# Then\n``` It is done."
    assert [shows[s.start : s.end] for s in sentences(shows)] == ["We take this.", "# Sorry.", "# Then", "It is done."]
    numbered = "```python\nx = 1\n```\nWe take # 3\n(or so)"
    assert [numbered[s.start : s.end] for s in sentences(numbered)] == ["We take # 3", "(or so)"]


@pytest.mark.parametrize(
    "text",
    [
        "I apologize for the oversight.",  # nothing would be left
        "We add them up as planned. The corrected answer is 4.",
        "We add these up as planned.\n1. Sorry.\n2. We go on then.",
        "Here is the corrected sum: we add all of them up as planned.",
        "We add these up as planned. <solution>Sorry for that.</solution>",  # of a solution, from its first word on
        "We add these up as planned.\nThen comes one more.\n1. Sorry.",
        "We add these up as planned.\n1. Sorry.\nOne more is added last.",
        "Here is the corrected sum: Now five is added as planned.",
        "Five is added as planned. Here is the corrected code:\n```python\nx = 1\n```",
        "Five is added as planned. Here is the corrected code:```python\nx = 1\n```",
    ],
)
def test_what_cannot_be_cut(text: str) -> None:
    assert not can_cut(text, find_references(text, "fix"))


@pytest.mark.parametrize(
    "text",
    [
        "We add these up as planned. <solution>12</solution> Sorry for that.",
        "1. We add these up as planned.\nThat is it then.\nSorry.",
        "Sorry. Take the root.",
        "Five is added as planned. Here is the corrected code:",
    ],
)
def test_what_can_be_cut(text: str) -> None:
    cuts = find_references(text, "fix")
    assert cuts
    assert can_cut(text, cuts)


def test_three_words_say_something() -> None:
    assert says_something("So. Take the root.")
    assert not says_something("Take x. The root: 3 4 5 a b c.")


def test_who_speaks_is_no_sentence_to_lean_on() -> None:
    assert [one.rule for one in find_references("Thought: Sorry for that.", "fix")] == ["apology"]
    assert find_references("\n\nLet us import it by name.", "fix", first="leans") == []


def test_tags_that_nothing_is_left_between_go_too() -> None:
    goes, stays = "<thought> Oops. Let me fix that. </thought>", "<thought> We sum the odd ones. </thought>"
    assert kept(f"{goes}\n{stays}") == stays
    assert kept(f"{stays}\n{goes}\n") == f"{stays}\n"
    assert kept(f"{stays} {goes} We begin with 3.") == f"{stays} We begin with 3."
    assert kept("<thought>\nOops, x < 3.\nLet me fix that.\n</thought>\nWe begin with 3.") == "We begin with 3."
    assert kept(f"<thought> </thought>\nOops. {stays}") == f"<thought> </thought>\n{stays}"


def test_comments_are_cut_from_programs_and_strings_are_not() -> None:
    code = "# Since sympy is not available,\n# go by hand\nx = 1  # fixed\ny = '# error'  # the sum"
    assert without_comments(code, find_comment_references(code, "fix")) == "x = 1\ny = '# error'  # the sum"


@pytest.mark.parametrize(
    ("code", "left"),
    [
        ("x = 1\ny = 2\n# fixed\nz = 3", "x = 1\ny = 2\nz = 3"), ("\n# fixed\nx = 1", "\nx = 1"),
        ("\nx = 1  # fixed", "\nx = 1"), ("# fixed\n\nX = 1", "X = 1"),
        ("# fixed\n\n    x = 1\n    y = 2", "    x = 1\n    y = 2"), ("y = X  #fixed", "y = X"),
        ("x = 1\f# fixed", "x = 1\f"), ("# fixed\n# (or so)\nx = 1", "# (or so)\nx = 1"),
        ("# That is fixed.\n# so is y\nx = 1", "# so is y\nx = 1"),
        ("# fixed, for a large X\n# as it was\nx = 1", "x = 1"),
        ("# as it was\n# so it is\nx = 1", "# as it was\n# so it is\nx = 1"),
        ("# even, since x is\n# and because y is\nz = x + y", "# even, since x is\n# and because y is\nz = x + y"),
    ],
)  # fmt: skip
def test_a_program_keeps_its_shape_and_the_comments_that_explain_it(code: str, left: str) -> None:
    assert without_comments(code, find_comment_references(code, "fix")) == left


def test_what_a_text_is_asked_about_is_found_in_its_words_alone() -> None:
    said = "We sum the odd ones. We take another approach. We do so by hand."
    assert gives_up_plan(said) == "We take another approach."
    assert takes_back("It is so. That does not look right. Sorry.") == "That does not look right."
    assert gives_up_plan("We sum the odd ones.") is takes_back("It is 4.") is None
    assert gives_up_plan("We sum the odd ones.\n```python\nprint('by hand')\n```") is None


def test_of_an_output_that_is_described_a_rule_can_be_left_out() -> None:
    said = "It seems that x has no value. Sorry."
    assert [one.rule for one in find_references(said, "fix")] == ["seen", "apology"]
    assert [one.rule for one in find_references(said, "fix", but="seen")] == ["apology"]


def test_a_letter_that_stands_between_two_cuts_stays() -> None:
    assert kept("Sorry. X <thought> Oops. </thought> We take the root.") == "X We take the root."
