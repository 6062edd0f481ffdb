"""A learning rate that ruins a model of its size is told by the run, and by the plan of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from rich.console import Console
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from retcon.cli.app import app
from retcon.cli.runner import Experiment, cold_start, training
from retcon.core.errors import RateWarning
from retcon.planning import needs as rates
from training import make_base, make_demonstrations

pytestmark = pytest.mark.torch
PROBLEMS = Path(__file__).parents[3] / "examples/own_data/problems.jsonl"
SMALL = (
    "rl.prompts=1", "rl.group=2", "rl.steps=1", "sandbox.workers=1", "task.kind=file", f'task.path="{PROBLEMS}"',
    "rollout.max_turns=1", "rollout.max_tokens=120",
)  # fmt: skip
PAIR = {"prompt": "What is 6 times 7?\n", "chosen": "It is 42.<|im_end|>", "rejected": "It is 41.<|im_end|>"}


@pytest.mark.parametrize("kind", ["sft", "dpo", "rl"])
@pytest.mark.parametrize("dry", [True, False], ids=["plan", "run"])
def test_a_rate_that_ruins_a_model_is_told(
    kind: str, dry: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = make_base(tmp_path / "base", positions=256)
    monkeypatch.setattr(rates, "LARGE", 1_000)  # no model of 50 M parameters for a test
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps(PAIR) + "\n")
    words = {
        "sft": ["sft", "quickstart/cold_start", "sft.steps=1", "sft.batch=2", f"model.path={base}",
                "--demonstrations", str(make_demonstrations(base, tmp_path / "demonstrations.jsonl"))],
        "dpo": ["dpo", "dpo.steps=1", "--pairs", str(pairs), "--from", str(base)],
        "rl": ["train", "quickstart/baseline", *SMALL, "--from", str(base)],
    }[kind]  # fmt: skip
    words = [*words, "compute.device=cpu", "--out", str(tmp_path / "out"), *(["--dry-run"] if dry else [])]
    with pytest.warns(RateWarning, match=rf"^{kind}\.lr = .* set {kind}\.lr=") as caught:
        done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert len([one for one in caught if one.category is RateWarning]) == 1


def test_many_jobs_rates_are_reported_once_each_by_the_command_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = make_base(tmp_path / "base", positions=256)
    monkeypatch.setattr(rates, "LARGE", 1_000)
    cold = [cold_start(tmp_path, tmp_path / f"cold/{n}", "quickstart/cold_start", [f"model.path={base}"],
                       name=f"cold {n}", demos=tmp_path / "d.jsonl") for n in range(2)]  # fmt: skip
    arms = [training(tmp_path, tmp_path / f"arm/{n}", "quickstart/baseline", [f"model.path={base}", *SMALL],
                     name=f"arm {n}", start=str(cold[n].makes), needs=()) for n in range(2)]  # fmt: skip
    jobs = [replace(one, job=replace(one.job, words=("--version",))) for one in (*cold, *arms)]
    experiment = Experiment(tmp_path / "out", "book.json", "experiment", targets=jobs)
    experiment.record.seconds = 100.0
    with pytest.warns(RateWarning) as caught:
        assert experiment.run(at_once=2, console=Console(stderr=True)) > 100.0, "sessions add up"
    said = [str(one.message) for one in caught if one.category is RateWarning]
    assert [one.partition(" =")[0] for one in said] == ["sft.lr", "rl.lr"]
    assert all("0 M parameters" in one for one in said)


def test_parameters_are_counted_as_torch_counts_them(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(base)
    assert rates.count_stored_parameters(base) == sum(weights.numel() for weights in model.parameters())
    for broken in (b"\xff" * 20, b"[" * 100_000):
        (base / "model.safetensors").write_bytes(len(broken).to_bytes(8, "little") + broken)
        assert rates.count_stored_parameters(base) == 0
