"""What an arm cannot be trained for is told before anything is done for it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from rich.console import Console

from retcon.build import build_tasks
from retcon.cli.compare import CompareOptions, make_plan, read_arms
from retcon.cli.runner import NotReady, check_same_inputs, check_trainable
from retcon.config.schema import Recipe
from retcon.core.errors import CheckpointError, RecipeError, RetconError, TaskWarning
from retcon.evaluate.result import Result, write_result
from retcon.planning import needs as module
from retcon.planning.needs import MIB, Needs, Part, check_fits_later
from retcon.store.fingerprint import fingerprint
from retcon.store.whole import lock_folder
from retcon.tasks.registry import evaluation_tasks
from retcon.tasks.types import fingerprint_of
from retcon.train import stages as ready
from retcon.train.stages import find_obstacles
from training import make_base

pytestmark = pytest.mark.torch


def test_arms_that_do_not_fit_or_lack_their_harness_are_named_before_their_cold_start(tmp_path: Path) -> None:
    """Whose own demonstrations are not there here, so that it ends at once where it does begin."""
    arms = {"first": "", "second": "", "third": '[rollout]\nharness = "no_such_module:solve"\n'}
    for number, (name, text) in enumerate(arms.items(), start=1):
        budget = "[compute]\nkv_memory_mb = 1\n" if name == "second" else ""
        (tmp_path / f"{name}.toml").write_text(f"[rl]\nsteps = 2\nlr = {number}e-4\n{budget}{text}")
    cold = tmp_path / "cold.toml"
    cold.write_text(f'[demos]\nkind = "transcripts"\npath = ["{tmp_path}/absent.jsonl"]\n')
    keys = ("rollout.lookahead_tokens=4000", "sandbox.workers=1", "compute.device=cpu")
    words, out = [*(str(tmp_path / f"{name}.toml") for name in arms), *keys], tmp_path / "out"
    with pytest.warns(TaskWarning, match="calls that a harness runs itself"):
        plan = make_plan(
            CompareOptions(out, 2, "rollouts", cold=str(cold), faults=0.0), read_arms(words, cold=str(cold)), keys
        )
    with pytest.raises(RetconError) as told:
        plan.open().run(at_once=1, console=Console(stderr=True))
    refused = str(told.value).split(", seed ")
    assert len(refused) == 3, "one of two seeds is looked at, and what nothing is in the way of is not named"
    assert refused[1].startswith(f"0 ({tmp_path}/second.toml): compute.kv_memory_mb = 1: one rollout of")
    assert refused[2].startswith(f"0 ({tmp_path}/third.toml): rollout.harness")
    assert not out.exists()


def test_runs_that_have_begun_are_not_looked_at_again(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"{number}.toml").write_text(f"[rl]\nsteps = 2\nlr = {number}e-4\n[compute]\nkv_memory_mb = 1\n")
    words = [str(tmp_path / "1.toml"), str(tmp_path / "2.toml"), "rollout.lookahead_tokens=4000"]
    plan = make_plan(CompareOptions(tmp_path / "out", 1, "rollouts", start="base"), read_arms(words))
    for targets in plan.trained.values():
        targets[0].makes.parent.mkdir(parents=True)
        (targets[0].makes.parent / "run.json").write_text(json.dumps({}))
    check_trainable(plan.targets)


def test_an_arm_that_is_added_once_its_problems_or_the_model_are_others_is_refused(tmp_path: Path) -> None:
    """Which no recipe tells: it names the same file, and the same folder."""
    data, model, out = tmp_path / "own.jsonl", make_base(tmp_path / "model", positions=512), tmp_path / "out"
    rows = [{"id": f"{n}", "question": f"find {n} plus 1.", "answer": str(n + 1)} for n in range(8)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = ["task.kind=file", f"task.path={data}", "task.evaluation_share=0.5", "rl.steps=2", "rl.prompts=1",
            "sandbox.workers=1", "compute.device=cpu"]  # fmt: skip
    options = CompareOptions(out, 1, "rollouts", start=str(model), faults=0.0)
    plan = make_plan(options, read_arms(["mini/dapo-baseline", "mini/cleaner", *keys]), keys)
    (first, measured, _), (second, *_) = plan.trained.values()
    tasks, about = build_tasks(first.recipe, model), first.recipe.evaluate
    problems = fingerprint_of(evaluation_tasks(tasks, about.problems, about.seed))
    measured.makes.parent.mkdir(parents=True)
    write_result(measured.makes, Result(str(model), {}, {}, inputs={"problems": problems}))
    manifest = {"inputs": {"start": fingerprint(model)}}
    (first.makes.parent / "run.json").write_text(json.dumps(manifest))
    made = check_same_inputs(plan.targets)
    asked = [("second", second.given, second.overrides, str(model), True, str(second.makes.parent))]
    then = {"second": [(what, value, str(by)) for (what, _), (value, by) in made.items()]}
    assert list(find_obstacles(asked, then)) == []

    data.write_text("".join(json.dumps({**row, "answer": "7"}) + "\n" for row in rows))
    with pytest.raises(NotReady, match=rf"cleaner, seed 0 .*: {measured.makes} has other problems: .* --out"):
        check_trainable([second], made)
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    make_base(model, positions=600)
    ((_, why, refused),) = find_obstacles(asked, then)
    assert why.startswith(f"{first.makes.parent} has other weights: ")
    assert refused


def test_a_folder_that_another_command_is_at_work_in_is_reported_before_the_look(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"{number}.toml").write_text(f"[rl]\nlr = {number}e-4\n[compute]\nkv_memory_mb = 1\n")
    words = [str(tmp_path / "1.toml"), str(tmp_path / "2.toml"), "rollout.lookahead_tokens=4000"]
    out = tmp_path / "out"
    plan = make_plan(CompareOptions(out, 1, "rollouts", start="base"), read_arms(words))
    with lock_folder(out), pytest.raises(CheckpointError, match="another command is at work in"):
        plan.open().run(at_once=1, console=Console(stderr=True))


def test_memory_that_others_have_taken_may_be_free_by_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = Needs((Part("weights", 300 * MIB, "always"),), 1, 0, 1, 1, "cpu")
    monkeypatch.setattr(module, "available_memory", lambda: MIB)
    check_fits_later(needs, tmp_path / "out")
    monkeypatch.setattr(module, "total_memory", lambda: 200 * MIB)
    with pytest.raises(RecipeError, match="the run takes up to 300 MiB of memory and cpu has 200 MiB: most of it is"):
        check_fits_later(needs, tmp_path / "out", "the run")
    check_fits_later(replace(needs, memory=(Part("logits", 300 * MIB, "always"),)), tmp_path / "out")
    monkeypatch.setattr(module.torch.cuda, "mem_get_info", lambda device: (MIB, {"cuda:1": 400 * MIB}[str(device)]))
    check_fits_later(replace(needs, device="cuda:1"), tmp_path / "out")
    with pytest.raises(RecipeError, match="of disk"):
        check_fits_later(replace(needs, device="cuda:1", disk=2**60), tmp_path / "out")


def test_what_is_in_the_way_of_each_is_reported_and_the_others_are_looked_at_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those whose pass rates are of a model that is not there yet are left to their own run."""
    looked: list[tuple[object, ...]] = []

    def get_ready(recipe: Recipe, folder: Path, out: Path, *, look: int) -> SimpleNamespace:
        looked.append((out.name, recipe.rl.steps, folder, look))
        if out.name == "refused":
            raise RecipeError("no such tasks")
        if out.name == "broken":
            raise KeyError("of its own")
        return SimpleNamespace(each=(("the first", None, 1), ("the second", None, 2)))

    def hopeless(needs: int, out: Path, stage: str) -> None:
        if out.name == "large" and needs == 2:
            raise RecipeError(f"{stage} of {out.name} takes too much")

    monkeypatch.setattr(ready, "prepare_run", get_ready)
    monkeypatch.setattr(ready, "check_fits_later", hopeless)
    rates = "select.pass_rates=rates.jsonl"
    asked = [
        (name, "mini/cleaner", ["rl.steps=7", *more], "model", itself, str(tmp_path / name))
        for name, itself, *more in [
            ("rated", False, rates), ("refused", True), ("broken", True), ("large", False), ("whole", True),
            ("own rates", True, rates),
        ]
    ]  # fmt: skip
    assert list(find_obstacles(asked)) == [
        ("refused", "no such tasks", True), ("broken", "KeyError: 'of its own'", False),
        ("large", "the second of large takes too much", True),
    ]  # fmt: skip
    names = ["refused", "broken", "large", "whole", "own rates"]
    assert looked == [(name, 7, Path("model"), 1) for name in names]
