"""The page and the table: nothing from outside, nothing unescaped, each arm with its own look."""

import io
import json
import random
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

from comparing import FIX, answer, comparison, repaired, result, trajectory
from retcon.config.load import load_recipe
from retcon.evaluate.result import Problem, Result, Setting, write_result
from retcon.evaluate.statistics import exactly
from retcon.report.page import Report, comparison_page
from retcon.report.plots import (
    CURVES,
    Curve,
    drop_partial_steps,
    escape_name,
    line_styles,
    min_mean_max,
    places_of,
    running_mean,
    steps_of,
    value_of,
)
from retcon.report.runs import showcase, showcase_in, view
from retcon.report.tables import (
    ROWS,
    comparison_table,
    describe_cut_off,
    figures,
    measured_rows,
    result_table,
    result_title,
)
from retcon.runs.folder import manifest
from retcon.store import jsonl

EVIL = "<script>alert('x')</script> & \"q\""


def test_the_page_escapes_what_runs_say() -> None:
    evil = trajectory(EVIL, replace(FIX, segments=(replace(FIX.segments[0], text=EVIL),)), answer(EVIL))
    escape_name = comparison_page(Report(comparison((EVIL,), steps=3), {}, evil, [EVIL]))
    assert "<script" not in escape_name
    assert escape_name.count("&lt;script&gt;") >= 5


def test_the_page_shows_the_failure_before_and_the_fix_after() -> None:
    escape_name = comparison_page(Report(comparison(steps=3), {}, repaired(), []))
    before, after = escape_name.split("As it is trained on")
    assert '<pre class="removed">first find x.' in before
    assert '<pre class="failed">NameError' in before
    assert '<pre class="spliced">that failed. try again.' in after
    assert "NameError" not in after


def test_the_running_mean_is_centred_and_passes_over_gaps() -> None:
    values = np.array([1.0, np.nan, 3.0, 4.0, 5.0, 6.0, 7.0])
    assert running_mean(values).tolist() == [2.0, 8 / 3, 3.25, 4.5, 5.0, 5.5, 6.0]
    assert running_mean(np.array([3.0, 2.0, 1.0])).tolist() == [3.0, 2.0, 1.0], "no flat line of a run of a few steps"


def test_arms_keep_their_looks_whatever_stands_beside_them() -> None:
    assert line_styles(["saar"])["saar"] == line_styles(["mine", "baseline", "saar"])["saar"]
    mixed = line_styles(["mine", "baseline", "other", "saar", "roc"])
    assert len({look.colour for look in mixed.values()}) == 5


@pytest.mark.parametrize(("seeds", "note"), [(1, "one seed says nothing"), (3, "over 3 seeds")])
def test_the_table_says_where_its_ranges_come_from(seeds: int, note: str) -> None:
    told = comparison(seeds=seeds, steps=3)
    table = comparison_table(figures([told.cold_start]), {a: figures(r) for a, r in told.arms.items()}, seeds=seeds)
    console = Console(width=120)
    with console.capture() as captured:
        console.print(table)
    assert note in captured.get()
    assert "baseline" in captured.get()


def test_the_showcase_is_the_shortest_shallow_success() -> None:
    long = trajectory("long/0", *repaired().turns, answer("so the answer is \\boxed{9}, and so on"))
    found = showcase(
        [repaired("a/0", decision="deep"), repaired("b/0", reward=-1.0), long, repaired("d/0"), trajectory("e/0", FIX)]
    )
    assert found is not None
    assert found.id == "d/0"
    assert showcase([trajectory("e/0", FIX)]) is None


def test_the_showcase_of_a_run_is_from_its_latest_step_that_has_one(tmp_path: Path) -> None:
    assert showcase_in(tmp_path) is None
    (tmp_path / "trajectories").mkdir()
    for step, made in ((1, repaired("a/0")), (20, repaired("b/0")), (40, trajectory("c/0", FIX))):
        jsonl.write(tmp_path / "trajectories" / f"step-{step:06d}.jsonl", [made])
    found = showcase_in(tmp_path)
    assert found is not None
    assert (found[0].id, found[1].name) == ("b/0", "step-000020.jsonl")


def test_an_evaluation_says_what_it_measured_and_how() -> None:
    made = result(random.Random(0), 0.5, 0.3)
    assert result_title(made) == f"{made.checkpoint}, purification off"
    repaired_live = msgspec.structs.replace(made, recipe={"evaluate": {"repair": "saar"}})
    assert result_title(repaired_live) == f"{made.checkpoint}, failed turns repaired (saar)"


def test_an_evaluation_fits_eighty_columns_and_tells_pass_at_16() -> None:
    found = result(random.Random(0), 0.5, 0.3, samples=16)
    wide = {name: replace_tokens(setting, 12345.6) for name, setting in found.settings.items()}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(result_table(msgspec.structs.replace(found, settings=wide)))
    text = console.export_text()
    assert "…" not in text
    rows = [line.split()[0] for line in text.splitlines() if line.strip()]
    assert [row for row in rows if row.startswith("pass@")] == ["pass@1", "pass@8", "pass@16"]


def test_an_evaluation_on_several_files_has_a_line_of_each() -> None:
    names = ["gpqa/0", "gpqa/1", "aime/0", "aime/1", "aime/2"]
    problems = [Problem(name, 4, int(name[-1]), 0.0, 9.0) for name in names]
    setting = Setting(1.0, 1.0, problems, 0, {}, {}, 1.0, 1.0)
    sources = [{"path": "data/gpqa.csv"}, {"path": "aime.jsonl.gz"}]
    several = Result("m", {"task": {"sources": sources}}, {"t1": setting})
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(result_table(several))
    lines = [line for line in console.export_text().splitlines() if "pass@1, " in line]
    assert [line.split()[1:4] for line in lines] == [["gpqa", "(2)", ".125"], ["aime", "(3)", ".250"]]
    console.print(result_table(Result("m", {"task": {"sources": sources[:1]}}, {"t1": setting})))
    assert "pass@1, " not in console.export_text()


@pytest.mark.parametrize(("cut", "told"), [(10, False), (11, True)])
def test_an_evaluation_tells_of_rollouts_that_were_cut_off(cut: int, told: bool) -> None:
    found = result(random.Random(0), 0.5, 0.3)
    stops = {"answer": 50 - cut // 2, "length": cut // 2}, {"answer": 50 - (cut - cut // 2), "length": cut - cut // 2}
    settings = {
        name: msgspec.structs.replace(setting, stops=ends)
        for (name, setting), ends in zip(found.settings.items(), stops, strict=True)
    }
    made = msgspec.structs.replace(found, settings=settings, recipe={"rollout": {"max_tokens": 1120}})
    said = describe_cut_off(made)
    assert bool(said) is told
    assert not told or (said.startswith("11 of 100 rollouts ended for want of tokens") and "here 1120" in said)


def replace_tokens(setting: Setting, tokens: float) -> Setting:
    problems = [msgspec.structs.replace(p, tokens=tokens + n) for n, p in enumerate(setting.problems)]
    return msgspec.structs.replace(setting, problems=problems)


def test_four_arms_lose_no_figure_at_eighty_columns() -> None:
    arms = ("baseline", "saar", "roc")
    console = Console(width=80, record=True, file=io.StringIO())
    of_arms = {arm: figures(runs) for arm, runs in comparison(arms, steps=3).arms.items()}
    console.print(comparison_table(of_arms["baseline"], of_arms, seeds=1))
    assert "…" not in console.export_text()


def test_rows_that_nothing_was_measured_for_are_left_out_and_sections_still_end() -> None:
    nothing = dict.fromkeys((row.figure for row in ROWS), None)
    arms = {"baseline": {**nothing, "pass1_t1": exactly(0.5), "tokens": exactly(60)}}
    escape_name = measured_rows(nothing, arms)
    assert [(row.figure, ends) for row, ends in escape_name] == [("pass1_t1", True), ("tokens", True)]


@pytest.mark.parametrize(
    ("name", "text"), [("saar", "saar"), ("_own", " _own"), ("$x$", r"\$x\$"), ("a\udcff", "a?")],
    ids=["plain", "underscore", "dollars", "no text"],
)  # fmt: skip
def test_names_are_drawn_as_they_are(name: str, text: str) -> None:
    assert escape_name(name) == text


def test_a_curve_is_of_the_steps_that_all_seeds_have_by_number_or_by_what_was_spent() -> None:
    short, long = (comparison(seeds=1, steps=steps).arms["saar"][0] for steps in (2, 3))
    short = replace(short, metrics=[{"step": 1, "a": 1.0, "b": 10.0}, {"step": 2, "a": None, "b": 10.0}])
    long = replace(long, metrics=[{"step": n, "a": float(n), "b": 30.0} for n in (1, 2, 3)])
    by_step, by_b = Curve("a", "a", "A", ""), Curve("a", "a", "A", "", over="b")
    assert np.array_equal(steps_of([short, long], by_step), [[1.0, np.nan], [1.0, 2.0]], equal_nan=True)
    assert steps_of([short, replace(long, metrics=[{"step": 1, "b": 1.0}])], by_step).size == 0, "one has none"
    assert list(places_of([short, long], by_step, 2)) == [1, 2]
    assert list(places_of([short, long], by_b, 2)) == [20.0, 40.0], "the mean of what the seeds had spent"


def test_a_mean_of_evaluations_is_of_all_seeds() -> None:
    """Runs that end with a budget are evaluated at ends of their own: the last point would be the first one's alone."""
    ends = np.array([[np.nan, 0.3, 0.9], [np.nan, 0.1, np.nan]])
    assert np.array_equal(drop_partial_steps(ends), [[np.nan, 0.3, np.nan], [np.nan, 0.1, np.nan]], equal_nan=True)
    apart = np.array([[0.3, np.nan], [np.nan, 0.1]])
    assert np.array_equal(drop_partial_steps(apart), apart, equal_nan=True), "else there would be no curve"


def test_tokens_of_a_curve_are_those_of_a_rollout() -> None:
    (curve,) = (curve for curve in CURVES if curve.name == "sampled_tokens")
    assert value_of({"sampled_tokens": 100.0, "rollouts": 8}, curve) == 12.5
    for lacking in ({"sampled_tokens": 100.0}, {"sampled_tokens": 100.0, "rollouts": 0}, {"rollouts": 8}):
        assert value_of(lacking, curve) is None


def test_a_seed_that_lacks_a_step_takes_it_from_no_other() -> None:
    least, mean, greatest = min_mean_max(np.array([[0.5, np.nan], [0.25, 1.0], [0.75, 0.5]]))
    assert (least.tolist(), mean.tolist(), greatest.tolist()) == ([0.25, 0.5], [0.5, 0.75], [0.75, 1.0])


@pytest.mark.parametrize(("measured", "finished"), [("final", True), ("checkpoints/step-000001", False), ("", False)])
def test_a_run_whose_model_was_removed_once_it_was_measured_is_finished(
    measured: str, finished: bool, tmp_path: Path
) -> None:
    """As models fill disks, and a comparison needs them no more."""
    about = manifest("rl", load_recipe(None, ["rl.steps=9"]), {"start": "ab"}, None)
    (tmp_path / "run.json").write_text(json.dumps(about))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    if measured:
        (tmp_path / "eval").mkdir()
        write_result(tmp_path / "eval/result.json", Result(f"/elsewhere/run/{measured}", {}, {}))
    assert view(tmp_path, "run").finished is finished
