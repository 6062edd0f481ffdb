"""`retcon train --dry-run` without weights and data: from a model's published sizes, here or for verl on GPUs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from typer.testing import CliRunner, Result

from retcon.cli.app import app
from retcon.config.load import load_recipe, shipped_recipes
from retcon.config.schema import LoraSection
from retcon.core.errors import ComputeWarning, RecipeError
from retcon.models.loading import load_config
from retcon.models.locating import is_hub_name
from retcon.planning.estimate import SHIPPED, published
from retcon.planning.needs import count_parameters

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[3]
OWN = ROOT / "recipes/own.toml"
BILLIONS = {
    "Qwen/Qwen2.5-3B-Instruct": 3.09, "Qwen/Qwen2.5-7B-Instruct": 7.61, "Qwen/Qwen2.5-32B-Instruct": 32.5,
    "Qwen/Qwen3-4B-Instruct-2507": 4.0, "Qwen/Qwen3-14B-Base": 14.8, "Qwen/Qwen3-30B-A3B-Base": 30.5,
}  # fmt: skip
"""Parameters, as the models' cards have them."""
OF_THE_HUB = {"deepseek-ai/deepseek-math-7b-instruct", "Qwen/Qwen2.5-Math-7B"}
"""Models that recipes name and whose sizes are not shipped."""


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the hub nor what was fetched of it before."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)


def planned(*words: str) -> Result:
    return CliRunner().invoke(app, ["train", *words, "--dry-run"], env={"COLUMNS": "160"})


def days(output: str) -> float:
    found = re.search(r"steps: about ([\d,.]+) days", output)
    assert found, output
    return float(found[1].replace(",", ""))


def peak(output: str) -> float:
    found = re.search(r"peak, about +([\d.]+) GiB", output)
    assert found, output
    return float(found[1])


def test_memory_time_and_disk_are_planned_for_this_machine(tmp_path: Path) -> None:
    """Whether it fits depends on the machine: where it does not, the plan ends with the reason."""
    done = planned("cleaner-4b")
    assert "4,022.5 M parameters" in done.output
    assert re.search(r"[\d.]+ GiB of disk at most", done.output)
    assert peak(done.output) > 60  # weights, gradients and two moments in float32 alone
    assert days(done.output) > 0.5
    assert done.exit_code == 0 or "of memory and" in str(done.exception)
    assert not list(tmp_path.glob("runs"))


@pytest.mark.parametrize(("recipe", "reported"), [("cleaner-4b", 4.0), ("cleaner-7b", 2.0)])
@pytest.mark.filterwarnings("ignore::retcon.core.errors.ComputeWarning")
def test_the_papers_node_takes_about_as_long_as_the_paper_reports(recipe: str, reported: float) -> None:
    """Appendix A: four H100s, 4 days for the 4B model and 2 for the filtered data of the 7B one."""
    done = planned(recipe, "--gpus", "4", "--gpu-gb", "80")
    assert done.exit_code == 0, done.output
    assert days(done.output) == pytest.approx(reported, rel=0.25)


def test_what_only_an_estimate_makes_too_much_is_warned_of_and_what_is_certain_refused() -> None:
    with pytest.warns(ComputeWarning, match="most of it is logits in verl.*use_fused_kernels"):
        assert planned("cleaner-7b", "--gpus", "4", "--gpu-gb", "70").exit_code == 0
    for words, says in (
        (
            ("cleaner-4b", "--gpus", "1", "--gpu-gb", "40"),
            "takes up to .* and 37.25 GiB are free on 40 GB, as fast as H100s: most of it is optimiser",
        ),
        (("retool-32b", "--gpus", "8"), "does not hold the weights of rollouts"),
    ):
        refused = planned(*words)
        assert isinstance(refused.exception, RecipeError)
        assert re.search(says, str(refused.exception))


def test_every_stage_is_planned() -> None:
    done = planned("rstar2-14b/rl", "--gpus", "8", "--gpu-gb", "141")
    assert done.exit_code == 0, done.output
    assert done.output.count("peak, about") == 3
    assert "stage 1, short: steps 1 to 300" in done.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("grpo",), "deepseek-ai/deepseek-math-7b-instruct cannot be planned: its sizes are not shipped, and"),
        (("cleaner-4b", "--from", "nowhere", "--gpus", "4"), "there is no model nowhere"),
        ((str(OWN), "--gpus", "1"), "rollout.max_tokens depends on the prompts and the model, which are not here"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(words: tuple[str, ...], says: str) -> None:
    refused = planned(*words)
    assert refused.exit_code != 0
    assert says in str(refused.exception)
    assert "\n" not in str(refused.exception)


def test_gpus_are_for_plans_alone() -> None:
    refused = CliRunner().invoke(app, ["train", "cleaner-4b", "--gpus", "4"])
    assert "--gpus plans and trains nothing: add --dry-run" in str(refused.exception)


@pytest.mark.parametrize("name", BILLIONS)
def test_shipped_sizes_are_those_of_the_models(name: str) -> None:
    with published(name) as folder:
        parameters, _ = count_parameters(load_config(folder), LoraSection())
    assert parameters / 1e9 == pytest.approx(BILLIONS[name], rel=0.01)


def test_the_sizes_of_every_model_that_a_recipe_names_are_shipped_or_known_to_be_missing() -> None:
    about = json.loads(SHIPPED.read_text())
    paths = {load_recipe(file).model.path for file in shipped_recipes().values()}
    assert {path for path in paths if is_hub_name(path)} - OF_THE_HUB == {*about["of_one_size"], "Qwen/Qwen2.5-7B"}
    assert set(about["of_one_size"].values()) == set(about["models"])
