"""The table of outputs: each failure is recognised by the rule that it is for, each look-alike is none."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from retcon.transcripts.failures.rules import RULES, UNCLEAR, judge, looks_clean

TABLES = Path(__file__).parents[2] / "outputs"


def table(name: str) -> list[Any]:
    outputs = tomllib.loads((TABLES / name).read_text("utf-8"))["output"]
    return [pytest.param(one, id=f"{n}: {one['by']}") for n, one in enumerate(outputs)]


FAILURES, SUCCESSES = table("failures.toml"), table("successes.toml")


@pytest.mark.parametrize("output", FAILURES)
def test_a_failure_is_recognised_by_its_rule(output: dict[str, str]) -> None:
    verdict = judge(output["text"], output.get("code", "some(code)"))
    assert verdict is not None
    assert (verdict.rule, verdict.status) == (output["rule"], output.get("status", "error"))
    if "type" in output:
        assert verdict.error_type == output["type"]
    assert not looks_clean(output["text"])


@pytest.mark.parametrize("output", SUCCESSES)
def test_what_looks_like_a_failure_is_none(output: dict[str, Any]) -> None:
    verdict = judge(output["text"], output.get("code", "some(code)"))
    assert (verdict and verdict.rule) == (UNCLEAR if output.get("own") else None)
    assert looks_clean(output["text"]) or output.get("own")


def test_the_table_has_wordings_for_every_rule_and_enough_of_them() -> None:
    rules = {param.values[0]["rule"] for param in FAILURES}
    assert rules == set(RULES) - {"status", "malformed"}  # these two are about fields and arguments, not outputs
    assert len(FAILURES) >= 60
    assert len(SUCCESSES) >= 40
