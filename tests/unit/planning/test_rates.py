"""A learning rate that is far above what models of a size are trained with is told, with the key and what to set."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from retcon.config.load import load_recipe, shipped_recipes
from retcon.config.schema import stages_of
from retcon.core.errors import RateWarning
from retcon.planning.needs import count_stored_parameters, warn_of_rate
from retcon.runs.folder import RunKind

OWN = Path(__file__).parents[3] / "examples/own_data"
PACKAGED, SMALL, REAL = 680_000, 134_515_008, 596_049_920
KINDS: tuple[RunKind, ...] = ("sft", "dpo", "rl")


def told(kind: RunKind, parameters: int, *words: str, recipe: str | Path | None = None) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RateWarning)
        for stage in stages_of(load_recipe(recipe, words)):
            warn_of_rate(kind, stage.recipe, parameters)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("kind", KINDS)
def test_the_defaults_are_for_the_packaged_model(kind: RunKind) -> None:
    assert told(kind, PACKAGED) == []
    (said,) = told(kind, REAL)
    lr = getattr(load_recipe(None), kind).lr
    assert said.startswith(f"{kind}.lr = {lr:g} "), said
    assert "596 M parameters" in said
    assert f"set {kind}.lr=" in said
    assert "\n" not in said


def test_a_large_model_is_counted_in_all_of_its_files(tmp_path: Path) -> None:
    """As it is published: in parts, of which none has that name alone; adapters beside it are no part of it."""
    shapes = {"model-00001-of-00002": [[3, 4], [5]], "model-00002-of-00002": [[2, 7]], "adapter_model": [[9, 9]]}
    for name, parts in shapes.items():
        about = {f"{name}.{n}": {"dtype": "F32", "shape": shape} for n, shape in enumerate(parts)}
        header = json.dumps({"__metadata__": {"format": "pt"}, **about}).encode()
        (tmp_path / f"{name}.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(99))
    assert count_stored_parameters(tmp_path) == 12 + 5 + 14


@pytest.mark.parametrize(("kind", "most"), [("sft", 5e-4), ("rl", 2e-5), ("dpo", 2e-5)])
def test_adapters_bear_ten_times_the_rate(kind: RunKind, most: float) -> None:
    assert told(kind, REAL, f"{kind}.lr={most}") == []
    assert told(kind, REAL, f"{kind}.lr={most * 1.1}") != []
    assert told(kind, REAL, f"{kind}.lr={most * 9}", "lora.rank=8") == []
    (said,) = told(kind, REAL, f"{kind}.lr={most * 11}", "lora.rank=8")
    assert "adapters" in said


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_says_to_set_is_right(kind: RunKind) -> None:
    for adapters in ([], ["lora.rank=16"]):
        (said,) = told(kind, REAL, f"{kind}.lr=0.01", *adapters)
        advised = said.partition("; set ")[2].split()[0].rstrip(",;")
        assert told(kind, REAL, *adapters, advised) == [], advised


def test_recipes_for_real_models_are_not_warned_of() -> None:
    for name in shipped_recipes():
        if name.startswith(("mini/", "quickstart/")):
            continue
        for kind in ("sft",) if "cold_start" in name or "sft" in name else ("rl",):
            assert told(kind, SMALL, recipe=name) == [], name


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_the_example_recipe_of_sft_is_for_real_models(kind: RunKind) -> None:
    assert told(kind, REAL, recipe=OWN / "sft.toml") == []
