"""Trees of rollouts as weighted samples: trained nodes, advantages, weights. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from retcon.config.schema import CreditSection, RLSection
from retcon.config.section import Aggregate
from retcon.core.types import Sample, Trajectory
from retcon.rollout.context import RolloutLimits
from retcon.train.objective.shaping import advantages_of, is_masked, shaped_rewards


def node_fates(root: Trajectory, config: RLSection) -> Iterator[tuple[Trajectory, str]]:
    """Yield a tree's nodes, parents first, with obstacles to training or "".

    rolled_back: its call is not in its parent's turns, as a repair took that attempt out. infrastructure: a fault ended
    it. no_room: its prompt left no room for an answer. masked: as in `is_masked`. A node has its parent's fate unless
    that is "".
    """

    def below(node: Trajectory, fate: str) -> Iterator[tuple[Trajectory, str]]:
        yield node, fate
        calls = {call.id for turn in node.turns for call in turn.calls} if node.children else ()
        for child in node.children:
            yield from below(child, fate or _fate(child, calls, config))

    return below(root, "masked" if is_masked(root, config) else "")


def _fate(child: Trajectory, calls: set[str] | tuple[()], config: RLSection) -> str:
    if child.parent is not None and child.parent.call and child.parent.call not in calls:
        return "rolled_back"
    if child.stop == "infrastructure":
        return "infrastructure"
    if not child.turns:
        return "no_room"
    return "masked" if is_masked(child, config) else ""


def trainable(root: Trajectory, config: RLSection) -> list[Trajectory]:
    """Return the root and its trainable descendants, parents first."""
    if not root.children:
        return [root]
    return [root, *(node for node, fate in node_fates(root, config) if not fate and node is not root)]


def compared_rewards(
    group: Sequence[Trajectory], rl: RLSection, credit: CreditSection, limits: RolloutLimits
) -> list[float]:
    """Return the rewards by which a group is compared: `shaped_rewards`, with [credit]'s bonus for children. Raises
    ValueError for an ungraded rollout."""
    rewards = shaped_rewards(group, rl, limits)
    trees = (trainable(root, rl) for root in group)
    return [credit.rewards(tree, r)[tree[0].id] for tree, r in zip(trees, rewards, strict=True)]


@dataclass(frozen=True, slots=True)
class CreditedGroup:
    """The trained nodes of a group: its rollouts in order, then their children.

    advantages: of each node. scales: weights of nodes in the loss by id, by default 1.
    """

    nodes: list[Trajectory]
    advantages: list[float]
    scales: dict[str, float] = field(default_factory=dict)


def credit_groups(
    groups: Sequence[Sequence[Trajectory]], rl: RLSection, credit: CreditSection, limits: RolloutLimits
) -> tuple[list[CreditedGroup], list[list[float]]]:
    """Return the trained nodes of a step's groups, and its `shaped_rewards`.

    A child's advantage is its root's with the child's reward in place of the root's.
    """
    trees = [[trainable(root, rl) for root in group] for group in groups]
    shaped = [shaped_rewards(group, rl, limits) for group in groups]
    by_node = [list(map(credit.rewards, *both)) for both in zip(trees, shaped, strict=True)]
    rewards = [
        [found[tree[0].id] for found, tree in zip(*both, strict=True)] for both in zip(by_node, trees, strict=True)
    ]
    advantages = advantages_of(groups, rewards, rl)
    known: dict[tuple[int, int, float], float] = {}

    def in_place(g: int, i: int, reward: float) -> float:
        if reward == rewards[g][i]:
            return advantages[g][i]
        if (g, i, reward) not in known:
            changed = [*rewards[:g], [*rewards[g][:i], reward, *rewards[g][i + 1 :]], *rewards[g + 1 :]]
            known[g, i, reward] = advantages_of(groups, changed, rl)[g][i]
        return known[g, i, reward]

    credited = [CreditedGroup(list(group), list(own)) for group, own in zip(groups, advantages, strict=True)]
    for g, made in enumerate(credited):
        for i, (tree, found) in enumerate(zip(trees[g], by_node[g], strict=True)):
            children = [node for node in tree[1:] if node.id in found]
            made.nodes.extend(children)
            made.advantages.extend(in_place(g, i, found[node.id]) for node in children)
            if credit.weights == "tree":
                made.scales.update(_tree_scales(children))
    return credited, shaped


def _tree_scales(children: Sequence[Trajectory]) -> dict[str, float]:
    """Return 1 / n for each of the n trained nodes of one depth. children: of one root, parents before children."""
    depth: dict[str, int] = {}
    for node in children:
        depth[node.id] = 1 + depth.get(node.parent.trajectory if node.parent else "", 0)
    count = Counter(depth.values())
    return {id: 1 / count[level] for id, level in depth.items()}


def tree_metrics(groups: Sequence[Sequence[Trajectory]]) -> dict[str, float | None]:
    """Return metrics of the trees of a step's rollouts, (prompts, G').

    children: of a rollout, all its descendants. children_depth: the deepest one's, 0 without any. children_tokens:
    sampled in them, in all; sampled_tokens has them, too. children_pass_rate: of graded ones, None without any.
    children_refused: calls that a limit of [subcalls] refused, in all; limits_reached: rollouts in which one did.
    """
    made = [t for group in groups for t in group]
    below = [sum(1 for _ in t.tree) - 1 for t in made]
    passed = [node.reward > 0 for t in made for node in t.tree if node is not t and node.reward is not None]
    return {
        "children": fmean(below) if below else None,
        "children_depth": max(map(_depth, made), default=0),
        "children_tokens": sum(node.sampled_tokens for t in made for node in t.tree if node is not t),
        "children_pass_rate": fmean(passed) if passed else None,
        "children_refused": sum(t.refused for t in made),
        "limits_reached": sum(t.refused > 0 for t in made),
    }


def _depth(node: Trajectory) -> int:
    return max((1 + _depth(child) for child in node.children), default=0)


def loss_share(samples: Sequence[Sample], ids: set[str], aggregate: Aggregate) -> float | None:
    """Return the share of the loss of the trajectories `ids`. It is at a ratio of 1 and in absolute terms; None without
    advantages."""
    total = own = 0.0
    for sample in samples:
        pushed = sum(abs(a) for a, m in zip(sample.advantages or (), sample.mask, strict=False) if m)
        value = sample.scale * pushed / (max(1, sum(sample.mask)) if aggregate == "sequence" else 1)
        total += value
        own += value if sample.source in ids else 0.0
    return own / total if total else None
