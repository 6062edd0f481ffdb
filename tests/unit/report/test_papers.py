"""What `retcon reproduce` counts, and that every study of a paper can be made."""

from __future__ import annotations

import gzip
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from comparing import FAILED, FIX, answer, comparison, repaired, trajectory
from retcon.cli.reproduce import PAPERS
from retcon.config.load import load_recipe
from retcon.core.types import Trajectory
from retcon.evaluate.result import Result, score
from retcon.report.comparison import PLAIN, REPAIRED, ArmRun
from retcon.report.papers import types as counting
from retcon.report.papers import types as spikes
from retcon.report.papers.page import SHAPE_ONLY, PaperResults, StudyReport, all_figures, write_reproduction
from retcon.report.papers.types import Claim, Ours, Paper, table
from retcon.report.runs import Run
from retcon.report.tables import Sheet
from retcon.runs.metrics import Metrics
from retcon.store import jsonl

needs_matplotlib = pytest.mark.skipif(find_spec("matplotlib") is None, reason="pictures need the [report] extra")
papers = pytest.mark.parametrize("paper", PAPERS.values(), ids=list(PAPERS))


def run_of(folder: Path, *lines: Metrics) -> ArmRun:
    return ArmRun(Run(folder, 0, list(lines), Result("/m", {}, {})), {})


def evaluated(folder: Path, condition: str, *rollouts: Trajectory) -> ArmRun:
    (folder / condition).mkdir(parents=True)
    jsonl.write(folder / condition / counting.ROLLOUTS, rollouts)
    return run_of(folder)


def after(attempts: int, decision: str = "shallow") -> Trajectory:
    """A rollout whose first turn failed and was tried again so many times."""
    made = repaired(decision=decision)
    first = made.turns[0]
    assert first.repair is not None
    return replace(made, turns=(replace(first, repair=replace(first.repair, attempts=attempts)), *made.turns[1:]))


def test_a_table_loses_no_cell_and_has_as_many_as_columns() -> None:
    columns = (("A", "pass1", "easier"), ("B", "", "no such problems"), ("C", "", "no such problems"))
    found = list(table("table 9", columns, ("ours", "1.0 2.0 -", "arm", "smaller"), ("others'", "3 - 4", "", "theirs")))
    assert found == [
        Claim("ours: A", "1.0", "table 9", Ours("arm", "pass1"), "smaller; easier"),
        Claim("ours", "B 2.0", "table 9", None, "no such problems"),
        Claim("others'", "A 3, C 4", "table 9", None, "theirs"),
    ]
    with pytest.raises(ValueError, match="shorter"):
        list(table("table 9", columns, ("ours", "1.0 2.0", "arm", "")))


def reported(paper: Paper, only: str, out: Path, *, seeds: int = 1, quick: bool = False) -> tuple[StudyReport, str]:
    """A study of runs that could have happened, and its page."""
    study = next(study for study in paper.studies if study.name == only)
    names = paper.compared(study)
    runs = {
        arm: [
            ArmRun(run, {PLAIN: run.result, REPAIRED: run.result})
            for run in comparison((arm,), seeds=seeds, steps=12, samples=16).arms[arm]
        ]
        for arm in names
    }
    recipes = {arm: load_recipe("mini/cleaner") for arm in names}
    found = PaperResults(paper, (study,), runs, recipes, dict.fromkeys(names, "mini"), "retcon reproduce", 1.0, quick)
    (report,) = write_reproduction(found, out)
    return report, (out / "reproduction.md").read_text()


@needs_matplotlib
def test_the_papers_table_stands_beside_ours_cell_by_cell(tmp_path: Path) -> None:
    report, page = reported(PAPERS["cleaner"], "tools", tmp_path)
    lines = {what: (value, here, differs) for what, _, value, here, differs in report.lines}
    value, here, _ = lines["+ SAAR: AIME24 pass@1/16"]
    pass1, pass16 = (float(number) for number in here.split("/"))
    assert value == "72.7/87.6"
    assert (pass1, pass16) == (pytest.approx(85, abs=10), pytest.approx(100, abs=5)), "in percent, as there"
    value, here, differs = lines["+ SAAR"]
    assert value == "AIME25 pass@1/16 67.1/84.1, GPQA 60.2, LiveCodeBench-v6 26.8"
    assert here == "–"
    assert "no science problems here" in differs
    assert f"| + SAAR: AIME24 pass@1/16 | table 2, Qwen3-4B-Instruct | 72.7/87.6 | {pass1}/{pass16:.1f} |" in page
    assert "could not be read" not in page
    assert SHAPE_ONLY not in page.lower()


@needs_matplotlib
def test_each_row_of_a_quick_run_is_marked(tmp_path: Path) -> None:
    report, page = reported(PAPERS["cleaner"], "main", tmp_path, quick=True)
    assert all(differs.startswith(SHAPE_ONLY) for *_, differs in report.lines)
    assert "**Shape only: " in page.partition("## ")[0], "at the top"
    settings = page.partition("## Settings")[2]
    assert "| K; γ | table 5 | 3; 0.5 | 3; 0.5 | shape only |" in settings


@needs_matplotlib
def test_a_recovery_is_compared_with_purification_from_the_start_as_well(tmp_path: Path) -> None:
    report, _ = reported(PAPERS["cleaner"], "recovery", tmp_path, seeds=2)
    assert report.sheet.sections[1][0] == "less baseline"
    _, _, value, here, _ = next(line for line in report.lines if line[0] == "less SAAR from the first step")
    assert (value, here) == ("lower; no number", ".0; .0; .00"), "these runs are alike"


@needs_matplotlib
def test_a_study_whose_data_are_missing_says_so_in_a_sentence(tmp_path: Path) -> None:
    paper = PAPERS["rstar2"]
    study = next(study for study in paper.studies if study.name == "overlong")
    runs = {arm: [run_of(tmp_path, {"step": 1})] for arm in paper.compared(study)}
    found = PaperResults(paper, (study,), runs, {}, dict.fromkeys(runs, "mini"), "retcon reproduce", 1.0)
    (report,) = write_reproduction(found, tmp_path)
    assert "None of this study's figures was measured" in (tmp_path / "reproduction.md").read_text()
    assert all(here == "–" and differs for *_, here, differs in report.lines)


def test_evaluation_minutes_are_those_of_one_model_with_and_without_purification(tmp_path: Path) -> None:
    off = Result("/m", {}, {}).with_setting("t1", score([], temperature=1, top_p=1, cpu_s=60, wall_s=90))
    on = Result("/m", {}, {}).with_setting("t1", score([], temperature=1, top_p=1, cpu_s=75, wall_s=120))
    run = ArmRun(Run(tmp_path, 0, [], off), {PLAIN: off, REPAIRED: on})
    assert counting.evaluation_minutes(PLAIN)(run) == 1
    assert counting.evaluation_minutes(REPAIRED, wall=True)(run) == 2
    assert counting.slowdown(run) == pytest.approx(25)
    assert counting.slowdown(ArmRun(run.run, {PLAIN: off})) is None


def test_failures_and_accuracy_are_correlated_by_their_changes() -> None:
    failures, heights = [1.0, 2.0, 1.5, 2.5, 2.0, 3.0], [0.9, 0.5, 0.6, 0.3, 0.5, 0.1]
    lines: list[Metrics] = [
        {"raw_failures": f, "pass_rate": h, "eval_pass_rate": h if n % 2 else None}
        for n, (f, h) in enumerate(zip(failures, heights, strict=True))
    ]
    found = spikes.correlation(run_of(Path(), *lines), "pass_rate")
    assert found is not None
    assert found.mean == pytest.approx(np.corrcoef(np.diff(failures), np.diff(heights))[0, 1])
    assert -1 <= found.low < found.mean < found.high < 0
    steps, failing, accuracy = spikes.failures_and_accuracy(run_of(Path(), *lines), "eval_pass_rate")
    assert steps.tolist() == [2, 4, 6]
    assert failing.tolist() == [1.5, 2.0, 2.5], "the mean since the point before"
    assert accuracy.tolist() == [0.5, 0.3, 0.1]
    assert spikes.correlation(run_of(Path(), *lines), "eval_pass_rate") is None, "two changes are too few"
    assert spikes.correlation(run_of(Path(), *[{**line, "pass_rate": 1.0} for line in lines]), "pass_rate") is None


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
    row = all_figures(study, {"roc": runs})["cut_off"]
    assert row.arms["roc"] is not None
    assert (row.arms["roc"].mean, row.arms["roc"].high) == (0.95, 1.0)
