"""Which rollouts of a group can be trained on at all."""

from __future__ import annotations

from collections.abc import Sequence

from retcon.core.types import Trajectory


def drop_infrastructure(group: Sequence[Trajectory]) -> list[Trajectory]:
    """The group without the rollouts that an infrastructure fault ended: those have no reward, not a zero one.

    Empty where fewer than two are left: one rollout has nothing to be compared with.
    """
    left = [t for t in group if t.stop != "infrastructure"]
    return left if len(left) > 1 else []
