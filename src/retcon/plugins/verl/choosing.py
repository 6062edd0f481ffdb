"""Choice of a step's rollouts by our own trainer's rules.

Those that are kept are converted to verl's output here, too.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from retcon.config.schema import Recipe
from retcon.core.codec import from_dict, to_dict
from retcon.core.seeds import derive
from retcon.core.types import REPLACED, Segment, Trajectory, Turn, to_sample, token_count
from retcon.plugins.verl.shared import VerlRollout
from retcon.select.filters import DynamicSampling, is_informative
from retcon.train.objective.shaping import comparable, shaped_rewards
from retcon.train.objective.tree import trainable
from retcon.train.update import learnt

PACKED = "trajectory"
"""Extra field of an output with its packed trajectory; a child's is empty."""


@dataclass(frozen=True, slots=True)
class Group:
    """Rollouts of a prompt: how many were made, how many faults left, and those kept, by key; none are kept where
    faults and masks leave fewer than two."""

    made: int
    rolled: int
    kept: Mapping[str, Trajectory]

    @property
    def informative(self) -> bool:
        """Whether the rewards of the kept rollouts differ."""
        return is_informative(list(self.kept.values()))


@dataclass(slots=True)
class Step:
    """A step's groups, by prompt uid. prompts: how many it is to have."""

    recipe: Recipe
    number: int
    prompts: int
    groups: dict[str, Group] = field(default_factory=dict)
    rounds: int = 0

    @property
    def made(self) -> int:
        """G': rollouts of a prompt that does not state their number."""
        return int(self.recipe.select.made(self.recipe.rl.group))

    def add(self, uid: str, rolled: Mapping[str, Trajectory], made: int | None = None) -> None:
        """Add a finished group. rolled: in index order, without those that a fault ended. made: number with those, G'
        where None."""
        left = comparable(list(rolled.values()), self.recipe.rl)
        kept: list[Trajectory] = []
        if left:
            seed = derive("select", self.recipe.run.seed, self.number, left[0].task)
            kept = self.recipe.select.select(left, self.recipe.rl.group, seed=seed)
        chosen = {id(one) for one in kept}
        self.groups[uid] = Group(
            made or self.made, len(rolled), {key: one for key, one in rolled.items() if id(one) in chosen}
        )

    def to_draw(self) -> int:
        """Count the fresh prompts to roll out now, bounded by [select]. They replace groups that faults or masks took
        or, with dynamic sampling, that teach nothing; each such call counts a round."""
        section = self.recipe.select
        bound = DynamicSampling.bounded(self.prompts, section.max_extra, section.max_rounds)
        kept = [list(group.kept.values()) for group in self.groups.values()]
        if section.dynamic:
            missing = bound.to_draw(kept, rounds=self.rounds)
        elif self.rounds >= bound.rounds:
            missing = 0
        else:
            missing = max(0, min(self.prompts - sum(map(bool, kept)), self.prompts + bound.extra - len(kept)))
        self.rounds += bool(missing)
        return missing

    def trained(self) -> set[str]:
        """Uids of the groups to update on. If none is informative, all: verl needs a batch, and one of equal rewards
        changes nothing."""
        there = {uid for uid, group in self.groups.items() if group.kept}
        if not self.recipe.select.dynamic:
            return there
        return {uid for uid in there if self.groups[uid].informative} or there

    def metrics(self) -> dict[str, float]:
        """Return the step's metrics under the names of verl's trackers."""
        groups = list(self.groups.values())
        kept = sum(len(self.groups[uid].kept) for uid in self.trained())
        return {
            "retcon/kept": float(kept),
            "retcon/rollouts": float(sum(group.rolled for group in groups)),
            "retcon/lost_to_faults": float(sum(group.made - group.rolled for group in groups)),
            "retcon/groups_skipped": float(sum(not group.kept for group in groups)),
            "retcon/groups_flat": float(sum(bool(group.kept) and not group.informative for group in groups)),
            "retcon/extra_groups": float(len(groups) - self.prompts),
            "retcon/extra_rounds": float(self.rounds),
        }


def pack(trajectory: Trajectory) -> bytes:
    """Serialize a trajectory without prompt, ids and log-probs, which the batch holds."""
    brief = replace(trajectory, prompt=(), turns=tuple(map(_brief, trajectory.turns)))
    return zlib.compress(json.dumps(to_dict(brief), default=str).encode(), 1)


def unpack(packed: bytes) -> Trajectory:
    """Return the trajectory that `pack` serialized. Raises RecordError."""
    return from_dict(json.loads(zlib.decompress(packed)), "a trajectory of verl's batch")


def _brief(turn: Turn) -> Turn:
    segments = tuple(Segment(segment.kind, segment.text) for segment in turn.segments)
    return replace(turn, segments=segments, abandoned=tuple(map(_brief, turn.abandoned)))


def to_outputs(rolled: VerlRollout, recipe: Recipe) -> list[dict[str, Any]]:
    """Return the fields of each `AgentLoopOutput` of a rollout.

    First are the children that [credit] trains, none while verl validates; the rollout is last. All are of the purified
    history.

    response_mask: 1 on what the model wrote, spliced fixes among it, less what [rl] masks; 0 on observations.
    response_logprobs: where the servers were asked for them, which no repair goes with; else None, and verl computes
    them. reward_score: the grader's, with what [rl] takes off it for length; children have their root's. metrics and
    the packed trajectory are the rollout's, and empty for children.
    """
    root, engine = rolled.trajectory, rolled.engine
    reward = root.reward if rolled.validating else shaped_rewards([root], recipe.rl, rolled.limits)[0]
    metrics = {
        "generate_sequences": engine.seconds,
        "tool_calls": root.raw_seconds,
        "num_preempted": -1 if engine.preempted is None else engine.preempted,
    }
    fields: dict[str, Any] = {
        "turn_scores": [],
        "tool_rewards": [],
        "min_global_steps": min(engine.steps, default=None),
        "max_global_steps": max(engine.steps, default=None),
        "reward_extra_info": _metrics(rolled),
        "group_size": rolled.size,
    }
    tree = [root] if rolled.validating else trainable(root, recipe.rl)
    credited = recipe.credit.rewards(tree, 0.0)
    return [
        *(
            _tokens(child, recipe) | {"reward_score": reward, "metrics": {}, "extra_fields": fields | {PACKED: b""}}
            for child in tree[1:]
            if child.id in credited
        ),
        _tokens(root, recipe)
        | {"reward_score": reward, "metrics": metrics, "extra_fields": fields | {PACKED: pack(root)}},
    ]


def _tokens(trajectory: Trajectory, recipe: Recipe) -> dict[str, Any]:
    sample = to_sample(trajectory, scored=False)
    start = token_count(trajectory.prompt)
    known = all(p is not None for p, m in zip(sample.logprobs, sample.mask, strict=True) if m)
    logprobs = [0.0 if p is None else p for p in sample.logprobs[start:]]
    asked = any(p is not None for p in sample.logprobs)
    return {
        "prompt_ids": list(sample.ids[:start]),
        "response_ids": list(sample.ids[start:]),
        "response_mask": list(learnt(trajectory, sample, recipe.rl)[start:]),
        "response_logprobs": logprobs if asked and known else None,
        "num_turns": 1 + sum(1 + bool(turn.calls) for turn in trajectory.turns),
    }


def _metrics(rolled: VerlRollout) -> dict[str, float]:
    """Metrics of a rollout, which verl averages in validation. acc: whether it was right. failed_calls: before repair.
    sampled_tokens: abandoned attempts among them."""
    trajectory = rolled.trajectory
    repaired = [turn.repair.decision in REPLACED for turn in trajectory.turns if turn.repair]
    return {
        "acc": float((trajectory.reward or 0) > 0),
        "turns": float(len(trajectory.turns)),
        "calls": float(trajectory.raw_calls),
        "failed_calls": float(trajectory.raw_failures),
        "repairs": float(sum(repaired)),
        "sampled_tokens": float(trajectory.sampled_tokens),
        "cut_off": float(trajectory.stop in ("length", "turns")),
        "children": float(sum(1 for _ in trajectory.tree) - 1),
    }
