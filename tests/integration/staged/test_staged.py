"""Stages of a run: each learns as its own recipe says, on prompts that none before it has drawn."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")


from retcon.build import build_tasks
from retcon.config.schema import Recipe, stages_of
from retcon.core.errors import RecipeError
from retcon.runs.folder import Cost
from retcon.store import jsonl
from retcon.train.rl import run_rl
from retcon.train.sft import run_sft
from retcon.train.trainer import Progress, read_progress
from training import Ones, make_base, make_demonstrations, small_recipe

pytestmark = pytest.mark.torch
A, B = {"name": "a", "steps": 2}, {"name": "b"}
Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An untrained base, and a tiny model that calls, in vain or not, and answers."""
    folder = tmp_path_factory.mktemp("staged")
    base = make_base(folder / "base")
    return base, run_sft(small_recipe(base), make_demonstrations(base, folder / "demos.jsonl"), folder / "cold")


def staged(base: Path, *stages: dict[str, Any], **sections: dict[str, object]) -> Recipe:
    recipe = small_recipe(base, **{"rl": {"steps": 4}, **sections})
    return Recipe.model_validate({**recipe.model_dump(mode="json", exclude_unset=True), "stages": stages})


def trained(recipe: Recipe, cold: Path, out: Path, tasks: Any = None) -> Lines:
    lines: Lines = []
    run_rl(recipe, cold, out, tasks=tasks or Ones(), on_step=lines.append)
    return lines


def weights(out: Path) -> bytes:
    return (out / "final/model.safetensors").read_bytes()


def drawn(out: Path, steps: Sequence[int]) -> list[list[str]]:
    """The prompts of each step whose rollouts were kept."""
    files = (out / f"trajectories/step-{step:06d}.jsonl" for step in steps)
    return [list(dict.fromkeys(t.task for t in jsonl.read(file))) for file in files]


def test_stages_that_change_nothing_make_the_run_without_them(start: tuple[Path, Path], tmp_path: Path) -> None:
    """Not a prompt, a random number or a moment of the optimiser is lost at the border."""
    base, cold = start
    falling = {"steps": 4, "schedule": "cosine", "warmup_steps": 2}
    bare = trained(staged(base, rl=falling), cold, tmp_path / "bare")
    lines = trained(staged(base, A, B, rl=falling), cold, tmp_path / "staged")
    assert weights(tmp_path / "bare") == weights(tmp_path / "staged")
    assert [line.pop("stage") for line in lines] == [1, 1, 2, 2]
    assert not any("stage" in line for line in bare)
    for line, other in zip(lines, bare, strict=True):
        same = {k for k in line if not k.startswith("engine_") and not k.endswith(("_s", "seconds", "_second"))}
        assert {k: line[k] for k in same} == {k: other[k] for k in same}


def test_each_stage_learns_as_its_own_recipe_says(start: tuple[Path, Path], tmp_path: Path) -> None:
    base, cold = start
    first = {**A, "repair": {"kind": "none"}, "rollout": {"max_turns": 1}, "rl": {"prompts": 1, "lr": 1e-5}}
    lines = trained(staged(base, first, B), cold, tmp_path / "out")
    assert [line["rollouts"] for line in lines] == [8, 8, 16, 16]
    assert [line["lr"] for line in lines] == [1e-5, 1e-5, 5e-4, 5e-4]
    assert [line["turns"] for line in lines[:2]] == [1, 1]
    assert all(line["turns"] > 1 for line in lines[2:])
    assert [line["shallow"] + line["deep"] > 0 for line in lines] == [False, False, True, True]


def test_a_checkpoint_from_before_there_were_stages_is_read(tmp_path: Path) -> None:
    about = {"step": 4, "drawn": 8, "cpu_s": 1.0, "wall_s": 2.0}
    (tmp_path / "trainer.json").write_text(json.dumps(about))
    assert read_progress(tmp_path) == Progress(4, (8,), Cost(1.0, 2.0))
    (tmp_path / "trainer.json").write_text(json.dumps({**about, "drawn": [4, 4]}))
    assert read_progress(tmp_path).drawn == (4, 4)


def test_nothing_is_begun_ahead_for_the_next_stage(start: tuple[Path, Path], tmp_path: Path) -> None:
    base, cold = start
    recipe = staged(base, A, {**B, "rollout": {"max_turns": 1}}, rl={"steps": 4, "max_staleness": 2})
    lines = trained(recipe, cold, tmp_path / "out")
    assert [line["staleness_max"] for line in lines] == [0, 1, 0, 1], "no rollout is older than its stage"
    assert [line["turns"] for line in lines[2:]] == [1, 1]
    assert drawn(tmp_path / "out", [1, 3, 4]) == [
        [f"ones/{seed}/{n}" for n in numbers]
        for (seed, numbers) in zip(
            itertools.repeat(drawn(tmp_path / "out", [1])[0][0].split("/")[1]), ((0, 1), (4, 5), (6, 7)), strict=False
        )
    ]


def test_evaluations_stay_on_one_set_with_one_limit(start: tuple[Path, Path], tmp_path: Path) -> None:
    """A policy that does not move has one figure, whatever its stages' limits and turns."""
    base, cold = start
    first = {**A, "rollout": {"max_turns": 1, "max_tokens": 40, "lookahead_tokens": 0}}
    evaluate = {"problems": 3, "every_samples": 4, "every": 1}
    recipe = staged(base, first, B, rl={"steps": 4, "lr": 1e-12}, evaluate=evaluate)
    lines = trained(recipe, cold, tmp_path / "out")
    assert all(line["turns"] == 1 for line in lines[:2])
    assert all(line["turns"] > 1 for line in lines[2:])
    figures = [{k: v for k, v in line.items() if k.startswith("eval_")} for line in lines]
    assert figures == [figures[0]] * 4
    plain = trained(staged(base, rl={"steps": 1, "lr": 1e-12}, evaluate=evaluate), cold, tmp_path / "plain")
    assert {k: v for k, v in plain[0].items() if k.startswith("eval_")} == figures[0]


def test_a_run_that_ends_for_what_it_has_spent_begins_no_further_stage(
    start: tuple[Path, Path], tmp_path: Path
) -> None:
    """Nor one that was killed before its model was kept: what the next stage would lack is not asked for."""
    base, cold = start
    later = {**B, "select": {"pass_rates": str(tmp_path / "rates.jsonl")}}
    recipe = staged(base, {**A, "steps": 1}, later, rl={"steps": 4, "max_sampled_tokens": 1})
    assert [line["stage"] for line in trained(recipe, cold, tmp_path / "out")] == [1]
    shutil.rmtree(tmp_path / "out/final")
    assert trained(recipe, cold, tmp_path / "out") == []
    assert (tmp_path / "out/final").is_dir()


def numbers(base: Path, *stages: dict[str, Any], **sections: dict[str, object]) -> Recipe:
    roomy: dict[str, dict[str, object]] = {"rollout": {"max_tokens": 200, "max_turns": 1, "lookahead_tokens": 0}}
    rl = {"steps": 2, "prompts": 2, "group": 2}
    return staged(base, *stages, **{**roomy, "rl": rl, "repair": {"kind": "none"}, **sections})


def test_a_task_set_of_the_callers_own_is_that_of_all_stages(start: tuple[Path, Path], tmp_path: Path) -> None:
    base, cold = start
    with pytest.raises(RecipeError, match=r"stage 2, b changes \[task\], but the run was given its own task set"):
        trained(staged(base, A, {**B, "task": {"steps": 3}}), cold, tmp_path / "out")


def test_a_stage_does_not_train_on_what_evaluations_measure(start: tuple[Path, Path], tmp_path: Path) -> None:
    base, cold = start
    for name, rows in (("one", range(40)), ("other", range(100, 140)), ("held", range(5))):
        text = "".join(json.dumps({"question": f"What is {n} + 1?", "answer": str(n + 1)}) + "\n" for n in rows)
        (tmp_path / f"{name}.jsonl").write_text(text)
    task = {"kind": "file", "path": str(tmp_path / "other.jsonl"), "evaluation_path": str(tmp_path / "held.jsonl")}
    shared = {**B, "task": {"path": str(tmp_path / "one.jsonl"), "evaluation_path": ""}}
    recipe = numbers(base, {**A, "steps": 1}, shared, task=task, sandbox={"workers": 1, "output_chars": 24})
    with pytest.raises(RecipeError, match=r"stage 2, b would train on [1-5] of the evaluation problems"):
        run_rl(recipe, cold, tmp_path / "out")


def test_a_stage_with_its_own_data_goes_on_once_its_pass_rates_are_there(
    start: tuple[Path, Path], tmp_path: Path
) -> None:
    """Its tasks are the run's inputs from the beginning: else the run is refused as one of other tasks."""
    base, cold = start
    for name, rows in (("one", range(40)), ("other", range(100, 140))):
        text = "".join(json.dumps({"question": f"What is {n} + 1?", "answer": str(n + 1)}) + "\n" for n in rows)
        (tmp_path / f"{name}.jsonl").write_text(text)
    rates, out = tmp_path / "rates.jsonl", tmp_path / "out"
    task = {"kind": "file", "path": str(tmp_path / "one.jsonl"), "evaluation_share": 0.0}
    other = {"task": {"path": str(tmp_path / "other.jsonl")}, "select": {"pass_rates": str(rates)}}
    recipe = numbers(base, {**A, "steps": 1}, {**B, **other}, task=task, rl={"steps": 2})
    with pytest.raises(RecipeError, match=r"retcon difficulty .*step-000001 RECIPE --stage b --tasks N"):
        run_rl(recipe, cold, out)
    theirs = build_tasks(stages_of(recipe)[1].recipe).train(0)
    told = ({"task": one.id, "model": "m", "passed": 4, "rollouts": 8} for one in theirs)
    rates.write_text("".join(json.dumps(one) + "\n" for one in told))
    lines: Lines = []
    run_rl(recipe, cold, out, on_step=lines.append)
    assert [line["stage"] for line in lines] == [2]
