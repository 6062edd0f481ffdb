"""Each node has its own reward: Recursive Agent Optimization (RAO, arXiv 2605.06639).

R(X) = s(X) + λ · the mean of s over X's children (equation 1): own success, and a bonus for delegation that succeeds,
which does not grow with the number of children. The baseline of all nodes of a rollout is the mean reward of the roots
of the group's other rollouts (equation 3): here a child's advantage is what the algorithm would give its root with the
child's reward in its place, which for RLOO is that very difference.

The paper scores s of a child by its environment or a judge. Here it is the reward of the child by the task's grader;
without one, s of the parent, which used the child, at most 0 for a child that gave no answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from pydantic import Field

from retcon.config.schema import CreditSection
from retcon.core.types import Trajectory


class Node(CreditSection):
    """Section `kind = "node"`."""

    delegation: float = Field(0.0, ge=0, description="λ: a node's reward has this times the mean success of its "
                              "children besides; RAO on OOLONG: 0.4")  # fmt: skip

    def rewards(self, tree: Sequence[Trajectory], reward: float) -> Mapping[str, float]:
        success = {tree[0].id: reward}
        below = defaultdict[str, list[float]](list)
        for node in tree[1:]:
            above = node.parent.trajectory if node.parent else tree[0].id
            used = success[above] if node.stop == "answer" else min(success[above], 0.0)
            success[node.id] = used if node.reward is None else node.reward
            below[above].append(success[node.id])
        bonus = {id: self.delegation * fmean(found) for id, found in below.items()}
        return {id: value + bonus.get(id, 0.0) for id, value in success.items()}
