"""summary.json: which figures, from which numbers, with which intervals."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from comparing import FAILED, FIX, comparison, trajectory
from retcon.core.errors import CheckpointError, RecordError
from retcon.core.types import Trajectory
from retcon.evaluate.result import Result, read_result, score, write_result
from retcon.evaluate.statistics import exactly, over_problems, over_seeds
from retcon.report.runs import Run, read_metrics
from retcon.report.tables import figures, write_summary

NAMES = ("pass1_t1", "pass8_t1", "pass1", "pass8", "failed_calls_t1", "failed_calls")
COSTS = ("tokens", "rollouts", "wall_s", "cpu_s")


def scored(*groups: list[Trajectory]) -> Result:
    named = [(f"t{n}", group) for n, group in enumerate(groups)]
    return Result("/c", {}, {}).with_setting("t1", score(named, temperature=1, top_p=1, cpu_s=1, wall_s=1))


def test_every_figure_is_there_as_mean_low_high(tmp_path: Path) -> None:
    write_summary(tmp_path / "summary.json", comparison(seeds=3))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["seeds"] == [0, 1, 2]
    assert summary["seconds"] == 312.5
    assert list(summary["arms"]) == ["baseline", "saar"]
    for arm in summary["arms"].values():
        for name in NAMES + COSTS:
            assert arm[name]["low"] <= arm[name]["mean"] <= arm[name]["high"], name
    assert summary["cold_start"]["pass1_t1"]["low"] < summary["cold_start"]["pass1_t1"]["mean"]


def test_several_runs_have_t_intervals_over_seeds() -> None:
    runs = comparison(seeds=3).arms["saar"]
    means = [statistics.fmean(r.result.settings["t1"].passes(1)) for r in runs]
    assert figures(runs)["pass1_t1"] == over_seeds(means, floor=0, ceiling=1)
    last = [statistics.fmean(m["raw_failures"] or 0 for m in r.metrics[-10:]) for r in runs]
    assert figures(runs)["train_failed_calls_raw"] == over_seeds(last, floor=0)


def test_what_was_not_measured_is_none_not_zero() -> None:
    run = Run(Path("r"), 0, [], scored([trajectory("t0/0", FIX)]))
    told = figures([run])
    assert told["pass8_t1"] is None  # one sample
    assert told["pass1"] is None  # no such setting
    assert told["cpu_s"] is None
    assert told["rollouts"] is None
    assert figures([replace(run, demonstrations=64)])["rollouts"] == exactly(64)


def test_infrastructure_losses_are_counted_and_left_out() -> None:
    lost = replace(trajectory("t0/1", FAILED, reward=None), stop="infrastructure")
    result = scored([trajectory("t0/0", FIX), lost], [replace(lost, id="t1/0")])
    setting = result.settings["t1"]
    assert setting.lost == 2
    assert [(p.samples, p.passed) for p in setting.problems] == [(1, 1), (0, 0)]
    assert result.pass1 == {"t1": 1.0}
    assert setting.failure_types == {}
    assert setting.stops == {"answer": 1}


def test_failed_calls_are_raw_and_counted_by_type() -> None:
    setting = scored([trajectory("t0/0", FAILED, FAILED, FIX), trajectory("t0/1", FIX, reward=-1.0)]).settings["t1"]
    assert setting.problems[0].failed_calls == 1.0
    assert setting.problems[0].passed == 1
    assert setting.failure_types == {"NameError": 2}


def test_results_read_back_equal_and_broken_ones_are_named(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with pytest.raises(CheckpointError, match="retcon eval"):
        read_result(path)
    result = scored([trajectory("t0/0", FIX)])
    write_result(path, result)
    assert read_result(path) == result
    path.write_text(path.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(CheckpointError, match=r"result\.json: format 9"):
        read_result(path)
    path.write_text("{")
    with pytest.raises(CheckpointError, match=r"result\.json: the evaluation result cannot be read"):
        read_result(path)


def test_a_broken_line_of_metrics_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 0.5, "note": "text"}\n{"step": \n')
    with pytest.raises(RecordError, match=r"metrics\.jsonl, line 2"):
        read_metrics(path)
    path.write_text('{"step": 1, "loss": 0.5, "note": "text"}\n')
    assert read_metrics(path) == [{"step": 1, "loss": 0.5}]


def test_pass_at_4_stands_where_there_are_too_few_samples_for_pass_at_8() -> None:
    right, wrong = trajectory("t0/0", FIX, reward=1.0), trajectory("t0/1", FIX, reward=-1.0)
    four = figures([Run(Path("r"), 0, [], scored([right, wrong, wrong, wrong], [wrong] * 4))])
    assert four["pass4_t1"] == over_problems([1.0, 0.0])
    assert four["pass8_t1"] is None
    eight = figures([Run(Path("r"), 0, [], scored([right] + [wrong] * 7))])
    assert eight["pass4_t1"] is None
    assert eight["pass8_t1"] == over_problems([1.0])
