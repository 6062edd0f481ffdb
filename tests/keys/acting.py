"""What the keys of a recipe do, case by case: one value of a key shows one thing, another value another.

A case sets its key to each of its values and looks at what then happens, where the key is to act, not at the recipe.
tests/integration/train/test_recipe_keys.py runs the cases, and fails where a key has none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from retcon.config.load import load_recipe, toml_of
from retcon.config.schema import Recipe
from retcon.core.types import Completion, Pair
from retcon.store.jsonl import write_pairs
from retcon.train.dpo import run_dpo
from retcon.train.rl import run_rl
from retcon.train.sft import run_sft
from training import Graded, make_base, make_demonstrations

QUICK = (
    "compute.device=cpu", "rollout.max_tokens=16", "rollout.max_turns=2", "rollout.lookahead_tokens=0",
    "sandbox.workers=1", "rl.steps=1", "rl.prompts=1", "rl.group=4", "sft.steps=1",
    "sft.batch=4", "dpo.steps=1", "dpo.batch=4",
)  # fmt: skip
"""Changes to the defaults that make every run a matter of a second; a case may change them again."""

Made = tuple[Path, list[dict[str, Any]]]
"""A run's folder, and its metrics."""


@dataclass
class Lab:
    """Where cases work: `base`, a tiny model folder; `demonstrations` for it; and new runs."""

    folder: Path
    base: Path = field(init=False)
    demonstrations: Path = field(init=False)
    _outs: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.base = make_base(self.folder / "base", positions=8192)
        self.demonstrations = make_demonstrations(self.base, self.folder / "demonstrations.jsonl")

    def supervised(self, recipe: Recipe) -> Made:
        """A supervised run from `base`, unless the recipe names another folder: the run's folder and its metrics."""
        if recipe.model.path == "base":
            recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"path": str(self.base)})})
        out, lines = self.out(), []
        run_sft(recipe, self.demonstrations, out, on_step=lines.append)
        return out, lines

    def reinforced(self, recipe: Recipe, rewards: Sequence[float] = (1.0, -1.0, -1.0, 1.0)) -> Made:
        """A run of reinforcement learning from `base`, its rollouts graded by their index, over and over: as above."""
        tasks = Graded(rewards=(tuple(rewards) * recipe.rl.group,))
        out, lines = self.out(), []
        run_rl(recipe, self.base, out, tasks=tasks, on_step=lines.append)
        return out, lines

    def preferring(self, recipe: Recipe) -> Made:
        """A run of preference training from `base`, on 30 pairs of different lengths: as above."""
        pairs = self.folder / "pairs.jsonl"
        if not pairs.exists():
            made = (Pair(str(n), "what now?", Completion("yes" + " yes" * n), Completion("no")) for n in range(30))
            write_pairs(pairs, made)
        out, lines = self.out(), []
        run_dpo(recipe, pairs, self.base, out, on_step=lines.append)
        return out, lines

    def out(self) -> Path:
        """A folder that does not exist yet."""
        return self.folder / f"out-{next(self._outs)}"


Observe = Callable[[Recipe, Lab], object]


@dataclass(frozen=True)
class Case:
    """seen: (value of the key, what `observe` then sees), whatever else the recipe is. given: changes to it first."""

    key: str
    seen: tuple[tuple[object, object], ...]
    observe: Observe
    given: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.key}-{self.observe.__name__}"

    def recipe(self, value: object, lab: Lab) -> Recipe:
        written = toml_of(value).replace("LAB", str(lab.folder))
        changes = [change.replace("LAB", str(lab.folder)) for change in (*QUICK, *self.given)]
        return load_recipe(None, [*changes, f"{self.key}={written}"])


CASES: list[Case] = []


def acts(key: str, *seen: tuple[object, object], given: Sequence[str] = ()) -> Callable[[Observe], Observe]:
    """The decorated function shows what `key` does: of the recipe with each value, it sees what `seen` says."""

    def register(observe: Observe) -> Observe:
        CASES.append(Case(key, seen, observe, tuple(given)))
        return observe

    return register


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """To its end; a stall is a failure and no hanging test session."""
    return asyncio.run(asyncio.wait_for(work, timeout=120))
