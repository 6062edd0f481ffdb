"""Every recipe of recipes/mini runs, and what it is named after is seen in its metrics or in what is learnt from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.config.shipped import find_recipe, shipped_recipes
from retcon.core.sample import to_sample
from retcon.core.types import Sample, Trajectory
from retcon.store import jsonl
from retcon.train.objective.shaping import has_void_turn, in_failed_turns, shaped_rewards
from retcon.train.rl import run_rl
from retcon.train.sft import run_sft
from retcon.train.update import to_samples
from training import Graded, make_base, make_demonstrations, small_recipe

pytestmark = pytest.mark.torch
MINI = [name for name in shipped_recipes() if name.startswith("mini/")]
SMALL = ("rl.steps=2", "rl.prompts=2", "rollout.max_turns=4", "sandbox.workers=1", "compute.device=cpu")
ONE = "rl.minibatches=1"
RIGHT_THEN_WRONG = (1.0, -1.0, -1.0, 1.0, 1.0, -1.0, 1.0, -1.0) * 2
FLAT = (-1.0,) * 16


@dataclass(frozen=True)
class Made:
    """lines: metrics of each step. groups: the first step's rollouts of each prompt, those that selection left out
    among them."""

    recipe: Recipe
    lines: list[Mapping[str, Any]]
    groups: list[list[Trajectory]]

    @property
    def rollouts(self) -> list[Trajectory]:
        return [t for group in self.groups for t in group]

    @property
    def samples(self) -> list[Sample]:
        return to_samples(self.rollouts, [1.0] * len(self.rollouts), self.recipe.rl)

    @property
    def first_loss(self) -> float:
        return float(self.lines[0]["loss"])


Run = Callable[..., Made]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that calls, in vain or not, and answers."""
    folder = tmp_path_factory.mktemp("mini")
    base = make_base(folder / "base", positions=1024)
    return run_sft(small_recipe(base), make_demonstrations(base, folder / "demonstrations.jsonl"), folder / "cold")


@pytest.fixture(scope="module")
def run(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    def run(name: str, *overrides: str, rewards: Sequence[Sequence[float]] = (RIGHT_THEN_WRONG,)) -> Made:
        recipe = load_recipe(find_recipe(name), [*SMALL, *overrides])
        out = tmp_path_factory.mktemp("run") / "out"
        lines: list[Mapping[str, Any]] = []
        run_rl(recipe, start, out, tasks=Graded(rewards=tuple(map(tuple, rewards))), on_step=lines.append)
        made = list(jsonl.read(out / "trajectories/step-000001.jsonl"))
        tasks = dict.fromkeys(t.task for t in made)
        return Made(recipe, lines, [[t for t in made if t.task == task] for task in tasks])

    return run


def lengths(made: Made) -> list[list[int]]:
    """Tokens in the loss mask of each rollout of each group."""
    return [[sum(to_sample(t).mask) for t in group] for group in made.groups]


def mean_over_tokens(advantages: Sequence[Sequence[float]], made: Made) -> float:
    """The loss of a first minibatch, whose ratios are 1, where all tokens weigh the same."""
    tokens = lengths(made)
    weighed = sum(
        a * n for row, counts in zip(advantages, tokens, strict=True) for a, n in zip(row, counts, strict=True)
    )
    return -weighed / sum(map(sum, tokens))


def signs(made: Made) -> list[list[float]]:
    return [[float(t.reward or 0) for t in group] for group in made.groups]


def test_grpo(run: Run) -> None:
    made = run("mini/grpo", ONE)
    assert made.first_loss == pytest.approx(0, abs=1e-6), "rollouts weigh the same, and half of them are right"
    assert abs(mean_over_tokens(signs(made), made)) > 1e-3, "by tokens it would not be 0"


def test_dr_grpo(run: Run) -> None:
    made = run("mini/dr_grpo", ONE)
    total = sum(map(sum, lengths(made)))
    wanted = mean_over_tokens(signs(made), made) * total / (320 * 16)
    assert made.first_loss == pytest.approx(wanted, rel=1e-4)


def scaled(made: Made) -> list[list[float]]:
    """Rewards of 1 and -1, half and half, over their deviation: √(8 / 7) in a group of 8."""
    return [[r / (8 / 7) ** 0.5 for r in row] for row in signs(made)]


def test_dapo_baseline(run: Run) -> None:
    made = run("mini/dapo-baseline", ONE)
    assert made.first_loss == pytest.approx(mean_over_tokens(scaled(made), made), rel=1e-4)


def test_rloo(run: Run) -> None:
    made = run("mini/rloo", ONE)
    assert made.first_loss == pytest.approx(
        mean_over_tokens([[r * 8 / 7 for r in row] for row in signs(made)], made), rel=1e-4
    )


def test_reinforce_pp(run: Run) -> None:
    made = run("mini/reinforce_pp", ONE, rewards=(RIGHT_THEN_WRONG, FLAT))
    over_all = [[r / (8 / 15) ** 0.5 for r in signs(made)[0]], [0.0] * 8]  # of 16 rollouts, half of which are flat
    assert made.first_loss == pytest.approx(mean_over_tokens(over_all, made), rel=1e-4)


def test_cispo(run: Run) -> None:
    made = run("mini/cispo", ONE)
    total, value = 0, 0.0
    for row, group in zip(scaled(made), made.groups, strict=True):
        for advantage, trajectory in zip(row, group, strict=True):
            logprobs = [p for p in to_sample(trajectory).logprobs if p is not None]
            total, value = total + len(logprobs), value - advantage * sum(logprobs)
    assert made.first_loss == pytest.approx(value / total, rel=1e-3)


def test_gspo(run: Run) -> None:
    made, other = run("mini/gspo", "rl.lr=1e-3"), run("mini/dapo-baseline", "rl.lr=1e-3")
    assert made.lines[0]["clip_fraction"] > 2 * other.lines[0]["clip_fraction"], "whole rollouts, at a narrower bound"


def test_dapo(run: Run) -> None:
    made = run("mini/dapo", rewards=(FLAT, RIGHT_THEN_WRONG, RIGHT_THEN_WRONG))
    assert made.lines[0]["extra_groups"] == 1
    assert made.lines[0]["groups_flat"] == 1
    long = [shaped_rewards(group, made.recipe.rl, limit=60) for group in made.groups]
    assert min(map(min, long)) < -1, "near its limit a rollout pays"


def test_cleaner(run: Run) -> None:
    made = run("mini/cleaner")
    assert all(t.provenance.purified for t in made.rollouts)
    assert made.lines[0]["shallow"] + made.lines[0]["deep"] > 0
    assert made.lines[0]["spliced_share"] > 0
    assert made.lines[0]["failures"] < made.lines[0]["raw_failures"]


def test_rstar2(run: Run) -> None:
    line = run("mini/rstar2").lines[0]
    assert (line["rollouts"], line["kept"]) == (32, 16)


def test_simpletir(run: Run) -> None:
    made = run("mini/simpletir", "rollout.max_tokens=40")
    void = [has_void_turn(t) for t in made.rollouts]
    assert 0 < sum(void) < len(void)
    assert [not any(s.mask) for s in made.samples] == void


def test_masked_failures(run: Run) -> None:
    made = run("mini/masked-failures")
    failed = [in_failed_turns(t) for t in made.rollouts]
    assert any(map(any, failed))
    for before, after, bad in zip(map(to_sample, made.rollouts), made.samples, failed, strict=True):
        assert [int(m and not f) for m, f in zip(before.mask, bad, strict=True)] == list(after.mask)


def test_dual_clip(run: Run) -> None:
    far = ("rl.lr=2e-2", "rl.steps=1")
    made, without = run("mini/dual-clip", *far), run("mini/dual-clip", *far, "rl.dual_clip=0")
    assert made.lines[0]["clip_fraction"] > without.lines[0]["clip_fraction"]
    assert made.first_loss < without.first_loss


def test_kl(run: Run) -> None:
    made = run("mini/kl")
    assert 0 < made.lines[0]["kl_reference"] < made.lines[1]["kl_reference"]


def test_importance(run: Run) -> None:
    line = run("mini/importance", ONE).lines[0]
    assert line["mismatch_mean"] > 0, "float16 is not float32"
    assert line["kl"] == pytest.approx(0, abs=1e-9), "the trainer's own log-probs are those of π_old"


def test_there_is_a_test_of_every_one() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {name.removeprefix("mini/").replace("-", "_") for name in MINI} <= tested


def test_branch(run: Run) -> None:
    made = run("mini/branch")
    line = made.lines[0]
    assert line["resampled"] > 0, "fresh tries took the place of failures"
    assert line["failures"] < line["raw_failures"]
    assert len(made.samples) > len(made.rollouts), "and are learnt from, beside what they took the place of"
