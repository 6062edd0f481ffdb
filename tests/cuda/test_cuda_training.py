"""Whole trainings on a GPU whose rollouts call no tool: what they log and keep, and where they go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from retcon.runs.folder import RunFolder
from retcon.train import rl as module
from retcon.train.rl import run_rl
from retcon.train.sft import run_sft
from training import Graded, make_base, make_demonstrations, small_recipe

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::retcon.core.errors.ComputeWarning"),  # few cores, and rounding
]
RL = {"prompts": 2, "group": 4, "steps": 3, "lr": 1e-3, "checkpoint_every": 1}
ALONE = {"rollout": {"tools": (), "max_tokens": 24, "max_turns": 2}, "repair": {"kind": "none"}}
FLOAT32 = {"dtype": "float32", "rollout_dtype": "float32"}
REWARDS = ((1.0, -1.0, -1.0, 1.0),)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("cuda") / "base")


def trained(base: Path, out: Path, compute: Mapping[str, Any], **sections: Any) -> list[Mapping[str, Any]]:
    """Each step's figures, of the sessions before among them."""
    rl = {**RL, **sections.pop("rl", {})}
    recipe = small_recipe(base, **{**ALONE, "rl": rl, "compute": dict(compute), **sections})
    run_rl(recipe, base, out, tasks=Graded(rewards=REWARDS))
    return list(RunFolder(out).read_metrics())


def places(out: Path) -> list[str]:
    found: list[str] = json.loads((out / "run.json").read_text())["places"]
    return found


def changed(one: Path, other: Path) -> bool:
    before, after = (load_file(folder / "model.safetensors") for folder in (one, other))
    return any(not torch.equal(value, after[name]) for name, value in before.items())


@pytest.mark.parametrize("rollouts", ["float32", "bfloat16", "float16"])
def test_a_run_in_float32_samples_from_what_it_trains(base: Path, tmp_path: Path, device: str, rollouts: str) -> None:
    lines = trained(base, tmp_path / "run", {"device": device, "dtype": "float32", "rollout_dtype": rollouts})
    near = {"float32": 1e-4, "bfloat16": 0.1, "float16": 0.01}[rollouts]
    assert len(lines) == 3
    assert all(line["grad_norm"] > 0 for line in lines)
    assert all(line["mismatch_mean"] < near for line in lines)
    assert changed(base, tmp_path / "run/final")
    (line,) = places(tmp_path / "run")
    assert line.startswith(f"computing on {device}")
    assert f"rollouts {rollouts}" in line


def test_a_run_that_leaves_it_all_to_auto_is_on_the_gpu(base: Path, tmp_path: Path) -> None:
    lines = trained(base, tmp_path / "run", {"device": "auto"})
    assert all(line["mismatch_mean"] < 0.1 for line in lines)
    (line,) = places(tmp_path / "run")
    assert torch.cuda.get_device_name(0) in line


@pytest.mark.parametrize("lora", [0, 4], ids=["weights", "adapters"])
def test_a_run_that_was_broken_off_goes_on_with_its_optimiser_on_the_gpu(
    base: Path, tmp_path: Path, device: str, lora: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, adapters = {"device": device, **FLOAT32}, {"rank": lora}
    update, seen = module.update, []

    def counted(model: Any, optimizer: Any, *rest: Any, **named: Any) -> Any:
        state = [v for of in optimizer.state.values() for v in of.values()]
        seen.append((named["step"], {v.device.type for v in state}))
        if named["step"] == 3 and len(seen) == 3:
            raise KeyboardInterrupt
        return update(model, optimizer, *rest, **named)

    monkeypatch.setattr(module, "update", counted)
    with pytest.raises(KeyboardInterrupt):
        trained(base, tmp_path / "run", compute, lora=adapters)
    lines = trained(base, tmp_path / "run", compute, lora=adapters)
    where = torch.device(device).type
    assert seen == [(1, set()), (2, {where}), (3, {where}), (3, {where})]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(line["mismatch_mean"] < 1e-4 for line in lines)
    whole = trained(base, tmp_path / "whole", compute, lora=adapters)
    assert [line["mismatch_mean"] < 1e-4 for line in whole] == [True] * 3
    assert lines[0]["loss"] == pytest.approx(whole[0]["loss"], abs=1e-3)
    assert changed(base, tmp_path / "run/final")


def test_a_run_that_was_begun_on_a_gpu_goes_on_on_a_cpu(
    base: Path, tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = module.update

    def broken_off(*rest: Any, **named: Any) -> Any:
        if named["step"] == 2:
            raise KeyboardInterrupt
        return update(*rest, **named)

    monkeypatch.setattr(module, "update", broken_off)
    with pytest.raises(KeyboardInterrupt):
        trained(base, tmp_path / "run", {"device": "auto", **FLOAT32})
    monkeypatch.setattr(module, "update", update)
    assert places(tmp_path / "run")[-1].startswith(f"computing on {device}")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    lines = trained(base, tmp_path / "run", {"device": "auto", **FLOAT32})
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert places(tmp_path / "run")[-1].startswith("computing on cpu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_whose_rollouts_are_older_than_its_weights(base: Path, tmp_path: Path, device: str, dtype: str) -> None:
    compute = {"device": device, "dtype": dtype, "rollout_dtype": dtype}
    lines = trained(base, tmp_path / "run", compute, rl={"steps": 4, "max_staleness": 1})
    assert lines[0]["staleness_max"] == 0
    assert max(line["staleness_max"] for line in lines) == 1


def test_a_run_with_a_reference_checkpoints_and_slices(base: Path, tmp_path: Path, device: str) -> None:
    compute = {"device": device, **FLOAT32, "checkpointing": True, "logits_chunk": 4096}
    lines = trained(base, tmp_path / "run", compute, rl={"algorithm": "grpo", "kl": 0.1, "entropy_coefficient": 0.01})
    assert all(line["kl_reference"] is not None and line["entropy"] > 0 for line in lines)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_supervised_training_learns_what_it_learns_on_a_cpu(
    base: Path, tmp_path: Path, device: str, dtype: str
) -> None:
    file = make_demonstrations(base, tmp_path / "demonstrations.jsonl")
    ended: list[list[Mapping[str, Any]]] = []
    for where, kind in (("cpu", "float32"), (device, dtype)):
        recipe = small_recipe(
            base, compute={"device": where, "dtype": kind}, sft={"steps": 12, "validation_share": 0.2}
        )
        lines: list[Mapping[str, Any]] = []
        run_sft(recipe, file, tmp_path / f"{where}-{kind}-{len(ended)}", on_step=lines.append)
        ended.append(lines)
    for here, there in zip(*ended, strict=True):
        assert there["loss"] == pytest.approx(here["loss"], rel=0.01 if dtype == "float32" else 0.05)
    assert ended[1][-1]["loss"] < 0.5 * ended[1][0]["loss"]
    assert ended[1][-1]["validation_loss"] == pytest.approx(ended[0][-1]["validation_loss"], rel=0.05)
