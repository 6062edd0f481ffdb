"""What a training says while it runs and when it is done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from typer.testing import CliRunner

from retcon.cli.app import app
from retcon.config.schema import TaskSection
from training import Graded, make_base, make_demonstrations

pytestmark = pytest.mark.torch
SMALL = (
    "rl.steps=2", "rl.prompts=1", "rl.group=2", "evaluate.every=0", "rollout.max_tokens=200",
    "rollout.lookahead_tokens=0", "sandbox.workers=1",
)  # fmt: skip


@pytest.mark.parametrize(("key", "moved"), [("rl.entropy_coefficient=0", False), ("rl.entropy_coefficient=0.01", True)])
def test_that_no_step_moved_the_weights_is_reported(key: str, moved: bool, tmp_path: Path) -> None:
    """An untrained model is never right: all rewards are equal, and only an entropy bonus is left to learn from."""
    base, out = make_base(tmp_path / "base"), tmp_path / "out"
    words = ["train", "quickstart/baseline", *SMALL, key, "--from", str(base), "--out", str(out)]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert f"model: {out / 'final'}" in done.output
    assert json.loads((out / "run.json").read_text())["start"] == str(base)
    told = " ".join(done.output.split())
    for said in ("no step moved the weights", "where none is right, a cold start"):
        assert (said in told) is not moved
    assert "of the rollouts ended for want of tokens or turns" in told  # an untrained model ends no turn


@pytest.mark.parametrize("given", ["rl.truncated=mask", "rl.void_turns=mask", "rl.dual_clip=3"])
def test_a_mechanism_that_never_acted_is_reported(given: str, tmp_path: Path) -> None:
    """An untrained model ends no turn: what masks for that acts, and the dual clip has no token to bound."""
    base, out = make_base(tmp_path / "base"), tmp_path / "out"
    words = ["train", "quickstart/baseline", *SMALL, given, "--from", str(base), "--out", str(out)]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    told = " ".join(done.output.split())
    line = "rl.dual_clip=3.0 never acted in 2 steps: no token of negative advantage had a ratio above it"
    assert (line in told) is (given == "rl.dual_clip=3")
    assert told.count("never acted") == (given == "rl.dual_clip=3")


class LosingSection(TaskSection):
    """A grader that is down for the last rollout of each group."""

    def build(self, count_tokens: object = None) -> Graded:
        return Graded(rewards=((1.0, -1.0, 1.0, None),))


def test_rollouts_that_were_lost_are_counted_over_the_whole_run(tmp_path: Path) -> None:
    base, out = make_base(tmp_path / "base"), tmp_path / "out"
    given = ("rl.group=4", f"task.kind={__name__}:LosingSection")
    words = ["train", "quickstart/baseline", *SMALL, *given, "--from", str(base), "--out", str(out)]
    for _ in range(2):  # one that is finished says what there was to say
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert "2 of 8 rollouts were dropped because of faults" in " ".join(done.output.split())
        assert "no step moved the weights" not in done.output


def test_a_supervised_training_tells_what_it_held_out_and_what_its_model_solves(tmp_path: Path) -> None:
    base, out = make_base(tmp_path / "base"), tmp_path / "out"
    file = make_demonstrations(base, tmp_path / "d.jsonl")
    given = (f"model.path={base}", "sft.steps=4", "sft.batch=4", "sft.validation_share=0.3", "sft.validate_every=3",
             "sft.samples=2", "rollout.max_tokens=200", "rollout.lookahead_tokens=0", "sandbox.workers=1",
             "compute.device=cpu")  # fmt: skip
    words = ["sft", "quickstart/cold_start", *given, "--demonstrations", str(file), "--out", str(out)]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    told = [line for line in done.output.splitlines() if "validation loss" in line]
    assert told == [
        f"step {line['step']}: loss {line['loss']:.3f}, validation loss {line['validation_loss']:.3f} nats a token"
        for line in lines
        if line["step"] in (3, 4)
    ]
    assert "samples: 0 of 2 right; read them: retcon show " in done.output, "an untrained model solves nothing"
