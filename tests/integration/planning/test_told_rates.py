"""A learning rate that ruins a model of its size is told by the run, and by the plan of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from typer.testing import CliRunner

from retcon.cli.app import app
from retcon.core.errors import RateWarning
from retcon.planning import rates
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
