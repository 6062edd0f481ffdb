"""How the model inside the package is made: what it is shown, and that a run which was stopped makes the same one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the model is made by the [train] extra")

import torch
from safetensors.torch import load_file

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))  # last: `sessions` is in both

import base_model as make  # benchmarks/base_model.py
from base_model import BaseRecipe, batches, build_tokenizer, document_rows, make_base

pytestmark = pytest.mark.torch
RECIPE = BaseRecipe(steps=4, batch=2, length=48)
TOKENIZER = build_tokenizer()
SEPARATOR = TOKENIZER.pad_token_id


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Checkpoints are frequent; torch's threads and random state are other tests' too."""
    monkeypatch.setattr(make, "SAVE_EVERY", 2)
    monkeypatch.setattr(make, "build_tokenizer", lambda: TOKENIZER)
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(threads)


def same(one: Path, other: Path) -> bool:
    first, second = (load_file(folder / "model.safetensors") for folder in (one, other))
    return first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first)


def stopped(save: Callable[..., None]) -> Callable[..., None]:
    """Saves, and is stopped then."""

    def saved(*given: Any) -> None:
        save(*given)
        raise KeyboardInterrupt

    return saved


def test_one_that_was_stopped_goes_on_to_the_same_model_and_never_to_that_of_another_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_base(RECIPE, tmp_path / "whole", tmp_path / "work")
    with monkeypatch.context() as patch:
        patch.setattr(make, "_save", stopped(make._save))
        for work in ("again", "other"):
            with pytest.raises(KeyboardInterrupt):
                make_base(RECIPE, tmp_path / "none", tmp_path / work)
    assert not (tmp_path / "none").exists()
    assert same(make_base(RECIPE, tmp_path / "on", tmp_path / "again"), whole)
    steps = [json.loads(line)["step"] for line in (tmp_path / "again/metrics.jsonl").read_text().splitlines()]
    assert steps == [2, 4], "what was done was not done again"
    another = replace(RECIPE, seed=1)
    anew = make_base(another, tmp_path / "anew", tmp_path / "unused")
    assert same(make_base(another, tmp_path / "mixed", tmp_path / "other"), anew)
    assert not same(anew, whole)


def test_rows_of_repeated_ids_come_first_and_documents_later_each_once() -> None:
    recipe = BaseRecipe(steps=4, batch=10, length=256)
    made = [batch.tolist() for batch in batches(recipe, TOKENIZER)]
    assert {(len(batch), *map(len, batch)) for batch in made} == {(10, *[256] * 10)}
    documents = [[row for row in batch if SEPARATOR in row] for batch in made]  # which repeated ids do not have
    assert [10 - len(rows) for rows in documents] == [5, 5, 2, 2]
    stream = document_rows(TOKENIZER.backend_tokenizer, 256, SEPARATOR, recipe.seed)
    assert [row for rows in documents for row in rows] == [row.tolist() for row in islice(stream, 26)]
    repeated = [tuple(row) for batch in made for row in batch if SEPARATOR not in row]
    assert len(set(repeated)) == 14
    assert {min(row) >= 3 for row in repeated} == {True}
