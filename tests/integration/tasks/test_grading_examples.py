"""What Math-Verify documents of itself, and answers of all kinds: each gets a verdict or is a fault, in time."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import sys
from pathlib import Path

import pytest

from retcon.tasks.grading.grading import GradeSettings
from retcon.tasks.grading.registry import Fault
from retcon.tasks.types import Task

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))  # last: `sessions` is in both

import grading  # benchmarks/grading.py

needs_math_verify = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None, reason="grading by mathematics needs the [grade] extra"
)


@needs_math_verify
@pytest.mark.slow
def test_what_math_verify_documents_holds() -> None:
    assert grading.examples(argparse.Namespace(at_once=2)) == {"examples": 36, "agree": 36}


@needs_math_verify
@pytest.mark.slow
def test_fuzzed_answers_get_a_verdict_or_are_faults() -> None:
    cases = [(Task("t", "", answer), reply) for answer, reply in grading.fuzzed(1, 60, hostile=0.05)]
    said = asyncio.run(grading.outcomes(GradeSettings(options={"math": {"seconds": 2.0}}), cases, 2))
    assert len(said) == 60
    assert [one.why for one in said if isinstance(one, Fault) and "could not be graded" not in one.why] == []
    assert sum(isinstance(one, Fault) for one in said) < 10
    assert any(grading.right(one) for one in said)


@pytest.mark.parametrize("name", ["exact", "choice"])
def test_fuzzed_answers_are_graded_as_text(name: str) -> None:
    cases = [(Task("t", "", "B"), reply) for _, reply in grading.fuzzed(2, 2000)]
    said = asyncio.run(grading.outcomes(GradeSettings(name), cases, 2))
    assert not any(isinstance(one, Fault) for one in said)


def test_the_forms_of_an_answer_are_what_they_are_called() -> None:
    forms = grading.equal_forms(r"\frac{1}{4}")
    assert forms["decimal"] == r"\boxed{0.25}"
    assert forms["2a/2b"] == r"\boxed{\frac{2}{8}}"
    wrong = grading.wrong_forms("(1, -2)", "7")
    assert wrong["the other way round"] == r"\boxed{( -2,1)}"
    assert wrong["a digit off"] == r"\boxed{(1, -3)}"
    assert not set(wrong.values()) & set(grading.equal_forms("(1, -2)").values())
