"""What `retcon train` says when it is done."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from typer.testing import CliRunner

from retcon.cli.app import app
from training import make_base

pytestmark = pytest.mark.torch
SMALL = (
    "rl.steps=2", "rl.prompts=1", "rl.group=2", "evaluate.every=0", "rollout.max_tokens=200",
    "rollout.lookahead_tokens=0", "sandbox.workers=1",
)  # fmt: skip


@pytest.mark.parametrize(("key", "moved"), [("rl.entropy_coefficient=0", False), ("rl.entropy_coefficient=0.01", True)])
def test_that_no_step_moved_the_weights_is_said(key: str, moved: bool, tmp_path: Path) -> None:
    """An untrained model is never right: all rewards are equal, and only an entropy bonus is left to learn from."""
    base, out = make_base(tmp_path / "base"), tmp_path / "out"
    words = ["train", "quickstart/baseline", *SMALL, key, "--from", str(base), "--out", str(out)]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert f"model: {out / 'final'}" in done.output
    assert ("no step moved the weights" in done.output) is not moved
