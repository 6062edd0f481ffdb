#!/usr/bin/env python
"""TRL's GRPOTrainer with and without SAAR, its losses checked against ours.

    make .venv-trl/.ready                                            # TRL, in an environment of its own
    .venv/bin/retcon sft quickstart/cold_start --out runs/start
    .venv-trl/bin/python benchmarks/studies/trl_losses.py runs/start/final [--steps 20] [--json FILE]

The quickstart's recipes `baseline` and `saar` through `retcon.plugins.trl`, from the same model, prompts and seed:
steps of 2 prompts × 8 rollouts, in each of which TRL goes over its batch twice, so that ratios are not 1 the second
time. At every pass the same samples go through our loss, in a copy of the model with the weights that TRL has then;
only what is added to the rewards' standard deviation is made TRL's, 1e-4. Fails where a loss differs by more than 1e-5.
Rewards, failed calls (as they happened) and repairs (tried ones) are means over a step's rollouts; loss and clipped
share are of the second pass.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # where `parts` is

import torch
import trl
from parts.results import add_json, save

from retcon.config.load import load_recipe
from retcon.core.types import Sample, Trajectory
from retcon.models.loading import load_model
from retcon.plugins.trl import Rollouts
from retcon.train.objective.advantage import grpo
from retcon.train.objective.shaping import rewards_of
from retcon.train.update import minibatch_update, to_samples

PROMPTS, GROUP, PASSES = 2, 8, 2
ARMS = {"without SAAR": "quickstart/baseline", "with SAAR": "quickstart/saar"}
NEAR = 1e-5
TRLS_EPSILON = 1e-4
CLIP_HIGH = 0.28
ENDS = 5
SECTION = load_recipe(None, ["rl.algorithm=dapo", f"rl.clip_high={CLIP_HIGH}"]).rl


class Kept(Rollouts):
    """The rollouts that TRL got last."""

    made: Sequence[Trajectory] = ()

    async def _rolled(self, *about: Any) -> list[Trajectory]:
        made = await super()._rolled(*about)
        self.made = made
        return made


class Compared(trl.GRPOTrainer):
    """TRL's trainer; `lines` has what came of each step, which is printed as it ends."""

    def __init__(self, *about: Any, rollouts: Kept, start: Path, **more: Any) -> None:
        super().__init__(*about, rollout_func=rollouts, **more)
        self.rollouts, self.twin = rollouts, load_model(start)
        self.passes: list[tuple[float, float, float]] = []
        self.lines: list[dict[str, float]] = []

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        loss = super()._compute_loss(model, inputs)
        made = self.rollouts.made
        self.twin.load_state_dict(model.state_dict())
        still = torch.optim.SGD(self.twin.parameters(), lr=0.0)
        ours = minibatch_update(self.twin, still, samples_of(made), SECTION, lr=0.0)
        self.passes.append((loss.item(), ours["loss"], ours["clip_fraction"]))
        if len(self.passes) % PASSES == 0:
            self.lines.append(line_of(made, self.passes[-PASSES:]))
            print(len(self.lines), *(f"{value:.2g}" for value in self.lines[-1].values()), sep="\t", flush=True)
        return loss


def samples_of(made: Sequence[Trajectory]) -> list[Sample]:
    groups = [made[start : start + GROUP] for start in range(0, len(made), GROUP)]
    return [
        sample
        for group in groups
        for sample in to_samples(group, grpo(rewards_of(group), epsilon=TRLS_EPSILON), SECTION)
    ]


def line_of(made: Sequence[Trajectory], passes: Sequence[tuple[float, float, float]]) -> dict[str, float]:
    """passes: TRL's loss, ours, and our share of clipped tokens."""
    return {
        "reward": statistics.fmean(rewards_of(made)),
        "failed calls": statistics.fmean(t.raw_failures for t in made),
        "repairs": statistics.fmean(sum(turn.repair is not None for turn in t.turns) for t in made),
        "loss": passes[-1][0],
        "clipped": passes[-1][2],
        "apart": max(abs(theirs - ours) for theirs, ours, _ in passes),
    }


def run(recipe: str, start: Path, steps: int) -> list[dict[str, float]]:
    """A line a step."""
    with tempfile.TemporaryDirectory() as out, Kept(recipe, model=start) as rollouts:
        settings = trl.GRPOConfig(
            output_dir=out, max_steps=steps * PASSES, per_device_train_batch_size=PROMPTS * GROUP,
            num_generations=GROUP, num_iterations=PASSES, learning_rate=2e-4, lr_scheduler_type="constant",
            loss_type="dapo", epsilon_high=CLIP_HIGH, beta=0.0, use_cpu=True, bf16=False, report_to=[],
            save_strategy="no", disable_tqdm=True, logging_strategy="no",
        )  # fmt: skip
        trainer = Compared(
            model=str(start), args=settings, train_dataset=rollouts.dataset(PROMPTS * steps),
            reward_funcs=rollouts.reward, rollouts=rollouts, start=start,
        )  # fmt: skip
        trainer.train()
    return trainer.lines


def means_of(lines: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: statistics.fmean(line[key] for line in lines) for key in lines[0]}


def figures_of(found: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, Any]:
    """For `make figures`: means over an arm's first and last steps, and over both arms how far losses are apart."""
    lines = [line for arm in found.values() for line in arm]
    figures: dict[str, Any] = {
        "passes": len(lines) * PASSES,
        "apart": f"{max(line['apart'] for line in lines):.1e}",
        "median apart": f"{statistics.median(line['apart'] for line in lines):.1e}",
        "largest loss": max(abs(line["loss"]) for line in lines),
        "most clipped": max(line["clipped"] for line in lines),
    }
    for name, arm in found.items():
        ends = {"first": means_of(arm[:ENDS]), "last": means_of(arm[-ENDS:])}
        figures[name] = {**ends, "steps": list(arm)}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("start", type=Path, help="the folder of a model that calls, such as a cold start's `final`")
    parser.add_argument("--steps", type=int, default=20)
    add_json(parser)
    options = parser.parse_args()
    found = {}
    for name, recipe in ARMS.items():
        print(f"{name}: step, reward, failed calls, repairs, loss, clipped, apart")
        found[name] = run(recipe, options.start, options.steps)
    figures = figures_of(found)
    if options.json:
        command = f"benchmarks/studies/trl_losses.py COLD --steps {options.steps}"
        measures = ["src/retcon/plugins/trl.py", "src/retcon/train/objective", "src/retcon/train/update.py"]
        save(options.json, figures, command=command, measures=measures)
    worst = max(line["apart"] for lines in found.values() for line in lines)
    print(f"\nlosses are {worst:.1e} apart at most, in {figures['passes']} passes")
    if worst > NEAR:
        raise SystemExit(f"that is more than {NEAR}")


if __name__ == "__main__":
    main()
