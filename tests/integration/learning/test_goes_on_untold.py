"""A run that began with a `model.thinking` which nobody is told goes on; a new one is refused it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError
from retcon.train.dpo import run_dpo
from retcon.train.rl import run_rl
from retcon.train.sft import run_sft
from training import Ones, make_base, make_demonstrations, small_recipe

pytestmark = pytest.mark.torch
Train = Callable[[Recipe, Path], Path]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("untold") / "base")


def recipe_of(base: Path, thinking: str) -> Recipe:
    steps = {"steps": 1, "checkpoint_every": 1}
    return small_recipe(
        base,
        model={"path": str(base), "thinking": thinking},
        sft={**steps, "batch": 2},
        dpo={**steps, "batch": 2},
        rl={**steps, "prompts": 1, "group": 2},
    )


def trainings(base: Path, folder: Path) -> dict[str, Train]:
    demonstrations, pairs = make_demonstrations(base, folder / "demonstrations.jsonl"), folder / "pairs.jsonl"
    said = [{"role": "assistant", "content": text} for text in ("1", "2")]
    pair = {"prompt": [{"role": "user", "content": "go"}], "chosen": said[:1], "rejected": said[1:]}
    pairs.write_text(f"{json.dumps(pair)}\n" * 2)
    return {
        "rl": lambda recipe, out: run_rl(recipe, base, out, tasks=Ones()),
        "sft": lambda recipe, out: run_sft(recipe, demonstrations, out),
        "dpo": lambda recipe, out: run_dpo(recipe, pairs, base, out),
    }


@pytest.mark.parametrize("kind", ["rl", "sft", "dpo"])
def test_a_run_that_began_with_it_goes_on_and_says_so(
    kind: str, base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train, out = trainings(base, tmp_path)[kind], tmp_path / "run"
    before = train(recipe_of(base, "default"), out)
    about = json.loads((out / "run.json").read_text())
    about["recipe"]["model"]["thinking"] = "off"  # as an earlier version let it
    (out / "run.json").write_text(json.dumps(about))
    shutil.rmtree(before)  # what is left is a run that was killed at its end
    assert train(recipe_of(base, "off"), out).is_dir()
    (line,) = [one.getMessage() for one in caplog.records if "thinking" in one.getMessage()]
    assert "run goes on with model.thinking = 'off', which changes nothing, as " in line
    assert json.loads((out / "run.json").read_text())["recipe"] == about["recipe"]
    with pytest.raises(RecipeError, match=r"model\.thinking = 'off' would change nothing"):
        train(recipe_of(base, "off"), tmp_path / "new")
    with pytest.raises(RecipeError, match=r"model\.thinking = 'on' would change nothing"):
        train(recipe_of(base, "on"), out)
