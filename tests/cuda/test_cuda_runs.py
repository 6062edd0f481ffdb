"""The commands on a GPU, with the sandbox: supervised training, RL that is killed, evaluation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from retcon.runs.folder import RunFolder
from training import Zygote, make_base, make_demonstrations, small_recipe

pytestmark = [pytest.mark.torch, pytest.mark.slow]
FEW = ("sandbox.workers=1", "rollout.max_tokens=64", "rollout.max_turns=2")


def retcon(*words: object) -> str:
    """What a command that succeeds prints."""
    done = subprocess.run(
        [sys.executable, "-m", "retcon", *map(str, words)], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": "src", "COLUMNS": "200", "NO_COLOR": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base") / "base", positions=1024)


@pytest.fixture(scope="module")
def cold(base: Path, device: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`retcon sft`, on demonstrations that call in vain, and answer."""
    out = tmp_path_factory.mktemp("cold")
    file = make_demonstrations(base, out / "demonstrations.jsonl")
    said = retcon(
        "sft", "quickstart/cold_start", f"model.path={base}", f"compute.device={device}", "sft.steps=60", "sft.lr=1e-2",
        "sft.batch=10", "--demonstrations", file, "--out", out / "run",
    )  # fmt: skip
    assert f"computing on {device}" in said
    return out / "run"


@pytest.fixture(scope="module")
def learnt(zygote: Zygote, base: Path, device: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that calls at random, in vain or not, and answers."""
    out = tmp_path_factory.mktemp("learnt")
    file = make_demonstrations(base, out / "demonstrations.jsonl")
    recipe = small_recipe(base, compute={"device": device, "dtype": "float32"})
    assert list(zygote.run("sft", recipe, file, out / "run"))[-1] == ("exit", "0")
    return out / "run/final"


def about(run: Path) -> Any:
    return json.loads((run / "run.json").read_text())


def test_commands_train_and_evaluate_there(cold: Path, tmp_path: Path, device: str) -> None:
    assert 0 < (RunFolder(cold).read_metrics()[-1]["loss"] or 0) < 1
    steps = ("rl.steps=2", "rl.prompts=2", "rl.group=4", f"compute.device={device}")
    said = retcon("train", "mini/cleaner", *FEW, *steps, "--from", cold, "--out", tmp_path / "run")
    assert f"computing on {device}" in said
    lines = RunFolder(tmp_path / "run").read_metrics()
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["infrastructure"] == 0 for line in lines)
    assert about(tmp_path / "run")["places"][0].startswith(f"computing on {device}")
    measured = ("evaluate.problems=4", "evaluate.samples=2", f"compute.device={device}")
    said = retcon("eval", tmp_path / "run", "quickstart/saar", *FEW, *measured, "--out", tmp_path / "eval")
    assert f"computing on {device}" in said
    assert json.loads((tmp_path / "eval/result.json").read_text())["settings"]


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("rank", [0, 4], ids=["weights", "adapters"])
def test_a_run_that_is_killed_goes_on(
    zygote: Zygote, learnt: Path, tmp_path: Path, device: str, rank: int, staleness: int
) -> None:
    """Repairs on, so that lookaheads and splices are part of it."""
    recipe = small_recipe(
        learnt, compute={"device": device, "dtype": "float32", "rollout_dtype": "float32"},
        rl={"steps": 5, "checkpoint_every": 1, "max_staleness": staleness}, lora={"rank": rank},
    )  # fmt: skip
    pid, out = 0, tmp_path / "run"
    for name, value in zygote.run("rl", recipe, learnt, out):
        if name == "pid":
            pid = int(value)
        elif name == "step" and value == "2":
            os.kill(pid, signal.SIGKILL)
        elif name == "exit":
            assert int(value) == -signal.SIGKILL
    events = list(zygote.run("rl", recipe, learnt, out))
    assert events[-1] == ("exit", "0"), events
    assert int(next(value for name, value in events if name == "step")) > 1, "went on from a checkpoint"
    lines = RunFolder(out).read_metrics()
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert all(line["infrastructure"] == 0 for line in lines)
    assert sum((line["shallow"] or 0) + (line["deep"] or 0) for line in lines) > 0, "there was something to repair"
    if not staleness:
        assert all(line["mismatch_mean"] < 1e-3 for line in lines if line["mismatch_mean"] is not None)
    assert len(about(out)["places"]) == 1
    assert (out / "final/model.safetensors").is_file()
