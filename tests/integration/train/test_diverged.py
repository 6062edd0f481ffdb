"""A run whose loss is no longer a number: it stops, says where, and what is kept."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

import torch

from retcon.core.errors import TrainingDiverged
from retcon.core.types import Sample
from retcon.models.loading import load_model
from retcon.runs.metrics import read_metrics
from retcon.store import jsonl
from retcon.train.batch import collate
from retcon.train.kernels.forward import Part
from retcon.train.sft import run_sft
from retcon.train.trainer import read_progress
from retcon.train.watch import refuse_diverged
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


def test_of_a_batch_those_that_made_it_diverge_are_named() -> None:
    """By their log-probs, or by the advantage that they were given; all of it, where neither tells."""
    whole = Sample((1, 2), (0, 1), (None, -1.0), (0, 0), (1.0, 1.0), source="whole")
    void, worth = replace(whole, source="void"), replace(whole, source="worth", advantages=(math.nan, math.nan))

    def named(*samples: Sample) -> str:
        logprobs = torch.tensor([[0.0, math.nan if sample is void else -1.0] for sample in samples])
        part = Part(samples, collate(samples), logprobs, 2, 2)
        with pytest.raises(TrainingDiverged) as told:
            refuse_diverged(math.inf, part, "step 4")
        return str(told.value)

    assert named(whole, void, whole) == "step 4: the loss is inf, by void"
    assert named(worth, whole, void) == "step 4: the loss is inf, by worth, void"
    assert named(whole, whole) == "step 4: the loss is inf, by whole, whole"
    assert named(replace(whole, source=None), whole) == "step 4: the loss is inf, by a sample of 2 tokens, whole"
    assert named(*[void] * 7).endswith("by void, void, void, void, void and 2 more")
