"""docs/sandbox/threats.md: no claim without a test, in each tier for which it is made."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from retcon.sandbox.jail.confine.confinement import Confinement

PROJECT = Path(__file__).resolve().parents[3]
PAGE = (PROJECT / "docs/sandbox/threats.md").read_text(encoding="utf-8")
ATTACKS = PROJECT / "tests/integration/sandbox"
TIERS = ("namespaces", "landlock", "rlimits")
NAMED = {
    "ALL": TIERS, "CONTAINED": TIERS[:2], "LOOKED_AT": TIERS[1:], "NAMESPACES": TIERS[:1], "LANDLOCK": TIERS[1:2],
    "RLIMITS": TIERS[2:],
}  # fmt: skip
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and "`test_" in line]


def tiers_of(test: ast.FunctionDef) -> set[str]:
    """In which a test is run: as its decorator says, all where it has none."""
    for decorator in test.decorator_list:
        text = ast.unparse(decorator)
        if text.startswith("contained_by("):
            return {tier for name in re.findall(r"\b[A-Z][A-Z_]+\b", text) for tier in NAMED[name]}
    return set(TIERS)


@cache
def defined_in(path: Path) -> dict[str, set[str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name: tiers_of(node) for node in tree.body if isinstance(node, ast.FunctionDef)}


def named(text: str) -> list[tuple[Path, str]]:
    """The tests that a text names, each after its file; all of a file where it says so."""
    found = []
    for path, rest in re.findall(r"`([\w/]+\.py)`(.*?)(?=`[\w/]+\.py`|$)", text, re.DOTALL):
        file = PROJECT / path if "/" in path else ATTACKS / path
        names = re.findall(r"`(test_\w+)`", rest) or (list(defined_in(file)) if "all of it" in rest else [])
        found += [(file, name) for name in names if name.startswith("test_")]
    return found


def test_each_claim_names_a_test_that_is_run_in_its_tier() -> None:
    untried = []
    for row in ROWS:
        _, claim, *held, tests, _ = row.split("|")
        claimed = {tier for tier, cell in zip(TIERS, held, strict=True) if cell.strip() != "no"}
        tried = {tier for file, name in named(tests) for tier in defined_in(file).get(name, ())}
        untried += [(claim.strip(), tier) for tier in claimed - tried]
    assert untried == []


def test_every_test_that_the_page_names_is_there() -> None:
    every = [(file, name) for part in re.split(r"\n\n", PAGE) for file, name in named(part)]
    assert [(file.name, name) for file, name in every if name not in defined_in(file)] == []


@pytest.mark.parametrize("tier", TIERS)
def test_what_doctor_and_service_name_as_open_is_what_the_page_denies(tier: str) -> None:
    made = Confinement(tier, "/")
    made.network = made.system_calls = True
    made.files = made.processes = tier != "rlimits"
    said = {line.partition(":")[0] for line in made.unprotected()}
    denied = {
        part.lower()
        for part, rows in re.findall(r"^## (Files|Processes|Network)\n(.*?)(?=^## )", PAGE, re.DOTALL | re.MULTILINE)
        for row in rows.splitlines()
        if row.startswith("| ") and row.split("|")[2 + TIERS.index(tier)].strip() == "no"
    }
    assert said == denied


def test_the_page_is_not_read_past() -> None:
    assert len(ROWS) > 30
