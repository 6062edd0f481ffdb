"""`--dry-run`: a plan by a real measurement, nothing written, and the same refusals as the run itself."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from typer.testing import CliRunner

from retcon.cli.app import app
from retcon.config.load import load_recipe
from retcon.core.errors import CheckpointError, MissingExtra, RecipeError
from retcon.models.placing import place_training
from retcon.planning import needs as module
from retcon.planning.needs import needs_of, refuse_unfit
from retcon.runs.tracker import Tracker
from retcon.train.rl import run_rl
from training import make_base

pytestmark = pytest.mark.torch
PROBLEMS = Path(__file__).parents[2] / "examples/own_data/problems.jsonl"
SMALL = (
    "rl.prompts=1", "rl.group=4", "rl.steps=7", "sandbox.workers=1", "task.kind=file", f'task.path="{PROBLEMS}"',
    "rollout.max_turns=1", "compute.device=cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base") / "base", positions=256)


def dry(*words: object) -> str:
    done = CliRunner().invoke(app, [*map(str, words), "--dry-run"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_training_is_planned_and_nothing_is_written(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = dry("train", "quickstart/baseline", *SMALL, "--from", base, "--out", tmp_path / "out")
    for part in (
        "derived: rollout.max_tokens = ", "derived: sandbox.output_chars = ", "weights", "gradients", "optimiser",
        "KV blocks", "activations", "peak, at most", "tokens/s", "7 steps: ", "measured peak",
    ):  # fmt: skip
        assert part in said, part
    assert not list(tmp_path.iterdir())


def test_an_evaluation_of_a_file_is_planned(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = dry("eval", base, "--data", PROBLEMS, "evaluate.samples=1", "rollout.max_turns=1", "rollout.max_tokens=200")
    assert "problems: 50 of problems × 1 rollouts in each of 2 settings" in said
    assert "100 rollouts in all: " in said
    assert not list(tmp_path.iterdir())


def test_what_does_not_fit_is_refused_by_both_before_anything_is_written(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe(None, SMALL)
    monkeypatch.setattr(module, "available_memory", lambda: 100 * 2**20)
    with pytest.raises(RecipeError, match=r"of memory and 100 MiB are free on cpu: most of it is process"):
        run_rl(recipe, base, tmp_path / "out")
    with pytest.raises(RecipeError, match="of memory and 100 MiB are free"):
        dry("train", "quickstart/baseline", *SMALL, "--from", base, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_refused_but_not_to_a_run_that_goes_on(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe(None, SMALL)
    needs = needs_of("rl", recipe, base, place_training(recipe, base))
    usage = module.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage)
    out = tmp_path / "out"
    with pytest.raises(RecipeError, match=r"out would take up to \d+ MiB of disk and 0 MiB are free there"):
        refuse_unfit(needs, out)
    out.mkdir()
    (out / "run.json").write_text("{}")
    refuse_unfit(needs, out)


def test_another_run_in_the_folder_and_an_absent_tracker_are_refused_too(base: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/notes.txt").write_text("mine")
    words = ("train", "quickstart/baseline", *SMALL, "--from", base, "--out")
    with pytest.raises(CheckpointError, match=r"out is not empty and has no run\.json"):
        dry(*words, tmp_path / "out")
    with pytest.raises(MissingExtra, match="needs no_such_package"):
        dry(*words, tmp_path / "new", f"track.to={__name__}:Absent")


def test_memory_grows_with_what_it_is_for(base: Path) -> None:
    def parts(*overrides: str) -> dict[str, int]:
        recipe = load_recipe(None, [*SMALL, *overrides])
        return {p.name: p.bytes for p in needs_of("rl", recipe, base, place_training(recipe, base)).memory}

    plain = parts()
    assert plain["optimiser"] == 2 * plain["gradients"] == 2 * plain["weights"]
    assert parts("rl.prompts=2")["KV blocks"] == 2 * plain["KV blocks"]
    assert parts("compute.micro_batch_tokens=4096")["activations"] == 2 * plain["activations"]
    assert parts("compute.checkpointing=true")["activations"] <= plain["activations"]
    assert "weights of rollouts" in parts("compute.rollout_dtype=bfloat16")
    lora = parts("lora.rank=2")
    assert lora["gradients"] < plain["gradients"] / 4
    assert lora["weights of rollouts"] == plain["weights"]


class Absent(Tracker):
    needs = ("no_such_package",)
