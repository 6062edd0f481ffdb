"""What a comparison tells: figures, differences, tables, curves."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from comparing import FAILED, FIX, trajectory
from retcon.evaluate.result import Result, score
from retcon.evaluate.statistics import Interval, Paired, exactly
from retcon.report.comparison import (
    HELD_OUT,
    PLAIN,
    ArmComparison,
    ArmRun,
    Figure,
    ProblemCount,
    by_seed,
    caveat,
    curve_area,
    curve_of,
    difference,
    figures,
    signed,
    steps_to,
    write_comparison,
)
from retcon.report.runs import Run
from retcon.report.tables import Sheet
from retcon.runs.metrics import Metrics


def measured(passed: dict[str, float], *, failing: int = 0, samples: int = 16) -> Result:
    """Of each problem, the share of its rollouts that pass; `failing` of every ten fail their first try."""
    groups = [
        (
            task,
            [
                trajectory(
                    f"{task}/{n}", *((FAILED,) if n % 10 < failing else ()), FIX,
                    reward=1.0 if n < share * samples else -1.0,
                )
                for n in range(samples)
            ],
        )
        for task, share in passed.items()
    ]  # fmt: skip
    return Result("/m", {}, {}).with_setting("t1", score(groups, temperature=1, top_p=1, cpu_s=1, wall_s=1))


def line(step: int, rate: float | None, **more: float) -> Metrics:
    return {"step": step, "eval_pass_rate": rate, "sampled_tokens": 100.0, "rollouts": 8, "kept": 8,
            "cpu_s": 2.0 * step, "wall_s": 3.0 * step, **more}  # fmt: skip


def run(seed: int, result: Result, rates: tuple[float | None, ...] = (0.2, None, 0.4, 0.6), **more: float) -> ArmRun:
    one = Run(Path(f"/runs/{seed}"), seed, [line(n, rate, **more) for n, rate in enumerate(rates, 1)], result)
    return ArmRun(one, {PLAIN: result})


def by_name(rows: list[Figure]) -> dict[str, Figure]:
    assert len({row.name for row in rows}) == len(rows)
    return {row.name: row for row in rows}


@pytest.fixture
def arms() -> dict[str, list[ArmRun]]:
    """Two seeds: the second arm solves an eighth more of each problem in both, and its first tries fail less."""
    easy, hard = {"a": 0.5, "b": 0.25}, {"a": 0.625, "b": 0.375}
    return {
        "base": [run(seed, measured(easy, failing=4)) for seed in (1, 2)],
        "ours": [run(seed, measured(hard, failing=2), (0.3, 0.6, 0.5, 0.7)) for seed in (1, 2)],
    }


def test_figures_by_hand(arms: dict[str, list[ArmRun]]) -> None:
    rows = by_name(figures(arms))
    first = rows["pass1_t1"]
    assert first.arms["base"] is not None
    assert first.arms["base"].mean == pytest.approx(0.375)
    assert first.differences["ours"].difference.mean == pytest.approx(0.125)
    assert first.differences["ours"].by_seed == pytest.approx((0.125, 0.125))
    assert (first.differences["ours"].better, first.differences["ours"].worse) == (2, 0)
    assert rows["pass16_t1"].arms["base"].mean == 1.0  # type: ignore[union-attr]
    # of sixteen rollouts those numbered 0-3 and 10-13 fail: 8 of 16, and 4 of 16
    assert rows["first_try_failures_t1"].arms["base"].mean == pytest.approx(0.5)  # type: ignore[union-attr]
    assert rows["first_try_failures_t1"].arms["ours"].mean == pytest.approx(0.25)  # type: ignore[union-attr]
    assert rows["failed_calls_t1"].arms["ours"].mean == pytest.approx(0.25)  # type: ignore[union-attr]
    assert rows["sampled_tokens"].arms["base"].mean == 400  # type: ignore[union-attr]
    assert "pass1_t1_repaired" not in rows  # it was not measured
    assert rows["cpu_ms_t1"].arms["base"].mean == pytest.approx(1000 / 32)  # type: ignore[union-attr]
    assert rows["steps_to_first"].arms == {"base": exactly(4.0), "ours": exactly(2.0)}
    assert rows["reached_first"].arms == {"base": exactly(2.0), "ours": exactly(2.0)}


def test_at_equal_tokens_arms_are_compared_where_the_thriftiest_ended(arms: dict[str, list[ArmRun]]) -> None:
    easy = measured({"a": 0.5, "b": 0.25})
    arms["ours"] = [run(seed, easy, (0.3, 0.6, 0.5, 0.7), sampled_tokens=50.0) for seed in (1, 2)]
    row = by_name(figures(arms))["pass1_equal_tokens"]
    assert [row.arms[arm].mean for arm in ("base", "ours")] == pytest.approx([0.3, 0.7])  # type: ignore[union-attr]
    assert row.differences["ours"].by_seed == pytest.approx((0.4, 0.4))
    arms["ours"] = [run(seed, easy, (None, None, None, 0.7), sampled_tokens=10.0) for seed in (1, 2)]
    row = by_name(figures(arms))["pass1_equal_tokens"]
    assert row.arms["base"] is None  # its first evaluation came later
    assert not row.differences


def test_what_a_seed_lacks_is_no_estimate_of_fewer_seeds(arms: dict[str, list[ArmRun]]) -> None:
    row = by_seed("training", "x", "x", 0, 0, {"base": [1.0, 2.0], "ours": [1.0, None]})
    assert (row.arms["ours"], row.differences) == (None, {})
    arms["ours"][1] = run(2, measured({"a": 0.5}), (0.1, 0.1, 0.1, 0.1))
    rows = by_name(figures(arms))
    assert rows["steps_to_first"].arms["ours"] == exactly(2.0), "of the seed that came there"
    assert rows["reached_first"].arms["ours"] == exactly(1.0)


def test_limits_of_a_share_are_shares(arms: dict[str, list[ArmRun]]) -> None:
    easy = measured({"a": 0.5, "b": 0.25})
    arms["base"] = [run(seed, easy, (0.0, rate)) for seed, rate in ((1, 0.1), (2, 1.0))]
    arms["ours"] = [run(seed, easy, (rate, 1.0)) for seed, rate in ((1, 0.9), (2, 1.0))]
    rows = by_name(figures(arms))
    for name in ("curve_area", "pass1_equal_tokens"):
        base, ours = (rows[name].arms[arm] for arm in ("base", "ours"))
        assert base is not None
        assert ours is not None
        assert (base.low, ours.high) == (0.0, 1.0)
        difference = rows[name].differences["ours"].difference
        assert (difference.low, difference.high) == (-1.0, 1.0)
    assert rows["cpu_s"].arms["ours"].mean == 4.0  # type: ignore[union-attr]  # which is no share


def test_a_problem_that_a_run_lost_is_left_out_of_all(arms: dict[str, list[ArmRun]]) -> None:
    arms["ours"][1] = run(2, measured({"a": 0.5}))
    found = by_name(figures(arms))["pass1_t1"]
    assert found.arms["base"].mean == pytest.approx(0.5)  # type: ignore[union-attr]
    assert found.differences["ours"].by_seed == pytest.approx((0.125, 0.0))
    assert found.problems == ProblemCount(1, 2)


def test_what_training_cost_by_hand(arms: dict[str, list[ArmRun]]) -> None:
    """An arm that oversamples trains on half of what it makes; its alarm begins twice."""
    easy = measured({"a": 0.5, "b": 0.25})
    arms["ours"] = [run(seed, easy, (0.1, 0.2, 0.3, 0.4, 0.5), rollouts=16.0) for seed in (1, 2)]
    assert "alarms" not in by_name(figures(arms)), "there was none"
    for one in arms["ours"]:
        for step, alarm in zip(one.run.metrics, (0.0, 1.0, 1.0, 0.0, 1.0), strict=True):
            step["first_try_alarm"] = alarm
    rows = by_name(figures(arms))
    told = {
        name: rows[name].arms["ours"].mean  # type: ignore[union-attr]
        for name in ("steps", "rollouts", "trained_rollouts", "sampled_tokens", "cpu_s", "wall_s", "alarms")
    }
    assert told == {"steps": 5, "rollouts": 80, "trained_rollouts": 40, "sampled_tokens": 500, "cpu_s": 10,
                    "wall_s": 15, "alarms": 2}  # fmt: skip
    assert rows["alarms"].arms["base"] is None, "which was not watched"


def test_a_figure_that_problems_are_left_out_of_says_so(arms: dict[str, list[ArmRun]], tmp_path: Path) -> None:
    """One run calls no tool: first tries of the others are no longer compared, which the table must not conceal."""
    pytest.importorskip("matplotlib", reason="pictures need the [report] extra")
    for lost in (1, 2):
        result = measured({"a": 0.5, "b": 0.25})
        problems = [
            msgspec.structs.replace(problem, first_try_failures=None if n < lost else 0.5)
            for n, problem in enumerate(result.settings["t1"].problems)
        ]
        setting = msgspec.structs.replace(result.settings["t1"], problems=problems)
        arms["ours"][1] = run(2, msgspec.structs.replace(result, settings={"t1": setting}))
        row = by_name(figures(arms))["first_try_failures_t1"]
        assert row.problems == ProblemCount(2 - lost, 2)
        assert [one is None for one in row.arms.values()] == [lost == 2, lost == 2]
        assert bool(row.differences) == (lost == 1)
        found = ArmComparison("cell", arms, {"base": "a", "ours": "b"}, "equal rollouts", 0.0, 1.0)
        values, _ = write_comparison(found, tmp_path)
        (note,) = [note for note in values.notes if "have a value in every run" in note]
        assert note.endswith(f": first tries failed (purification off) {2 - lost} of 2.")
        told = json.loads((tmp_path / "compare.json").read_text())["problems"]
        assert told["first_try_failures_t1"] == {"counted": 2 - lost, "of": 2}
        assert told["pass1_t1"] == {"counted": 2, "of": 2}


def test_curves_by_hand() -> None:
    one, goal = (run(0, measured({"a": 1.0}), rates).run for rates in ((0.2, None, 0.4, 0.6), (0.1, 0.2, 0.3, 0.4)))
    assert [list(part) for part in curve_of(one, HELD_OUT)] == [[1, 3, 4], [0.2, 0.4, 0.6]]
    assert curve_area(one, HELD_OUT) == pytest.approx((0.3 * 2 + 0.5 * 1) / 3)
    assert steps_to(one, goal, HELD_OUT) == 3
    assert steps_to(goal, one, HELD_OUT) is None
    assert curve_area(replace(one, metrics=[]), HELD_OUT) is None


def test_held_out_problems_are_never_compared_with_those_of_training(arms: dict[str, list[ArmRun]]) -> None:
    """An arm of fewer, larger steps has a single evaluation; its training's own rollouts pass far more."""
    easy = measured({"a": 0.5, "b": 0.25})
    arms["ours"] = [run(seed, easy, (None, None, None, 0.5), pass_rate=0.9) for seed in (1, 2)]
    rows = by_name(figures(arms))
    assert rows["curve_area"].arms["base"] is not None
    assert rows["curve_area"].arms["ours"] is None
    assert not rows["curve_area"].differences
    assert rows["steps_to_first"].arms == {"base": exactly(4.0), "ours": None}
    assert rows["reached_first"].arms == {"base": exactly(2.0), "ours": None}


def test_files_of_a_comparison(tmp_path: Path, arms: dict[str, list[ArmRun]]) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the [report] extra")
    found = ArmComparison("cell", arms, {"base": "mini/a", "ours": "mini/b"}, "equal rollouts", 0.1, 60.0)
    sheets = write_comparison(found, tmp_path)
    told = json.loads((tmp_path / "compare.json").read_text())
    (cell,) = told["cells"]
    assert cell["name"] == "cell"
    assert cell["arms"]["ours"]["seeds"] == [1, 2]
    assert cell["arms"]["ours"]["pass1_t1"].keys() == {"mean", "low", "high"}
    assert cell["arms"]["ours"]["difference"]["pass1_t1"]["by_seed"] == [0.125, 0.125]
    assert "difference" not in cell["arms"]["base"]
    assert told["compared_with"] == "base"
    assert told["finding"] is False
    assert "2 seeds" in told["note"]
    rows = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    (row,) = [r for r in rows if r["figure"] == "pass1_t1" and r["arm"] == "ours"]
    assert (float(row["mean"]), float(row["difference"])) == (0.5, 0.125)
    assert (tmp_path / "held_out.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "held_out.svg").read_text()
    assert "| pass@1 | .375" in (tmp_path / "table.md").read_text()
    assert r"\begin{tabular}{lrr}" in (tmp_path / "table.tex").read_text()
    assert not any("have a value" in note for sheet in sheets for note in sheet.notes)
    assert all("not a finding" in " ".join(sheet.notes) for sheet in sheets)


@pytest.mark.parametrize(("seeds", "said"), [(1, "One seed says"), (4, "4 seeds say"), (5, "")])
def test_few_seeds_are_no_finding(seeds: int, said: str) -> None:
    assert caveat(seeds).startswith(said)
    assert bool(caveat(seeds)) == bool(said)


@pytest.mark.parametrize(("value", "text"), [(0.0125, "+.013"), (-0.02, "−.020"), (-0.0001, ".000"), (1.5, "+1.500")])
def test_differences_have_their_sign(value: float, text: str) -> None:
    assert signed(value, 3) == text


@pytest.mark.parametrize(
    ("mean", "low", "high", "text"),
    [
        (0.1, 0.05, 0.15, "+.100 [+.050, +.150] *"),
        (-0.1, -0.15, -0.05, "−.100 [−.150, −.050] *"),
        (0.1, -0.05, 0.25, "+.100 [−.050, +.250]"),
        (0.1, 0.0, 0.2, "+.100 [.000, +.200]"),
        (-0.1, -0.1, -0.1, "−.100"),
    ],
)
def test_a_star_stands_where_the_range_leaves_out_0(mean: float, low: float, high: float, text: str) -> None:
    assert difference(Paired(Interval(mean, low, high), (), 0, 0), 3) == text


@pytest.mark.parametrize("arms", [2, 3, 5, 12])
@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_terminal_gets_as_many_columns_as_it_has_room_for_and_whole_numbers(width: int, arms: int) -> None:
    text = io.StringIO()
    console = Console(file=text, width=width, markup=False)
    values = tuple(f".{n:03} [.{n:03}–.{n + 1:03}]" for n in range(700, 700 + arms))
    differences = tuple(f"+.{n:03} [−.{n:03}, +.{n + 1:03}] *" for n in range(700, 700 + arms))
    names = tuple(f"arm-{n}" for n in range(arms))
    sheet = Sheet("T", ("", *names), (("learning curve", (("steps to the first's", *values),)),), ("note",))
    other = replace(sheet, sections=(("differences", (("pass@1", *differences),)),))
    for one in (sheet, other):
        for table in one.tables(console):
            console.print(table)
    printed = text.getvalue()
    assert max(map(len, printed.splitlines())) <= width
    words = printed.split()
    assert sorted(w for w in words if w in names) == sorted(2 * names), "each has a column in both"
    for cell in (*values, *differences):
        assert set(cell.split()) <= set(words), cell
    assert printed.count("note") == 2
    if width == 80 and arms == 3:
        assert all(value in printed for value in values), "there is room for means and ranges on one line"


def test_a_sheet_in_its_formats() -> None:
    sheet = Sheet("T", ("", "a_b"), (("part", (("50 %|x", "−.1"),)),), ("note",))
    assert "| 50 %\\|x | −.1 |" in sheet.markdown()
    assert "|---|---:|" in sheet.markdown()
    latex = sheet.latex()
    assert r"a\_b" in latex
    assert r"50 \%|x & $-$.1 \\" in latex
    assert latex.count("&") == 2
