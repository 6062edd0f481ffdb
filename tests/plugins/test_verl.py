"""Rollouts in verl's own trainer, over a real Ray: `make integration`.

What runs is verl's: data set, queue, manager, workers, client, load balancer, replay buffer and advantages. What stands
in is the server behind the client (`replica`): our local engine, which needs no GPU, in place of vLLM's replica.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verling")  # without the warnings that verl's imports give; the reason says which package lacks

import hydra
import ray
import torch
from omegaconf import OmegaConf
from pyarrow import parquet
from rays import a_ray
from verl.utils.config import validate_config
from verling import ROOT, SaidTasks, Training, config_of, replicas, with_recipe

from retcon.build import build_limits
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError
from retcon.core.types import REPLACED, Sample, Trajectory, to_sample
from retcon.models.loading import load_model
from retcon.plugins.verl import settings
from retcon.plugins.verl.choosing import unpack
from retcon.plugins.verl.manager import RetconManager
from retcon.tasks.data.conventions import verl_rows, write_verl
from retcon.tasks.registry import training_prompts
from retcon.tasks.types import Task
from retcon.train.objective.shaping import shaped_rewards
from retcon.train.objective.tree import trainable
from retcon.train.prompts import StepGroups
from retcon.train.rl import draw_groups
from retcon.train.rollouts import EngineWeights, GroupStream, open_rollouts
from retcon.train.sft import run_sft
from retcon.train.update import learnt, minibatch_update
from training import make_base, make_demonstrations, small_recipe

pytestmark = pytest.mark.filterwarnings("default")  # verl's own
PROMPTS, GROUP = 4, 8
QUICKSTART = os.environ.get("RETCON_QUICKSTART")
SAAR = ("task.kind=verling:Said", "rollout.max_turns=4", "repair.probability=0.7", "select.kind=roc", "rl.group=4",
        f"rl.prompts={PROMPTS}", "rl.overlong_buffer=280")  # fmt: skip
LENGTHS = ["data.max_prompt_length=320", "data.max_response_length=320", "data.gen_batch_size=1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that calls, in vain or not, and answers."""
    folder = tmp_path_factory.mktemp("model")
    base = make_base(folder / "base", positions=1024)
    return run_sft(small_recipe(base), make_demonstrations(base, folder / "demonstrations.jsonl"), folder / "cold")


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    """What the tiny model has learnt to call at."""
    return list(islice(SaidTasks().train(0), 3 * PROMPTS))


@pytest.fixture(scope="module")
def data(tasks: list[Task], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "go.parquet"
    write_verl(file, verl_rows(tasks, split="train", system=None, source="go"))
    return file


@pytest.fixture(scope="module")
def drawn(model: Path, tasks: list[Task]) -> StepGroups:
    """The first step of our own trainer."""
    return ours(recipe_of(*SAAR), model, tasks, SaidTasks())


@pytest.fixture(scope="module")
def ray_here() -> Iterator[None]:
    with a_ray():
        yield


def configured(model: Path, data: Path, *recipe: str, verl: tuple[str, ...] = ()) -> Any:
    config = config_of(
        model, data, [*LENGTHS, f"data.train_batch_size={PROMPTS}", f"actor_rollout_ref.rollout.n={GROUP}", *verl]
    )
    return with_recipe(config, "mini/cleaner", recipe)


def recipe_of(*overrides: str, name: str = "mini/cleaner") -> Recipe:
    return load_recipe(name, overrides)


def ours(recipe: Recipe, model: Path, tasks: list[Task], graded: Any) -> StepGroups:
    """A step of our own trainer, up to its samples."""

    async def draw() -> StepGroups:
        weights = EngineWeights(load_model(model, "float32"), torch.float32)
        async with open_rollouts(recipe, weights, model, graded) as rollouts:
            return await draw_groups(GroupStream(rollouts, iter(tasks)), step=1)

    return asyncio.run(draw())


def compare(training: Training, batch: Any, drawn: StepGroups, recipe: Recipe) -> int:
    """Field by field, the batch that verl's trainer has against the rollouts that ours keeps; returns how many."""
    names = ("prompts", "responses", "response_mask", "loss_mask", "input_ids", "position_ids", "rm_scores")
    rows = training.read(batch, *names, "uid", "extra_info", "extra_fields", "session_id", "num_turns")
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for n in range(len(batch.keys)):
        row = {name: column[n] for name, column in rows.items()}
        found[row["extra_info"]["id"], int(row["session_id"])] = row
    kept = {(t.task, t.provenance.index or 0): t for group in drawn.kept for t in group}
    assert found.keys() == kept.keys()
    for key, trajectory in kept.items():
        _same(found[key], trajectory, recipe)
    return len(kept)


def _same(row: dict[str, Any], trajectory: Trajectory, recipe: Recipe) -> None:
    sample, start = to_sample(trajectory), sum(len(s.ids or ()) for s in trajectory.prompt)
    mask = list(learnt(trajectory, sample, recipe.rl))
    assert row["prompts"].tolist() == list(sample.ids[:start])
    assert row["responses"].tolist() == list(sample.ids[start:])
    assert row["input_ids"].tolist() == list(sample.ids)
    assert row["position_ids"].tolist() == list(range(len(sample.ids)))
    assert row["response_mask"].tolist() == row["loss_mask"].tolist() == mask[start:]
    (reward,) = shaped_rewards([trajectory], recipe.rl, build_limits(recipe))
    assert row["rm_scores"].tolist() == pytest.approx([0.0] * (len(sample.ids) - start - 1) + [reward])
    about = row["extra_fields"]["reward_extra_info"]
    assert about["acc"] == ((trajectory.reward or 0) > 0)
    assert (about["calls"], about["failed_calls"]) == (trajectory.raw_calls, trajectory.raw_failures)
    assert about["sampled_tokens"] == trajectory.sampled_tokens
    assert about["repairs"] == sum(t.repair.decision in REPLACED for t in trajectory.turns if t.repair)


@pytest.mark.usefixtures("ray_here")
def test_the_batch_of_verls_trainer_is_that_of_ours(model: Path, data: Path, drawn: StepGroups) -> None:
    router = f"actor_rollout_ref.rollout.router_config_path={ROOT / 'recipes/verl/router.yaml'}"
    config, recipe = configured(model, data, *SAAR, verl=(router,)), recipe_of(*SAAR)
    training = Training(config, replicas(model, recipe.rollout.max_tokens + recipe.rollout.lookahead_tokens, 2))
    try:
        batch, told = training.step(1)
        agree(training, batch, told, drawn, recipe)
        assert len({t.reward for group in drawn.kept for t in group}) == 2
    finally:
        training.close()


def agree(training: Training, batch: Any, told: dict[str, float], drawn: StepGroups, recipe: Recipe) -> None:
    """All that the two trainers have of one step: rollouts, selection, advantages."""
    made = [t for group in drawn.made for t in group]
    assert any(turn.repair and turn.repair.decision in REPLACED for t in made for turn in t.turns)
    assert compare(training, batch, drawn, recipe) == recipe.rl.prompts * recipe.rl.group
    assert told["retcon/rollouts"] == len(made) == recipe.rl.prompts * recipe.select.made(recipe.rl.group)
    assert not training.has(batch, "rollout_log_probs")
    assert training.left_in_queue() == set(batch.keys)
    found = training.advantages(batch)
    for group in drawn.kept:
        rewards = shaped_rewards(group, recipe.rl, build_limits(recipe))
        assert found[group[0].task] == pytest.approx(recipe.rl.advantages(rewards), abs=1e-4)


@pytest.mark.usefixtures("ray_here")
def test_children_are_rows_of_their_rollouts_with_its_advantage(tasks: list[Task], data: Path, tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", positions=1024)
    programs = {"print(llm_query('go'))": "1", "print(len(llm_query_batched(['go', 'no'])))": "2"}
    demonstrations = make_demonstrations(base, tmp_path / "demonstrations.jsonl", programs)
    model = run_sft(small_recipe(base), demonstrations, tmp_path / "cold")
    keys = (*SAAR, 'rollout.tools=["rlm"]', "credit.kind=inherit", "credit.weights=node")
    recipe = recipe_of(*keys)
    drawn = ours(recipe, model, tasks, SaidTasks())
    training = Training(configured(model, data, *keys), replicas(model, 480))
    try:
        batch, told = training.step(1)
        agree(training, batch, told, drawn, recipe)
        rows = training.read(batch, "prompts", "responses", "response_mask", "rm_scores", "advantages")
        last = {key.rpartition("_")[0]: n for n, key in enumerate(batch.keys)}
        found = []
        for n, key in enumerate(batch.keys):
            root = last[key.rpartition("_")[0]]
            pushed = {round(a, 5) for m in (n, root) for a in rows["advantages"][m].tolist() if a}
            assert len(pushed) <= 1
            assert rows["rm_scores"][n].tolist()[-1] == rows["rm_scores"][root].tolist()[-1]
            if n != root:
                found.append([rows[name][n].tolist() for name in ("prompts", "responses", "response_mask")])
        below = [node for group in drawn.kept for root in group for node in trainable(root, recipe.rl)[1:]]
        expected = []
        for node in below:
            sample, start = to_sample(node), sum(len(s.ids or ()) for s in node.prompt)
            mask = list(learnt(node, sample, recipe.rl))
            expected.append([list(sample.ids[:start]), list(sample.ids[start:]), mask[start:]])
        assert sorted(found) == sorted(expected)
        assert told["retcon/children"] == len(found) > 0
    finally:
        training.close()


@pytest.mark.skipif(
    QUICKSTART is None, reason="RETCON_QUICKSTART names no cold start of the quickstart to roll out with"
)
@pytest.mark.usefixtures("ray_here")
def test_64_prompts_of_16_rollouts(tmp_path: Path) -> None:
    """With the quickstart's own model, problems and recipe, SAAR and GRPO-RoC on."""
    about = ("select.kind=roc", "rl.prompts=64")
    model, recipe = Path(str(QUICKSTART)), recipe_of(*about, name="quickstart/saar")
    family = recipe.task.build()
    tasks = list(islice(training_prompts(family, recipe.run.seed), 64))
    write_verl(tmp_path / "n.parquet", verl_rows(tasks, split="train", system=None, source="numbers"))
    lengths = [*LENGTHS, "data.train_batch_size=64", "actor_rollout_ref.rollout.n=16"]
    config = with_recipe(config_of(model, tmp_path / "n.parquet", lengths), "quickstart/saar", about)
    training = Training(config, replicas(model, recipe.rollout.max_tokens + recipe.rollout.lookahead_tokens))
    try:
        began = time.perf_counter()
        batch, told = training.step(1)
        print(f"\nverl: {told} in {time.perf_counter() - began:.0f} s")
        began = time.perf_counter()
        drawn = ours(recipe, model, tasks, family)
        made = [t for group in drawn.made for t in group]
        repairs = sum(bool(u.repair and u.repair.decision in REPLACED) for t in made for u in t.turns)
        print(
            f"ours: {len(made)} rollouts, {sum(map(len, drawn.kept))} kept, {sum(t.raw_failures for t in made)} failed "
            f"calls, {repairs} repairs, {sum((t.reward or 0) > 0 for t in made)} right, "
            f"in {time.perf_counter() - began:.0f} s"
        )
        agree(training, batch, told, drawn, recipe)
    finally:
        training.close()


@pytest.mark.usefixtures("ray_here")
def test_a_fault_is_no_reward_and_its_prompt_is_drawn_anew(model: Path, data: Path) -> None:
    """A step's only prompt loses all of its rollouts but one, in their first generations; the one in its place none."""
    one = ("actor_rollout_ref.rollout.agent.num_workers=1", "data.train_batch_size=1")
    config = configured(model, data, *SAAR, "repair.kind=none", "rl.prompts=1", verl=one)
    training = Training(config, replicas(model, 480, losing=GROUP - 1))
    try:
        batch, told = training.step(1)
        assert told["retcon/lost_to_faults"] == GROUP - 1
        assert (told["retcon/groups_skipped"], told["retcon/extra_groups"]) == (1.0, 1.0)
        assert len(batch.keys) == 4
        assert all(score.tolist()[-1] != 0 for score in training.read(batch, "rm_scores")["rm_scores"])
    finally:
        training.close()


@pytest.mark.usefixtures("ray_here")
def test_while_verl_validates_nothing_is_repaired_or_left_out(model: Path, data: Path) -> None:
    sampling = ("actor_rollout_ref.rollout.val_kwargs.n=2", "actor_rollout_ref.rollout.val_kwargs.temperature=1.0")
    config = configured(model, data, *SAAR, verl=sampling)
    training = Training(config, replicas(model, 480))
    try:
        told = training.trainer._validate()
        assert told["val-aux/go/repairs/mean@2"] == 0
        assert told["val-aux/go/failed_calls/mean@2"] > 0
        assert 0 < told["val-core/go/acc/mean@2"] < 1
    finally:
        training.close()


@pytest.mark.parametrize("numbers", [None, [5, 3, 4, 6]])
@pytest.mark.usefixtures("ray_here")
def test_a_task_that_a_step_has_twice_is_rolled_out_by_other_draws_each_time(
    model: Path, tasks: list[Task], numbers: list[int] | None, tmp_path: Path
) -> None:
    """The manager's columns come to each row's own rollouts, whatever worker has the row. numbers: of the rollouts of
    each row, where they are not verl's."""
    file, counts = tmp_path / "twice.parquet", numbers or [GROUP] * 4
    write_verl(file, verl_rows(2 * tasks[:2], split="train", system=None, source="go"))
    if numbers:
        table = parquet.read_table(file)
        parquet.write_table(table.append_column("__rollout_n__", [numbers]), file)
    config = configured(model, file, *SAAR, "repair.kind=none", "select.kind=none", f"rl.group={GROUP}")
    training = Training(config, replicas(model, 480))
    try:
        batch, told = training.step(1)
        made = training.read(batch, "extra_fields")["extra_fields"]
        names = sorted(unpack(one["trajectory"]).id for one in made)
        twice = [(task, counts[n] + counts[n + 2]) for n, task in enumerate(tasks[:2])]
        assert names == sorted(f"{task.id}/1/{n}" for task, count in twice for n in range(count))
        assert told["retcon/lost_to_faults"] == 0
    finally:
        training.close()


def launch(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """launch.sh in a folder, on the tasks of an empty file."""
    (folder / "data").mkdir()
    for split in ("train", "evaluation"):
        (folder / f"data/cleaner-7b-{split}.parquet").touch()
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **environment}
    command = ["bash", str(ROOT / "recipes/verl/launch.sh"), "cleaner-7b", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=folder)


@pytest.mark.usefixtures("ray_here")
def test_a_ray_that_runs_already_gets_what_is_asked_for(tmp_path: Path) -> None:
    sampler = f"trainer.v1.sampler.custom_sampler.path={ROOT / 'tests/plugins/stopping.py'}"
    units = "transfer_queue.backend.SimpleStorage.num_data_storage_units=1"
    there = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address, "RETCON_SANDBOX_TOKEN": "s3cret"}
    ended = launch(tmp_path, sampler, units, NODES="8", MODEL="my model", SANDBOX="http://127.0.0.1:9", **there)
    assert "cleaner-7b: 8 × 8 GPUs · model my model · data data/cleaner-7b-train.parquet" in ended.stdout
    assert "s3cret" not in ended.stdout + ended.stderr
    assert json.loads((tmp_path / "found.json").read_text()) == {
        "nodes": [8, 8],
        "model": "my model",
        "recipe": "cleaner-7b",
        "overrides": ["select.pass_rates=", 'sandbox.url=["http://127.0.0.1:9"]'],
        "token": "s3cret",
    }


def test_what_cannot_go_together_is_refused_before_ray_is_asked(model: Path, data: Path, tmp_path: Path) -> None:
    refused = launch(tmp_path, "algorithm.rollout_correction.bypass_mode=true", RAY_ADDRESS="127.0.0.1:1")
    assert refused.returncode == 1
    assert "error: algorithm.rollout_correction.bypass_mode = True: with repair.kind = 'saar'" in refused.stderr
    with pytest.raises(RecipeError, match=r"rollout\.harness: in verl rollouts are made by its agent loops"):
        RetconManager(config=configured(model, data, *SAAR, "rollout.harness=my_agent:solve"), llm_client=None)


@pytest.mark.parametrize("name", ["cleaner-4b", "cleaner-7b", "dapo-baseline", "rstar2-14b"])
def test_the_shipped_configurations_are_verls_and_go_with_their_recipes(name: str) -> None:
    with hydra.initialize_config_dir(str(ROOT / "recipes/verl"), version_base=None):
        config = hydra.compose(name, overrides=["actor_rollout_ref.model.path=somewhere"])
    OmegaConf.resolve(config)
    recipe = settings.recipe_of(config.retcon)
    settings.check_compatible(config, recipe)
    validate_config(config, use_reference_policy=False, use_critic=False)
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    assert config.data.train_batch_size == recipe.rl.prompts
    assert config.data.max_prompt_length + config.data.max_response_length == recipe.rollout.max_tokens
    assert config.data.max_response_length == recipe.rollout.max_response_tokens
    kept = recipe.rl.prompts * recipe.rl.group
    assert kept == recipe.rl.minibatches * actor.ppo_mini_batch_size * rollout.n
    assert (actor.optim.lr, actor.clip_ratio_low, actor.clip_ratio_high) == (
        recipe.rl.lr, recipe.rl.clip_low, recipe.rl.clip_high,
    )  # fmt: skip
    assert (actor.clip_ratio_c, config.trainer.total_training_steps) == (recipe.rl.dual_clip, recipe.rl.steps)
    assert (rollout.temperature, rollout.top_p) == (recipe.rollout.temperature, recipe.rollout.top_p)
    assert (rollout.val_kwargs.n, rollout.val_kwargs.top_p) == (recipe.evaluate.samples, recipe.evaluate.top_p)
    assert (actor.strategy, config.actor_rollout_ref.model.override_config) == (
        "fsdp2",
        {"attn_implementation": "sdpa"},
    )
    assert rollout.val_kwargs.temperature == (0.6 if name == "rstar2-14b" else 1.0)  # ours measures at 1 alone


@pytest.mark.parametrize(
    ("name", "about"),
    [
        ("cleaner-4b", {"GPUS": "1"}),
        ("cleaner-7b", {"NODES": "8", "SANDBOX": "http://10.0.0.7:8080,http://10.0.0.8:8080"}),
        *(("rstar2-14b", {"GPUS": "4", "STAGE": stage, "MODEL": "m"}) for stage in "123"),
    ],
)
def test_what_is_launched_goes_with_its_recipe(name: str, about: dict[str, str], tmp_path: Path) -> None:
    for program, does in (("python", 'printf "%s\\n" "$@"'), ("retcon", "true")):
        (tmp_path / program).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / program).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "DATA": str(tmp_path / "data"), **about}
    words = ["bash", str(ROOT / "recipes/verl/launch.sh"), name, "trainer.save_freq=7"]
    said = subprocess.run(words, capture_output=True, text=True, check=True, env=env).stdout.splitlines()
    assert said[:2] == ["-m", "retcon.plugins.verl"]
    with hydra.initialize_config_dir(said[3], version_base=None):
        config = hydra.compose(said[5], overrides=said[6:])
        OmegaConf.resolve(config)
    recipe = settings.recipe_of(config.retcon)
    settings.check_compatible(config, recipe)
    validate_config(config, use_reference_policy=False, use_critic=False)
    assert (config.trainer.save_freq, config.trainer.total_training_steps) == (7, recipe.rl.steps)
    assert config.data.max_prompt_length + config.data.max_response_length == recipe.rollout.max_tokens
    assert ",".join(recipe.sandbox.url) == about.get("SANDBOX", "")
    assert config.trainer.nnodes * config.trainer.n_gpus_per_node == int(about.get("GPUS", 8)) * int(
        about.get("NODES", 1)
    )


def test_verls_actor_computes_and_learns_what_ours_does(model: Path, drawn: StepGroups, tmp_path: Path) -> None:
    """On a CPU: verl's FSDP engine, registered for a platform from outside, on the same rollouts; ratios beyond the
    clip, advantages that are not those of the rollouts."""
    kept = [t for group in drawn.kept for t in group]
    samples = [to_sample(t) for t in kept]
    starts = [sum(len(s.ids or ()) for s in t.prompt) for t in kept]
    signs = [1.0 if n % 2 else -1.0 for n in range(len(kept))]
    parts = list(zip(samples, starts, signs, strict=True))
    rows = {
        "prompts": [torch.tensor(s.ids[:start]) for s, start, _ in parts],
        "responses": [torch.tensor(s.ids[start:]) for s, start, _ in parts],
        "response_mask": [torch.tensor(s.mask[start:]) for s, start, _ in parts],
        "advantages": [torch.full((len(s.ids) - start,), sign) for s, start, sign in parts],
    }
    torch.save(rows, tmp_path / "in.pt")
    program = ROOT / "tests/plugins/actor_on_cpu.py"
    words = [sys.executable, "-W", "ignore", program, model, tmp_path / "in.pt", tmp_path / "out.pt"]
    paths = os.pathsep.join(str(ROOT / name) for name in ("src", "tests", "tests/plugins"))
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": paths}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = torch.load(tmp_path / "out.pt", weights_only=False)

    before: list[Sample] = []
    for (sample, start, sign), found in zip(parts, told["log_probs"], strict=True):
        mask = torch.tensor(sample.mask[start:], dtype=torch.bool)
        own = torch.tensor([p for p in sample.logprobs[start:] if p is not None])
        assert torch.allclose(found[mask], own, atol=1e-4)
        old = (found + torch.linspace(-0.5, 0.5, len(found))).tolist()
        logprobs = [None] * start + [p if m else None for p, m in zip(old, mask.tolist(), strict=True)]
        before.append(replace(sample, logprobs=tuple(logprobs), advantages=(sign,) * len(sample.ids)))
    section = load_recipe(None, ["rl.algorithm=dapo", "rl.clip_low=0.2", "rl.clip_high=0.28", "rl.dual_clip=3"]).rl
    policy = load_model(model, "float32").train()
    ours_ = minibatch_update(policy, torch.optim.SGD(policy.parameters(), lr=0.0), before, section, lr=0.0)
    theirs = told["metrics"]
    assert ours_["clip_fraction"] > 0.05
    assert sum(theirs["actor/pg_loss"]) == pytest.approx(ours_["loss"], abs=1e-5)
