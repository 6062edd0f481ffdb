"""Rollouts in TRL's own GRPOTrainer: it trains, and its loss is ours on the same rollouts: `make integration`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL, which `make integration` installs")

import datasets
import torch
import trl

from retcon.config.load import load_recipe
from retcon.core.errors import RecipeError
from retcon.core.types import REPLACED, Trajectory
from retcon.plugins.trl import Rollouts
from retcon.train.objective.shaping import rewards_of
from retcon.train.sft import run_sft
from retcon.train.update import minibatch_update, to_samples
from training import make_base, make_demonstrations, small_recipe

pytestmark = pytest.mark.filterwarnings("default")  # TRL's own
SMALL = ("rollout.max_turns=4", "sandbox.workers=2")


class Kept(Rollouts):
    """Keeps the rollouts that it gave, call by call."""

    def __init__(self, *about: Any, **more: Any) -> None:
        super().__init__(*about, **more)
        self.made: list[list[Trajectory]] = []

    async def _rolled(self, *about: Any) -> list[Trajectory]:
        self.made.append(await super()._rolled(*about))
        return self.made[-1]


class CutOff(Kept):
    """Its groups: seven right rollouts and a wrong one that was cut off."""

    async def _group(self, *about: Any) -> list[Trajectory]:
        made = [replace(t, reward=1.0, stop="answer") for t in await super()._group(*about)]
        return [*made[:-1], replace(made[-1], reward=-1.0, stop="length")]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that calls, in vain or not, and answers."""
    folder = tmp_path_factory.mktemp("trl")
    base = make_base(folder / "base", positions=1024)
    return run_sft(small_recipe(base), make_demonstrations(base, folder / "demonstrations.jsonl"), folder / "cold")


def in_turns(completions: Sequence[object], **_: object) -> list[float]:
    """Right and wrong in turns: the tiny model is never right."""
    return [1.0 if number % 2 else -1.0 for number in range(len(completions))]


def trained(rollouts: Rollouts, start: Path, out: Path, reward: Any = None, data: Any = None, **about: Any) -> Any:
    settings = {
        "max_steps": 2, "per_device_train_batch_size": 16, "num_generations": 8, "learning_rate": 1e-3,
        "use_cpu": True, "bf16": False, "report_to": [], "logging_steps": 1, "save_strategy": "no",
        "disable_tqdm": True, "lr_scheduler_type": "constant", **about,
    }  # fmt: skip
    trainer = trl.GRPOTrainer(
        model=str(start),
        args=trl.GRPOConfig(output_dir=str(out), **settings),
        train_dataset=data or rollouts.dataset(16),
        eval_dataset=data or rollouts.evaluation_dataset(2),
        reward_funcs=reward or rollouts.reward,
        rollout_func=rollouts,
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize("recipe", ["quickstart/saar", "mini/ours/branch", "mini/rstar2"])
def test_a_run_trains_on_whole_groups_of_graded_rollouts(recipe: str, start: Path, tmp_path: Path) -> None:
    with Kept(recipe, [*SMALL, "rl.contrast=0"], model=start) as rollouts:
        trainer = trained(rollouts, start, tmp_path)
    said = [line for line in trainer.state.log_history if "reward" in line]
    assert [len(made) for made in rollouts.made] == [16, 16]
    for made, line in zip(rollouts.made, said, strict=True):
        assert float(line["reward"]) == pytest.approx(sum(rewards_of(made)) / 16, abs=1e-4)
        assert [t.task for t in made] == [made[0].task] * 8 + [made[8].task] * 8


def test_failures_are_repaired_in_training_and_not_while_it_evaluates(start: Path, tmp_path: Path) -> None:
    """On prompts of one's own, with a reward of one's own: those that the tiny model has learnt to call at."""
    data = datasets.Dataset.from_list([{"prompt": "go"}] * 16)
    with Kept("mini/cleaner", SMALL, model=start) as rollouts:
        trainer = trained(rollouts, start, tmp_path, in_turns, data)
        decisions = {turn.repair.decision for made in rollouts.made for t in made for turn in t.turns if turn.repair}
        trainer.evaluate()
    assert decisions & REPLACED, decisions
    assert len(rollouts.made) > 2
    assert all(turn.repair is None for made in rollouts.made[2:] for t in made for turn in t.turns)


@pytest.mark.parametrize(("in_baseline", "learns"), [("false", False), ("true", True)])
def test_a_masked_rollout_leaves_trls_baseline(in_baseline: str, learns: bool, start: Path, tmp_path: Path) -> None:
    keys = [*SMALL, "rl.truncated=mask", f"rl.masked_in_baseline={in_baseline}"]
    with CutOff("quickstart/baseline", keys, model=start) as rollouts:
        trainer = trained(rollouts, start, tmp_path, max_steps=1)
    (inputs,) = trainer._buffered_inputs
    assert inputs["advantages"].isfinite().all()
    assert bool(inputs["advantages"].any()) is learns


def test_the_same_samples_give_the_same_loss(start: Path, tmp_path: Path) -> None:
    """After a step of the optimiser, so that ratios are not 1 and some are clipped."""
    with Kept("mini/cleaner", SMALL, model=start) as rollouts:
        about = {"num_iterations": 2, "scale_rewards": "none", "loss_type": "dapo", "epsilon_high": 0.28}
        trainer = trained(rollouts, start, tmp_path, in_turns, max_steps=1, learning_rate=1e-2, **about)
    (inputs,), (made,) = trainer._buffered_inputs, rollouts.made
    model = trainer.model.train()
    theirs = trainer._compute_loss(model, inputs).item()
    section = load_recipe(None, ["rl.algorithm=dapo"]).rl
    samples = [s for group in (made[:8], made[8:]) for s in to_samples(group, in_turns(group), section)]  # mean 0
    ours = minibatch_update(model, torch.optim.SGD(model.parameters(), lr=0.0), samples, section, lr=0.0)
    assert ours["clip_fraction"] > 0.05
    assert ours["loss"] == pytest.approx(theirs, abs=1e-5)


def test_a_model_folder_called_scratch_is_that_folder(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scratch").symlink_to(start)
    with Rollouts("quickstart/saar", SMALL, model="./scratch") as rollouts:
        assert rollouts._folder.samefile(start)


def test_what_it_cannot_do_is_refused(start: Path) -> None:
    with Rollouts("mini/rstar2", SMALL, model=start) as rollouts, pytest.raises(RecipeError, match="needs rewards"):
        rollouts._task("Who wrote it?", None)
    with pytest.raises(RecipeError, match="cannot be trained with"):
        Rollouts("quickstart/saar", ["engine.kind=openai", 'engine.url="http://127.0.0.1:1/v1"'], model=start)
