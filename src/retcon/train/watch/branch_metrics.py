"""What a step's rollouts say about where they branched, and what that spared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from retcon.core.sample import token_count
from retcon.core.types import Trajectory, Turn


def branch_metrics(groups: Sequence[Sequence[Trajectory]]) -> dict[str, float | None]:
    """Metrics of the rollouts of a step whose strategy lets them branch; (prompts, G').

    branches: rollouts that left another one. branch_points: where they did, several perhaps at one. branch_entropy,
    branch_entropy_rise: of the turns for which rollouts branched, nats a token, and above that of their first turns,
    means; branch_surprisal, branch_surprisal_rise: the same where the engine tells no entropies (see
    `retcon.rollout.strategy.Uncertainty`). entropy_first, entropy_after_tools: of all first turns, and of all turns
    that followed a tool's answer, as they were sampled first. branch_shared_tokens, branch_shared_calls: tokens and
    executed calls that branches share with those that they left, in all: none was computed or sampled, or executed,
    again. None is what nothing is known of.
    """
    made = [t for group in groups for t in group]
    branched = [t for t in made if t.branch is not None]
    points = {(t.branch.parent, t.branch.turns): t.branch for t in branched if t.branch is not None}
    by = {m: [p for p in points.values() if p.measure == m] for m in ("entropy", "surprisal")}
    shared = [(t, t.turns[: t.branch.turns]) for t in branched if t.branch is not None]
    return {
        "branches": len(branched),
        "branch_points": len(points),
        **{f"branch_{m}": _mean(p.uncertainty for p in found) for m, found in by.items()},
        **{f"branch_{m}_rise": _mean(p.rise for p in found) for m, found in by.items()},
        "entropy_first": _mean(_entropies(t.turns[:1] for t in made if t.branch is None)),
        "entropy_after_tools": _mean(_entropies(t.own_turns if t.branch else t.turns[1:] for t in made)),
        "branch_shared_tokens": sum(token_count(t.prompt) + token_count(s for u in turns for s in u.segments)
                                    for t, turns in shared),
        "branch_shared_calls": sum(len(attempt.observations) for _, turns in shared for turn in turns
                                   for attempt in turn.raw()),
    }  # fmt: skip


def _entropies(rollouts: Iterable[Sequence[Turn]]) -> list[float]:
    return [e for turns in rollouts for turn in turns if (e := turn.raw()[0].entropy) is not None]


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return fmean(found) if found else None
