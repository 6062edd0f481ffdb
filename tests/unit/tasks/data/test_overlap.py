"""Whether a text overlaps with questions of an evaluation."""

from __future__ import annotations

from datafiles import LONG
from retcon.tasks.data.overlap import EvaluationIndex


def test_runs_that_stand_everywhere_and_short_questions_count_for_nothing() -> None:
    boilerplate = [(str(n), f"{LONG} {n} apples, {n + 1} pears and {n + 2} plums?") for n in range(11)]
    assert EvaluationIndex(boilerplate).match(f"{LONG}") is None
    assert EvaluationIndex(boilerplate[:10]).match(LONG) is not None
    assert EvaluationIndex([("a", "one two three")]).match("one two three four") is None


def test_a_drawing_is_no_words() -> None:
    index = EvaluationIndex([("a", f"{LONG}. [asy] draw((0,0)--(1,2)); [/asy] How many?")])
    assert index.match(f"{LONG}. [asy] {'label(x); ' * 99} [/asy] Why?") is not None
    assert index.match("[asy] draw((0,0)--(1,2)); [/asy] How many?") is None


def test_raised_digits_are_words_of_their_own() -> None:
    index = EvaluationIndex([("a", " ".join(f"{n}²" for n in range(1, 14)))])
    assert index.match(" ".join(f"{n}2" for n in range(1, 14))) is None
    assert index.match(" + ".join(f"{n}^2" for n in range(1, 14))) is not None


def test_half_of_a_question_is_not_enough() -> None:
    half = " ".join(f"w{n}" for n in range(13))
    index = EvaluationIndex([("a", half + " " + " ".join(f"v{n}" for n in range(13)))])
    assert index.match(half) is None
    assert index.match(f"{half} v0") is not None
