"""What `retcon compare` says of a run that is over and has lost some of its files."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from retcon.cli.compare import CompareOptions, Comparison, Match, budget_words, make_plan, read_arms
from retcon.cli.runner import Target, check_same_inputs, pending
from retcon.core.errors import CheckpointError, RecordError
from retcon.evaluate.result import Result, read_result, score, setting_names, write_result
from retcon.report.comparison import read_arm_run
from retcon.report.runs import run_folder


@pytest.mark.parametrize("lines", [[], [{"step": 1, "loss": 0.5}]], ids=["empty", "another's"])
@pytest.mark.parametrize(("match", "metric"), [("tokens", "sampled_tokens"), ("wall", "cpu_s")])
def test_a_budget_that_the_first_arm_no_longer_tells_is_not_taken_for_none(
    tmp_path: Path, match: Match, metric: str, lines: list[dict[str, float]]
) -> None:
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(RecordError, match=rf"metrics\.jsonl has no {metric}: remove .*trains that run again"):
        budget_words(match, tmp_path)


def test_a_run_without_a_step_has_no_figures_of_0(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "saar", 3)
    (folder / "eval").mkdir(parents=True)
    write_result(folder / "eval/result.json", Result("base", {}, {}))
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    assert len(read_arm_run(tmp_path, "saar", 3).run.metrics) == 1
    (folder / "metrics.jsonl").write_text("")
    error = r"seed-3/metrics\.jsonl has no step of .*: remove .*seed-3 to train it again"
    with pytest.raises(RecordError, match=error):
        read_arm_run(tmp_path, "saar", 3)
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(RecordError, match=error):
        read_arm_run(tmp_path, "saar", 3)


def test_a_result_that_cannot_be_read_can_be_measured_again(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"checkpoint": "ba')
    with pytest.raises(CheckpointError, match=r"result\.json: .* cannot be read: .*; remove it to evaluate again"):
        read_result(tmp_path / "result.json")


def planned(out: Path, *arms: str, match: Match = "rollouts") -> Comparison:
    return make_plan(CompareOptions(out, 1, match), read_arms(arms))


def make(target: Target) -> None:
    """As its job leaves it."""
    if target.trains:
        target.makes.mkdir(parents=True)
        return
    target.makes.parent.mkdir(parents=True, exist_ok=True)
    setting, result = score([], temperature=1.0, top_p=1.0, cpu_s=1.0, wall_s=1.0), Result("base", {}, {})
    for name in setting_names(target.recipe.evaluate.top_p):
        result = result.with_setting(name, setting)
    write_result(target.makes, result)


def names(targets: list[Target]) -> list[str]:
    return [target.job.name for target in targets]


@pytest.mark.parametrize("match", ["tokens", "wall"])
def test_an_arm_whose_budget_is_the_firsts_needs_the_cold_start_and_of_the_first_its_metrics_alone(
    tmp_path: Path, match: Match
) -> None:
    """Its CPU seconds would be others, and the budget too."""
    arms = ("mini/dapo-baseline", "mini/cleaner")
    plan = planned(tmp_path, *arms, match=match)
    for target in plan.trained["dapo-baseline", 0]:
        make(target)
    second = names(list(plan.trained["cleaner", 0]))
    assert names(pending(plan.targets)) == ["cold start, seed 0", *second]
    make(plan.cold["", 0])
    plan.trained["dapo-baseline", 0][0].makes.rmdir()
    assert names(pending(plan.targets)) == second


def test_runs_of_what_has_changed_under_its_name_are_not_compared(tmp_path: Path) -> None:
    """A file of problems whose answers were mended, or a model that was trained on: the recipes say the same, and the
    problems keep their ids."""
    arms = read_arms(("mini/dapo-baseline", "mini/cleaner"))
    targets = make_plan(CompareOptions(tmp_path, 1, "rollouts", start="base"), arms).targets
    results = [target.makes for target in targets if not target.trains]
    runs = [target.makes.parent for target in targets if target.trains]
    for target in targets:
        make(target)
    check_same_inputs(targets)  # of an earlier version, which told nothing
    for file in results:
        write_result(file, msgspec.structs.replace(read_result(file), inputs={"problems": "before"}))
    for run in runs:
        (run / "run.json").write_text(json.dumps({"inputs": {"start": "before"}}))
    made = check_same_inputs(targets)
    assert sorted((what, value) for (what, _), (value, _) in made.items()) == [
        ("problems", "before"), ("weights", "before"),
    ]  # fmt: skip

    write_result(results[-1], msgspec.structs.replace(read_result(results[-1]), inputs={"problems": "after"}))
    told = rf"{results[0]} and {results[-1]} are of different problems: .*Remove the runs .*or choose another --out"
    with pytest.raises(CheckpointError, match=told):
        check_same_inputs(targets)
    results[-1].unlink()
    (runs[1] / "run.json").write_text(json.dumps({"inputs": {"start": "after"}}))
    with pytest.raises(CheckpointError, match=f"{runs[0]} and {runs[1]} are of different weights"):
        check_same_inputs(targets)
