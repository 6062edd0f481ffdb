"""Choice of a step's rollouts by our own trainer's rules."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from retcon.config.schema import Recipe
from retcon.core.codec import from_dict, to_dict
from retcon.core.seeds import derive
from retcon.core.types import Segment, Trajectory, Turn
from retcon.select.filters import DynamicSampling, is_informative
from retcon.train.objective.shaping import comparable


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
