"""A page of any runs: finished or not, of every kind, one or several."""

from __future__ import annotations

import json
import os
import re
from html import escape, unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from comparing import FIX, repaired, trajectory
from retcon.cli.app import app
from retcon.config.load import load_recipe, recipe_to_toml
from retcon.config.schema import stages_of
from retcon.core.errors import CheckpointError, RecordError
from retcon.evaluate.result import Result, score, write_result
from retcon.report.page import document
from retcon.report.plots import Curve, draw, escape_name, line_styles
from retcon.report.runs import some_trajectories, unique_names, view
from retcon.runs.folder import manifest
from retcon.store import jsonl

pytest.importorskip("matplotlib", reason="pictures need matplotlib, of the extra [report]")


def run(
    folder: Path,
    kind: Any,
    lines: list[dict[str, float]],
    *overrides: str,
    finished: bool = False,
    recipe: Path | None = None,
) -> Path:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(manifest(kind, load_recipe(recipe, overrides), {"start": "ab"}, None)))
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"step": n + 1, **x}) + "\n" for n, x in enumerate(lines)))
    if finished:
        (folder / "final").mkdir()
    return folder


def learning(folder: Path) -> Path:
    """A run of reinforcement learning, as it is killed in the middle of a line."""
    out = run(folder, "rl", [{"reward": n / 4, "pass_rate": n / 4, "loss": 0.1} for n in range(4)], "rl.steps=9")
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "rew')
    (out / "trajectories").mkdir()
    kept = [repaired("numbers/a/0"), trajectory("numbers/<b>/0", FIX, reward=-1.0)]
    jsonl.write(out / "trajectories/step-000001.jsonl", kept)
    return out


def report(*words: object) -> str:
    done = CliRunner().invoke(app, ["report", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_run_that_goes_on_has_a_page_of_the_steps_so_far(tmp_path: Path) -> None:
    out = learning(tmp_path / "own")
    said = report(out)
    assert "own: step 4 of 9, not finished" in said
    page = (out / "report/report.html").read_text()
    assert "<td>4 of 9</td>" in page
    assert "Not finished then: own" in page
    assert "Repaired: before and after" in page
    assert "numbers/&lt;b&gt;/0" in page
    assert "numbers/<b>/0" not in page
    assert 'alt="Loss' not in page, "a loss of reinforcement learning says nothing to the eye"
    assert (out / "report/reward.png").is_file()
    assert load_recipe(out / "report/recipe.toml").rl.steps == 9, "what repeats it"
    assert f"retcon train {out}/report/recipe.toml --from MODEL" in page, "of an earlier version, which kept no name"
    assert "<td>base</td>" not in page


def test_the_model_of_a_run_is_the_one_that_it_began_with(tmp_path: Path) -> None:
    out = learning(tmp_path / "own")
    about = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps({**about, "start": "my model"}))
    report(out)
    page = unescape((out / "report/report.html").read_text())
    assert "<td>my model</td>" in page
    assert f"retcon train {out}/report/recipe.toml --from 'my model' --out" in page


@pytest.mark.parametrize(
    ("engine", "measured"),
    [
        (["engine.kind=openai", "engine.url=http://127.0.0.1:1/v1"], "http://127.0.0.1:1/v1"),
        (["engine.kind=vllm", "engine.url=http://127.0.0.1:1"], "MODEL"),
    ],
    ids=["openai", "vllm"],
)
def test_the_evaluation_of_a_server_is_repeated_with_its_own_engine(
    tmp_path: Path, engine: list[str], measured: str
) -> None:
    recipe = load_recipe(None, [*engine, "engine.model=big"])
    result = Result(recipe.engine.subject(tmp_path), recipe.model_dump(mode="json"), {})
    setting = score([], temperature=1.0, top_p=1.0, cpu_s=1.0, wall_s=1.0)
    write_result(tmp_path / "result.json", result.with_setting("t1", setting))
    report(tmp_path)
    page = (tmp_path / "report/report.html").read_text()
    assert f"retcon eval {measured} {tmp_path}/report/recipe.toml" in page
    assert load_recipe(tmp_path / "report/recipe.toml").engine == recipe.engine


def test_a_page_says_and_marks_where_stages_begin(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    stages = '[[stages]]\nname = "short"\nsteps = 2\n[[stages]]\nname = "long"\nrl.lr = 0.1\n'
    file.write_text(f"[rl]\nsteps = 9\n{stages}")
    lines = [{"reward": n / 4, "stage": 1 + (n > 1)} for n in range(4)]
    staged, bare = run(tmp_path / "staged", "rl", lines, recipe=file), run(tmp_path / "bare", "rl", lines, "rl.steps=9")
    for folder in (staged, bare):
        report(folder)
    page = (staged / "report/report.html").read_text()
    assert "<td>stages</td><td>short 1–2, long 3–9</td>" in page
    assert "<td>stages</td>" not in (bare / "report/report.html").read_text()
    pictures = [(folder / "report/reward.png").read_bytes() for folder in (staged, bare)]
    assert pictures[0] != pictures[1], "the border is drawn"
    again = load_recipe(staged / "report/recipe.toml")
    assert stages_of(again) == stages_of(load_recipe(file))


def test_runs_of_several_kinds_share_a_page_and_its_pictures(tmp_path: Path) -> None:
    sft = run(tmp_path / "a/start", "sft", [{"loss": 1.0}, {"loss": 0.5}], finished=True)
    dpo = run(tmp_path / "b/start", "dpo", [{"loss": 0.7, "accuracy": 0.5, "margin": -0.1}])
    report(sft, dpo, learning(tmp_path / "rl"), "--out", tmp_path / "page")
    page = (tmp_path / "page/report.html").read_text()
    assert "<h1>a/start, b/start, " in page
    assert all(alt in page for alt in ('alt="Loss', 'alt="Reward', 'alt="Margin'))
    assert sorted(p.name for p in (tmp_path / "page").glob("recipe-*")) == [
        "recipe-a-start.toml", "recipe-b-start.toml", f"recipe-{tmp_path.name}-rl.toml",
    ]  # fmt: skip


def test_a_page_is_made_of_runs_with_any_names_and_any_number_of_them(tmp_path: Path) -> None:
    names = ["a$b_$c", "_under", "a<b>&"]
    folders = [run(tmp_path / name, "rl", [{"pass_rate": 0.5}, {"pass_rate": 1.0}]) for name in names]
    report(*folders, "--out", tmp_path / "named")
    text = (tmp_path / "named/report.html").read_text()
    assert all(escape(name) in text for name in names)
    untold = os.fsdecode(b"no\xfftext")
    assert [escape_name(name) for name in (*names, untold)] == [r"a\$b_\$c", " _under", "a<b>&", "no?text"]
    assert document(untold, []).count("no?text") == 1
    assert len(line_styles(f"run-{n}" for n in range(40))) == 40


def test_what_is_no_run_is_reported_with_what_is_near(tmp_path: Path) -> None:
    run(tmp_path / "quick/saar", "sft", [])
    with pytest.raises(CheckpointError, match=r"no run .*quikc \(did you mean 'quick'\?\)"):
        view(tmp_path / "quikc", "x")
    run(tmp_path / "quick/roc/seed-1", "rl", [])
    with pytest.raises(CheckpointError, match="is not a run folder; there are runs in it: roc/seed-1, saar"):
        view(tmp_path / "quick", "x")
    audit = tmp_path / "audit"
    audit.mkdir()
    for name in ("audit.json", "result.json"):
        (audit / name).write_text("{}")
    with pytest.raises(CheckpointError, match=r"is an audit, whose tables are in .*table\.md"):
        view(audit, "audit")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun/trajectories-t1.jsonl.partial").touch()
    with pytest.raises(CheckpointError, match="begun is an evaluation that has only begun"):
        view(tmp_path / "begun", "x")
    with pytest.raises(CheckpointError, match="given twice"):
        unique_names([tmp_path, tmp_path])
    (tmp_path / "quick/saar/metrics.jsonl").write_bytes(b'{"step": "\xe9"}\n{"step": 2}\n')
    with pytest.raises(RecordError, match=r"metrics\.jsonl, line 1: not a step's metrics: .*utf-8"):
        view(tmp_path / "quick/saar", "x")
    (tmp_path / "quick/result.json").write_bytes(b'{"checkpoint": "\xe9"}')
    with pytest.raises(CheckpointError, match=r"result\.json: the evaluation result cannot be read: .*utf-8"):
        view(tmp_path / "quick", "x")


def test_a_run_is_reported_with_its_held_out_problems_too(tmp_path: Path) -> None:
    measured = {"eval_pass_rate": 0.125, "eval_failed_calls": 0.0, "eval_tokens": 90.0, "eval_rollouts": 8}
    lines = [{"pass_rate": 0.9}, {"pass_rate": 0.9, **measured}, {"pass_rate": 0.9}]
    out = run(tmp_path / "own", "rl", lines, "rl.steps=9")
    report(out)
    page = (out / "report/report.html").read_text()
    assert "<td>pass@1 on held-out problems, last</td><td>0.125</td>" in page
    assert all(f'alt="{alt}' in page for alt in ("Held-out problems", "Failed calls, held-out", "Tokens sampled, held"))
    assert 'alt="First tries that fail' not in page


def test_evaluations_stand_in_one_row_only_where_they_sampled_alike(tmp_path: Path) -> None:
    for name, top_p, task in (("a", 0.6, "numbers/0"), ("b", 0.95, "numbers/0"), ("c", 0.95, "numbers/1")):
        result = Result("base", load_recipe(None).model_dump(mode="json"), {})
        setting = score([(task, [trajectory(f"{task}/0", FIX)])], temperature=1.0, top_p=top_p, cpu_s=1.0, wall_s=1.0)
        plain = score([(task, [])], temperature=1.0, top_p=1.0, cpu_s=1.0, wall_s=1.0)
        (tmp_path / name).mkdir()
        both = result.with_setting("t1", plain).with_setting("top_p", setting)
        write_result(tmp_path / name / "result.json", both)
    (tmp_path / "b/trajectories-t1.jsonl.partial").touch()
    said = report(*(tmp_path / name for name in "abc"), "--out", tmp_path / "page")
    assert said.startswith("b: not finished\n"), said
    page = (tmp_path / "page/report.html").read_text()
    assert "<td>problems, T = 1, top-p 0.6</td><td>1</td><td>–</td><td>–</td>" in page
    assert "<td>problems, not the same, T = 1, top-p 0.95</td><td>–</td><td>1</td><td>1</td>" in page
    assert "Not finished then: b." in page


def test_an_evaluation_whose_process_was_killed_as_soon_as_it_was_whole_is_finished(tmp_path: Path) -> None:
    result = Result("base", load_recipe(None, ["evaluate.top_p=1.0"]).model_dump(mode="json"), {})
    setting = score([("a", [trajectory("a/0", FIX)])], temperature=1.0, top_p=1.0, cpu_s=1.0, wall_s=1.0)
    write_result(tmp_path / "result.json", result.with_setting("t1", setting))
    (tmp_path / "trajectories-t1.jsonl.partial").touch()
    assert not view(tmp_path, "x").finished, "its trajectories are gone, and made again"
    jsonl.write(tmp_path / "trajectories-t1.jsonl", [trajectory("a/0", FIX)])
    assert view(tmp_path, "x").finished
    (tmp_path / "trajectories-top_p.jsonl.partial").touch()
    assert not view(tmp_path, "x").finished, "its second setting is under way"


@pytest.mark.parametrize(
    ("section", "key", "value", "version", "said"),
    [
        ("repair", "kind", "gone:Mine", None, "is not one that can be read here: repair.kind = .*No module named"),
        ("rl", "stepz", 3, "0.0.1", "is of retcon 0.0.1: unknown key 'stepz' in"),
    ],
    ids=["class", "version"],
)
def test_a_recipe_that_cannot_be_read_is_reported_with_why(
    tmp_path: Path, section: str, key: str, value: object, version: str | None, said: str
) -> None:
    out = run(tmp_path / "own", "rl", [{"reward": 0.5}])
    about = json.loads((out / "run.json").read_text())
    about["recipe"][section][key] = value
    about["version"] = version or about["version"]
    (out / "run.json").write_text(json.dumps(about))
    report(out)
    page = unescape((out / "report/report.html").read_text())
    assert re.search(f"# own: the recipe in its run.json {said}", page)
    assert not (out / "report/recipe.toml").exists()


MINE = "[run]\nseed = 7  # mine\n"
COMPARISON = document("baseline, saar", ["<h1>What purification changes</h1>", "<h2>Evaluation</h2>"])


@pytest.mark.parametrize(
    ("name", "content"),
    [("recipe.toml", MINE), ("recipe-own.toml", MINE), ("report.html", "mine"), ("report.html", COMPARISON)],
)
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a report"])
def test_what_is_of_no_report_is_not_replaced(tmp_path: Path, name: str, content: str, beside: bool) -> None:
    own, out = run(tmp_path / "own", "rl", [{"reward": 0.5}]), tmp_path / "mine"
    runs = [own, run(tmp_path / "other", "rl", [])] if name == "recipe-own.toml" else [own]
    if beside:
        report(*runs, "--out", out)
    out.mkdir(exist_ok=True)
    (out / name).write_text(content)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    with pytest.raises(RecordError, match=f"{name} exists and .*: choose another --out"):
        report(*runs, "--out", out)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


def test_what_a_report_wrote_is_replaced_until_somebody_changes_it(tmp_path: Path) -> None:
    own, out = run(tmp_path / "a/own", "rl", [{"reward": 0.5}], "rl.steps=3"), tmp_path / "page"
    later = run(tmp_path / "b/own", "rl", [{"reward": 0.5}], "rl.steps=4")
    report(own, "--out", out)
    (out / "report.html").unlink()
    report(later, "--out", out)
    assert load_recipe(out / "recipe.toml").rl.steps == 4
    changed = (out / "recipe.toml").read_text().replace("steps = 4", "steps = 5")
    (out / "recipe.toml").write_text(changed)
    with pytest.raises(RecordError, match=r"recipe\.toml exists and was not written"):
        report(later, "--out", out)
    assert (out / "recipe.toml").read_text() == changed


def test_a_page_of_an_earlier_version_is_replaced_and_a_recipe_that_says_the_same_stays(tmp_path: Path) -> None:
    own, out = run(tmp_path / "own", "rl", [{"reward": 0.5}], "rl.steps=3"), tmp_path / "page"
    out.mkdir()
    (out / "report.html").write_text(document("own", ["<h1>own</h1>", "<h2>Runs</h2>", "<h2>Repeat it</h2>"]))
    (out / "recipe.toml").write_text("[rl]\nsteps = 3  # mine\n")
    report(own, "--out", out)
    assert "1 of 3" in (out / "report.html").read_text()
    assert (out / "recipe.toml").read_text() == "[rl]\nsteps = 3  # mine\n"
    before = recipe_to_toml(load_recipe(None, ["rl.steps=9"]))
    (out / "recipe.toml").write_text(before)
    report(own, "--out", out)
    assert load_recipe(out / "recipe.toml").rl.steps == 3
    noted = before.replace("steps = 9", "steps = 9  # enough, as I found", 1)
    (out / "recipe.toml").write_text(noted)
    with pytest.raises(RecordError, match=r"recipe\.toml exists and was not written"):
        report(own, "--out", out)
    assert (out / "recipe.toml").read_text() == noted, "somebody's own words"


def test_a_picture_that_no_report_drew_is_not_replaced(tmp_path: Path) -> None:
    own, out = learning(tmp_path / "own"), tmp_path / "mine"
    draw(Curve("reward", "reward", "Mine", "x"), {"x": np.array([[1.0, 2.0]])}, ["x"], out_of(out))
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    with pytest.raises(RecordError, match=r"reward\.png exists and .*: choose another --out"):
        report(own, "--out", out)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


def out_of(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_run_of_one_step_has_a_point(tmp_path: Path) -> None:
    """A line of one point draws nothing."""
    single, empty = (np.array([[value]]) for value in (0.5, 0.75))
    curve = Curve("x", "x", "X", "x", top=1.0)
    pictures = {draw(curve, {"own": values}, ["own"], tmp_path).read_bytes() for values in (single, empty)}
    assert len(pictures) == 2, "the point's height shows"


def test_figures_of_the_end_are_of_the_last_steps_and_minutes_are_minutes(tmp_path: Path) -> None:
    lines = [{"reward": float(n >= 5), "wall_s": 60.0 * n, "cpu_s": 120.0 * n} for n in range(16)]
    own = run(tmp_path / "own", "rl", [*lines[:-1], {**lines[-1], "reward": 2.0}])
    report(own)
    page = (own / "report/report.html").read_text()
    assert "<td>reward, last 10 steps</td><td>1.100</td>" in page
    assert "<td>wall minutes</td><td>15.0</td>" in page
    assert "<td>CPU minutes</td><td>30.0</td>" in page


def test_trajectories_are_of_the_last_step_that_was_kept(tmp_path: Path) -> None:
    own = learning(tmp_path / "own")
    later = [repaired("numbers/c/0"), trajectory("numbers/d/0", FIX), trajectory("numbers/e/0", FIX, reward=-1.0)]
    jsonl.write(own / "trajectories/step-000010.jsonl", later)
    first, others = some_trajectories(view(own, "own"))
    assert first is not None
    assert first.id == "numbers/c/0"
    assert [(t.id, t.reward) for t in others] == [("numbers/d/0", 1.0), ("numbers/e/0", -1.0)]


def test_of_a_run_that_repairs_nothing_no_more_is_read_than_is_shown(tmp_path: Path) -> None:
    own = run(tmp_path / "own", "rl", [{"reward": 0.5}] * 2, "repair.kind=none")
    (own / "trajectories").mkdir()
    (own / "trajectories/step-000001.jsonl").write_text("none\n" * 5)
    jsonl.write(own / "trajectories/step-000002.jsonl", [trajectory("numbers/a/0", FIX)])
    first, others = some_trajectories(view(own, "own"))
    assert (first, [one.id for one in others]) == (None, ["numbers/a/0"])


def test_a_panel_of_the_users_own_is_a_part_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("panel_of_mine.py").write_text(
        "from retcon.report.page import Panel\n"
        "BEST = Panel('best', 'Best & <last>', lambda runs: f'<p>{max(s[\"reward\"] for s in runs[0].metrics)}</p>')\n"
        "BROKEN = Panel('broken', 'Broken', lambda runs: runs[9])\n"
    )
    out = learning(tmp_path / "own")
    report(out, "--panel", "panel_of_mine:BEST")
    assert "<h2>Best &amp; &lt;last&gt;</h2>\n<p>0.75</p>" in (out / "report/report.html").read_text()
    with pytest.raises(RecordError, match=r"panel 'broken' raised IndexError: .*panel_of_mine.py:3"):
        report(out, "--panel", "panel_of_mine:BROKEN")
    with pytest.raises(RecordError, match=r"is not an instance of retcon\.report\.page\.Panel: it is the class"):
        report(out, "--panel", "panel_of_mine:Panel")
