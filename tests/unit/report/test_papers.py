"""What `retcon reproduce` counts, and that every study of a paper can be made."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from comparing import FAILED, FIX, answer, repaired, trajectory
from retcon.core.types import Trajectory
from retcon.evaluate.result import Result
from retcon.report.compared.curves import COMPARED
from retcon.report.compared.reading import PLAIN, REPAIRED, ComparedRun
from retcon.report.compared.sheet import Sheet
from retcon.report.papers import counting
from retcon.report.papers.page import study_figures
from retcon.report.papers.registry import PAPERS
from retcon.report.papers.types import Paper
from retcon.report.runs import Run
from retcon.runs.metrics import Metrics
from retcon.store import jsonl

papers = pytest.mark.parametrize("paper", PAPERS.values(), ids=list(PAPERS))


def run_of(folder: Path, *lines: Metrics) -> ComparedRun:
    return ComparedRun(Run(folder, 0, list(lines), Result("/m", {}, {})), {})


def evaluated(folder: Path, condition: str, *rollouts: Trajectory) -> ComparedRun:
    (folder / condition).mkdir(parents=True)
    jsonl.write(folder / condition / counting.ROLLOUTS, rollouts)
    return run_of(folder)


def after(attempts: int, decision: str = "shallow") -> Trajectory:
    """A rollout whose first turn failed and was tried again so many times."""
    made = repaired(decision=decision)
    first = made.turns[0]
    assert first.repair is not None
    return replace(made, turns=(replace(first, repair=replace(first.repair, attempts=attempts)), *made.turns[1:]))


@papers
def test_a_study_has_arms_figures_and_curves_that_there_are(paper: Paper) -> None:
    variants = [variant.name for variant in paper.variants]
    assert len(set(variants)) == len(variants)
    assert {v.role for v in paper.variants} | {v.switches_to for v in paper.variants} <= {*paper.recipes, ""}
    used = {arm for study in paper.studies for arm in study.arms}
    assert used == set(variants[1:]), "no arm is trained for nothing"
    curves = {curve.name for curve in COMPARED}
    for study in paper.studies:
        assert paper.first.name not in study.arms
        assert set(study.curves) <= curves
        assert study.figures


@papers
def test_what_a_paper_says_has_a_source(paper: Paper) -> None:
    claims = [claim for study in paper.studies for claim in study.claims]
    assert claims
    assert all(claim.what and claim.value and claim.source for claim in claims)


def test_a_turn_counts_from_the_attempt_that_repaired_it(tmp_path: Path) -> None:
    run = evaluated(tmp_path, REPAIRED, after(1), after(3), after(3), after(2, "unrepaired"), trajectory("t/9", FIX))
    shares = [counting.repaired_by(n)(run) for n in (1, 2, 3, 4)]
    assert shares == [0.25, 0.25, 0.75, 0.75]


def test_what_was_not_repaired_or_not_kept_has_no_share(tmp_path: Path) -> None:
    assert counting.repaired_by(1)(run_of(tmp_path)) is None
    assert counting.repaired_by(1)(evaluated(tmp_path, REPAIRED, trajectory("t/0", FIX))) is None


def test_what_was_compressed_since_is_counted_too(tmp_path: Path) -> None:
    run = evaluated(tmp_path, PLAIN, trajectory("t/0", FAILED, FIX, answer("9")))
    file = tmp_path / PLAIN / counting.ROLLOUTS
    file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    file.unlink()
    assert counting.failing_calls_of_right(run) == 0.5


def test_errors_are_counted_in_right_rollouts_alone(tmp_path: Path) -> None:
    done = answer("9")
    right = trajectory("t/0", FAILED, FIX, done), trajectory("t/1", FIX, FIX, done)
    wrong = trajectory("t/2", FAILED, FAILED, done, reward=-1.0)
    lost = trajectory("t/3", FAILED, reward=None)
    assert counting.failing_calls_of_right(evaluated(tmp_path, PLAIN, *right, wrong, lost)) == 0.25
    assert counting.failing_calls_of_right(run_of(tmp_path / "none")) is None


def test_costs_are_those_of_all_rollouts_that_were_made() -> None:
    lines: list[Metrics] = [
        {"rollouts": 8, "sampled_tokens": 400, "cpu_s": 1.0, "shallow": 3, "deep": 1, "cut_off": 0.5},
        {"rollouts": 8, "sampled_tokens": 800, "cpu_s": 4.0, "shallow": 0, "deep": 0, "cut_off": 0.25},
    ]
    run = run_of(Path(), *lines)
    assert counting.cpu_of_a_rollout(run) == 250
    assert counting.tokens_of_a_rollout(run) == 75
    assert counting.deep_share(run) == 0.25
    assert counting.cut_off(run) == 0.375
    without = run_of(Path(), {"rollouts": 8})
    assert counting.cpu_of_a_rollout(without) is counting.deep_share(without) is counting.cut_off(without) is None


def test_a_wide_sheet_comes_in_parts_with_the_notes_below_the_last() -> None:
    sheet = Sheet("S", ("", "a", "b", "c"), (("one", (("row", "1", "2", "3"),)),), ("A note.",))
    first, second = sheet.parts(2)
    assert (first.columns, second.columns) == (("", "a", "b"), ("", "c"))
    assert first.sections == (("one", (("row", "1", "2"),)),)
    assert second.sections == (("one", (("row", "3"),)),)
    assert (first.notes, second.notes) == ((), ("A note.",))


def test_limits_of_a_share_are_shares(tmp_path: Path) -> None:
    study = next(study for study in PAPERS["rstar2"].studies if study.name == "overlong")
    runs = [run_of(tmp_path, {"step": 1, "cut_off": share}) for share in (0.9, 1.0)]
    (row,) = (row for row in study_figures(study, {"roc": runs}) if row.name == "cut_off")
    assert row.arms["roc"] is not None
    assert (row.arms["roc"].mean, row.arms["roc"].high) == (0.95, 1.0)
