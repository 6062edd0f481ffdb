"""Fresh weights are for supervised training: what is then called π_ref, or a run's start, would be another model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from retcon.config.load import load_recipe
from retcon.core.errors import CheckpointError
from retcon.train.dpo import run_dpo
from retcon.train.rl import run_rl


@pytest.mark.parametrize(
    "train",
    [
        lambda out: run_rl(load_recipe("quickstart/saar"), Path("scratch"), out),
        lambda out: run_dpo(load_recipe("quickstart/saar"), out / "pairs.jsonl", Path("scratch"), out),
    ],
    ids=["rl", "dpo"],
)
def test_learning_from_rewards_or_pairs_begins_from_a_model(train: Callable[[Path], Path], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"scratch is for `retcon sft` alone"):
        train(tmp_path / "run")
    assert not (tmp_path / "run").exists()
