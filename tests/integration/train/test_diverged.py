"""A run whose loss is no longer a number: it stops, says where, and what is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")


from retcon.core.errors import TrainingDiverged
from retcon.models.loading import load_model
from retcon.runs.metrics import read_metrics
from retcon.store import jsonl
from retcon.train.sft import run_sft
from retcon.train.trainer import read_progress
from training import make_base, make_demonstrations, small_recipe

pytestmark = pytest.mark.torch
OVERFLOWING = {"lr": 1e38, "warmup": 0.0, "schedule": "constant", "steps": 4}
"""After the first step no product of weights is finite."""


def test_it_names_the_batch_and_keeps_the_checkpoint_before(tmp_path: Path) -> None:
    base, out = make_base(tmp_path / "base"), tmp_path / "out"
    demonstrations = make_demonstrations(base, tmp_path / "demonstrations.jsonl")
    recipe = small_recipe(base, sft={**OVERFLOWING, "checkpoint_every": 1, "batch": 3})
    with pytest.raises(TrainingDiverged) as told:
        run_sft(recipe, demonstrations, out)
    said = str(told.value)
    kept = out / "checkpoints" / "step-000001"
    assert said.startswith(f"{out} stopped at step 2: the loss is nan, by demo/")
    assert f"The checkpoint of step 1, {kept}, is whole" in said
    named = said.partition(", by ")[2].partition(".")[0].split(", ")
    assert len(named) == 3
    assert set(named) <= {t.id for t in jsonl.read(demonstrations)}
    assert read_progress(kept).step == 1
    load_model(kept)
    assert [line["step"] for line in read_metrics(out / "metrics.jsonl")] == [1]
    assert not (out / "final").exists()
