"""Recorded workloads: how long prompts, turns, observations and tool calls were. No ids and no text.

A file of `benchmarks/workloads` has a line that says where it is from, then a line per rollout (`record.py` writes it):

    {"source": "…", "recorded": "2026-11-21"}
    {"group": 0, "prompt": 41, "turns": [[27, 9, 0.004], [31, 0, 0.0]]}

A turn: ids that were sampled, ids that were shown after it, seconds that its tools took. Rollouts of a group share
their prompt.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[1] / "workloads"


class Turn(NamedTuple):
    sampled: int
    shown: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PlannedRollout:
    """What one rollout does. prompt: (T,) ids, the group's. shown: the ids of the observation after each turn."""

    name: str
    prompt: tuple[int, ...]
    turns: tuple[Turn, ...]
    shown: tuple[tuple[int, ...], ...]

    @property
    def length(self) -> int:
        """Ids at the end."""
        return len(self.prompt) + sum(turn.sampled + turn.shown for turn in self.turns)


def read(file: Path, *, vocabulary: int, limit: int | None = None) -> list[PlannedRollout]:
    """The rollouts of a file, the first `limit` of them; their ids are drawn at random (seeded), as none are known."""
    _, *lines = file.read_text(encoding="utf-8").splitlines()
    draw = random.Random(0)

    def some(count: int) -> tuple[int, ...]:
        return tuple(draw.choices(range(vocabulary), k=count))

    plans: list[PlannedRollout] = []
    prompts: dict[int, tuple[int, ...]] = {}
    for line in lines[:limit]:
        one = json.loads(line)
        if one["group"] not in prompts:
            prompts[one["group"]] = some(one["prompt"])
        turns = tuple(Turn(*turn) for turn in one["turns"])
        shown = tuple(some(turn.shown) for turn in turns)
        plans.append(PlannedRollout(f"{len(plans):04}", prompts[one["group"]], turns, shown))
    return plans


def describe(plans: list[PlannedRollout]) -> str:
    """One line of what there is to do."""
    turns = [turn for plan in plans for turn in plan.turns]
    calls = sorted(sum(turn.shown > 0 for turn in plan.turns) for plan in plans)
    return (
        f"{len(plans)} rollouts in {len({plan.prompt for plan in plans})} groups, {calls[0]} to {calls[-1]} calls; "
        f"ids: {sum(len(plan.prompt) for plan in plans):,} of prompts, {sum(t.sampled for t in turns):,} sampled "
        f"({min(t.sampled for t in turns)} to {max(t.sampled for t in turns)} a turn), {sum(t.shown for t in turns):,} "
        f"shown, {max(plan.length for plan in plans):,} at most; tools: {sum(t.seconds for t in turns):.1f} s, "
        f"{max(t.seconds for t in turns):.2f} s at most"
    )
