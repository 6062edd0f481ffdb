"""The RL loop over the real engine and sandbox: selection, infrastructure losses, and being interrupted."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from retcon.config.schema import LoraSection
from retcon.core.errors import CheckpointError, EngineError, RecipeError, SandboxUnavailable
from retcon.models.locating import locate
from retcon.models.lora import Adapter
from retcon.store import jsonl
from retcon.train import rl
from retcon.train.rl import run_rl
from retcon.train.rollouts import TrainingRollouts
from training import Graded, Ones, make_base, small_recipe

pytestmark = pytest.mark.torch
SMALL = {"prompts": 2, "group": 4, "steps": 1}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("rl") / "base")


def run(base, out, rewards, **sections):
    recipe = small_recipe(base, **{"rl": SMALL, "rollout": {"max_tokens": 16}, "repair": {"kind": "none"}, **sections})
    lines = []
    run_rl(recipe, base, out, tasks=Graded(rewards=rewards), on_step=lines.append)
    return lines


def test_a_group_with_one_survivor_is_skipped_and_counted(base, tmp_path):
    (line,) = run(base, tmp_path / "run", ((1.0, None, None, None), (1.0, -1.0, -1.0, None)))
    assert (line["rollouts"], line["infrastructure"], line["kept"], line["groups_skipped"]) == (8, 4, 3, 1)
    assert line["groups_flat"] == 0, "a group of one is not flat, it is none"
    assert line["reward"] == 0.0  # (1 + 1 - 1 - 1) / 4: faults are no zeros
    assert line["grad_norm"] > 0
    kept = list(jsonl.read(tmp_path / "run/trajectories/step-000001.jsonl"))
    assert len(kept) == 8, "also those that were lost"


def test_greedy_rollouts_are_refused_before_anything_is_written(base, tmp_path):
    with pytest.raises(RecipeError, match=r"rollout\.temperature = 0 is greedy"):
        run(base, tmp_path / "run", ((1.0, -1.0, 1.0, -1.0),), rollout={"max_tokens": 16, "temperature": 0.0})
    assert not (tmp_path / "run").exists()


def test_a_correction_by_log_probs_of_another_temperature_is_refused(base, tmp_path):
    correcting = {**SMALL, "old_logprobs": "recompute", "correction": "token_mask"}
    with pytest.raises(RecipeError, match=r"rl\.correction = token_mask uses .* rollout\.temperature = 0\.6"):
        run(base, tmp_path / "run", ((1.0, -1.0, 1.0, -1.0),), rollout={"max_tokens": 16, "temperature": 0.6},
            rl=correcting)  # fmt: skip


def test_a_step_without_rollouts_ends_the_run_by_name(base, tmp_path):
    with pytest.raises(SandboxUnavailable, match=r"step 1.*run the same command again"):
        run(base, tmp_path / "run", ((None, None, None, 1.0),))
    assert not (tmp_path / "run/final").exists()


def test_selection_keeps_g_of_the_oversampled(base, tmp_path):
    rewards = (1.0, 1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0)
    (line,) = run(base, tmp_path / "run", (rewards,), select={"kind": "roc", "oversample": 2.0})
    assert (line["rollouts"], line["kept"], line["groups_flat"]) == (16, 8, 0)


@pytest.mark.parametrize("budget", [0, 30])
def test_every_step_keeps_its_rollouts(base, tmp_path, budget):
    rl = {"prompts": 1, "group": 2, "steps": 12, "max_sampled_tokens": budget}
    last = len(run(base, tmp_path / "run", ((1.0, -1.0),), rl=rl))
    assert 1 < last < 10 if budget else last == 12
    kept = sorted(file.name for file in (tmp_path / "run/trajectories").iterdir())
    assert kept == [f"step-{n:06d}.jsonl.zst" for n in range(1, last + 1)]
    (one, _) = jsonl.read(tmp_path / "run/trajectories/step-000001.jsonl")
    assert abs(one.training.advantage) == pytest.approx(2**-0.5, rel=0.01)
    assert (one.selection, one.training.mask, one.training.seconds > 0) == ("kept", None, True)


FLAT, MIXED = (1.0,) * 4, (1.0, -1.0, -1.0, 1.0)
EXTRA = ("extra_groups", "extra_rollouts", "extra_rounds", "groups_flat", "groups_short", "kept")


@pytest.mark.parametrize(
    ("rewards", "select", "expected"),
    [
        ((FLAT, MIXED, FLAT, MIXED), {}, (2, 8, 2, 2, 0, 8)),
        ((MIXED,), {}, (0, 0, 0, 0, 0, 8)),
        ((FLAT, MIXED, FLAT, MIXED), {"max_rounds": 1}, (1, 4, 1, 2, 1, 4)),
        ((FLAT, MIXED, FLAT, MIXED), {"max_extra": 0.5}, (1, 4, 1, 2, 1, 4)),
        ((FLAT,), {}, (4, 16, 2, 6, 2, 0)),
        (((1.0, None, None, None), MIXED, MIXED), {}, (1, 4, 1, 0, 0, 8)),
        ((FLAT, MIXED), {"dynamic": False}, (0, 0, 0, 1, 0, 8)),
    ],
    ids=["replaced", "nothing to replace", "rounds", "extra", "all flat", "lost", "off"],
)
def test_flat_groups_are_replaced_within_bounds(base, tmp_path, rewards, select, expected):
    (line,) = run(base, tmp_path / "run", rewards, select={"dynamic": True, **select})
    assert tuple(line[name] for name in EXTRA) == expected
    assert line["rollouts"] == 8 + expected[1]
    assert (line["grad_norm"] > 0) == (expected[-1] > 0)
    assert len(list(jsonl.read(tmp_path / "run/trajectories/step-000001.jsonl"))) == line["rollouts"]


def test_old_logprobs_are_the_engines_and_agree_with_the_trainers(base, tmp_path):
    rl = {**SMALL, "minibatches": 1}
    (line,) = run(base, tmp_path / "run", ((1.0, -1.0, -1.0, 1.0),), rl=rl)
    assert line["clip_fraction"] == 0.0
    assert line["kl"] < 1e-8
    assert json.loads((tmp_path / "run/metrics.jsonl").read_text()) == line


@pytest.mark.parametrize(
    ("sections", "most"),
    [
        ({}, 1e-5),
        ({"compute": {"rollout_dtype": "float16"}}, 1e-2),
        ({"compute": {"rollout_dtype": "bfloat16"}}, 1e-1),
        ({"compute": {"rollout_dtype": "float16", "dtype": "bfloat16"}}, 1e-1),
        ({"lora": {"rank": 4}}, 1e-5),
        ({"lora": {"rank": 4}, "compute": {"rollout_dtype": "float16"}}, 1e-2),
    ],
    ids=["shared", "float16", "bfloat16", "float16 and bfloat16", "lora", "lora float16"],
)
def test_rollouts_follow_the_trained_weights(base, tmp_path, sections, most):
    """In every step, after large updates too: an engine left behind would have log-probs that are far off."""
    rl = {**SMALL, "steps": 4, "lr": 5e-2}
    lines = run(base, tmp_path / "run", ((1.0, -1.0, -1.0, 1.0),), rl=rl, **sections)
    assert max(line["kl"] for line in lines) > 1e-2, "the updates were large"
    for line in lines:
        assert 0 < line["mismatch_mean"] <= line["mismatch_max"] < most
        assert line["mismatch_kl"] < most**2
    if most > 1e-5:
        assert max(line["mismatch_max"] for line in lines) > 1e-5, "other weights, other rounding"


def test_adapters_end_up_in_a_plain_model(base, tmp_path):
    run(base, tmp_path / "run", ((1.0, -1.0, -1.0, 1.0),), rl={**SMALL, "lr": 5e-2}, lora={"rank": 4})
    final, checkpoint = tmp_path / "run/final", tmp_path / "run/checkpoints/step-000001"
    before, after = (load_file(f / "model.safetensors") for f in (base, final))
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if name.endswith("_proj.weight")}
    assert (final / "config.json").read_bytes() == (base / "config.json").read_bytes()
    adapters = [f / "adapter_model.safetensors" for f in (final / "adapter", checkpoint)]
    assert adapters[0].read_bytes() == adapters[1].read_bytes()
    assert not (checkpoint / "model.safetensors").exists()
    with pytest.raises(CheckpointError, match=r"step-000001 holds adapters without their model: give the final/"):
        locate(checkpoint)
    ids = torch.arange(9)[None]
    with torch.inference_mode():
        merged = AutoModelForCausalLM.from_pretrained(final)(ids).logits
        adapted = AutoModelForCausalLM.from_pretrained(base)
        Adapter(adapted, LoraSection(rank=4), seed=9).load(final / "adapter")
        torch.testing.assert_close(adapted(ids).logits, merged)


def test_adapters_of_experts_decode_and_go_on_as_they_were_trained(tmp_path):
    base, out = make_base(tmp_path / "base", experts=4), tmp_path / "run"

    def trained():
        rl = {**SMALL, "steps": 3, "lr": 5e-2, "checkpoint_every": 1}
        lines = run(base, out, ((1.0, -1.0, -1.0, 1.0),), rl=rl, lora={"rank": 4})
        return lines, {p.relative_to(out): p.read_bytes() for p in (out / "final").rglob("*.safetensors")}

    lines, files = trained()
    assert all(line["mismatch_max"] < 1e-5 for line in lines), "the engine's log-probs are those of what is trained"
    before, after = (load_file(f / "model.safetensors") for f in (base, out / "final"))
    changed = {name.rsplit("mlp.")[-1] for name in before if not torch.equal(before[name], after[name])}
    assert {"gate.weight", "experts.0.up_proj.weight", "experts.3.down_proj.weight"} <= changed
    shutil.rmtree(out / "final")
    shutil.rmtree(out / "checkpoints/step-000003")
    again, same = trained()
    assert [line["step"] for line in again] == [3]
    assert same == files


@pytest.mark.parametrize(
    ("sections", "part"),
    [({"compute": {"device": "cuda:9"}}, "compute.device"), ({"lora": {"rank": 2, "targets": "w"}}, "lora.targets")],
)
def test_what_cannot_be_computed_here_is_refused_before_there_is_a_run(base, tmp_path, sections, part):
    with pytest.raises(RecipeError, match=part):
        run_rl(small_recipe(base, **sections), base, tmp_path / "run", tasks=Ones())
    assert not (tmp_path / "run").exists()


def test_a_sandbox_or_server_that_is_gone_loses_no_step(base, tmp_path, monkeypatch):
    draw = rl.draw_groups

    async def gone(stream, *, step):
        if step == 3:
            raise SandboxUnavailable("the machine is gone")
        return await draw(stream, step=step)

    monkeypatch.setattr(rl, "draw_groups", gone)
    recipe = small_recipe(base, rl={**SMALL, "steps": 4, "checkpoint_every": 1000}, rollout={"max_tokens": 16})
    with pytest.raises(SandboxUnavailable, match="the machine is gone"):
        run_rl(recipe, base, tmp_path / "run", tasks=Ones())
    assert [one.name for one in (tmp_path / "run/checkpoints").iterdir()] == ["step-000002"]


def test_a_server_that_cannot_be_given_the_weights_loses_no_step(base, tmp_path, monkeypatch):
    """The step that made them has been taken."""
    sync = TrainingRollouts.sync

    async def full(self, version=0):
        await sync(self, version)
        if version == 3:
            raise EngineError("the weights cannot be written to /dev/shm")

    recipe = small_recipe(base, rl={**SMALL, "steps": 4, "checkpoint_every": 1000}, rollout={"max_tokens": 16})
    unbroken = run_rl(recipe, base, tmp_path / "unbroken", tasks=Ones())
    monkeypatch.setattr(TrainingRollouts, "sync", full)
    with pytest.raises(EngineError, match="cannot be written to /dev/shm"):
        run_rl(recipe, base, tmp_path / "run", tasks=Ones())
    assert [one.name for one in (tmp_path / "run/checkpoints").iterdir()] == ["step-000003"]
    monkeypatch.undo()
    final = run_rl(recipe, base, tmp_path / "run", tasks=Ones())
    assert (final / "model.safetensors").read_bytes() == (unbroken / "model.safetensors").read_bytes()


class Interrupting(Ones):
    """Ctrl-C while an evaluation is graded."""

    def grade(self, task, trajectory):
        if task.id.startswith("ones/evaluation"):
            os.kill(os.getpid(), signal.SIGINT)
        return super().grade(task, trajectory)


@pytest.mark.parametrize("busy", ["updating", "evaluating"])
def test_an_interrupt_after_a_step_has_its_rollouts_loses_no_step(base, tmp_path, monkeypatch, capfd, busy):
    updated = rl.update

    def update(*args, **kwargs):
        if busy == "updating" and kwargs["step"] == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return updated(*args, **kwargs)

    monkeypatch.setattr(rl, "update", update)
    sections = {"max_staleness": 1} if busy == "updating" else {}
    recipe = small_recipe(
        base, rl={**SMALL, "steps": 4, "checkpoint_every": 1000, **sections}, rollout={"max_tokens": 16},
        evaluate={"every": 2, "problems": 1, "every_samples": 1},
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        run_rl(recipe, base, tmp_path / "run", tasks=Ones() if busy == "updating" else Interrupting())
    (checkpoint,) = (tmp_path / "run/checkpoints").iterdir()
    assert checkpoint.name == "step-000002"
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["eval_rollouts"] == 1, "the step was finished"
    assert "this step is finished and kept first" in capfd.readouterr().err
