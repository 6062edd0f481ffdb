"""Contrast: the tries at a failed turn as samples of their own, each from the clean history where it was sampled. Ours.

A repair takes the failure out of the history, so that a group's advantage no longer tells what a failure costs: first
tries that are repaired stay as bad as they are. Here the failure keeps a gradient, at the turn where it was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from retcon.core.sample import ids_of
from retcon.core.types import REPLACED, Sample, Segment, Trajectory, Turn


def contrast_samples(
    trajectory: Trajectory, weight: float, splices: tuple[float | None, ...] | None = None
) -> list[Sample]:
    """A sample for each try at each repaired turn of a trajectory whose tokens all have log-probs.

    The tries at a turn: the failure; the fresh tries that failed, too; and what replaced the failure. Each is worth 1
    if its calls succeed, 0 if not, and its advantage is weight · (that - the mean over the turn's tries), so that they
    sum to 0 and lie within ±weight. The mask is 1 on what the model wrote in the turn alone; the history before it is
    the purified one, after which all tries but a spliced fix were sampled. Turns that were not repaired give none,
    nor do those that another trajectory shares and has samples of. splices: (T,), the weights of the trajectory's
    spliced tokens (see `retcon.purify.weights`), which these have here as well; None for 1.
    """
    samples: list[Sample] = []
    before = list(trajectory.prompt)
    for n, turn in enumerate(trajectory.turns):
        if n >= trajectory.shared_turns and (tries := _tries(turn)):
            mean = fmean(worth for _, worth in tries)
            for one, worth in tries:
                sample = written_sample(trajectory.id, before, one.generated, weight * (worth - mean))
                own = None if splices is None or one is not turn else splices[: len(sample.ids)]
                samples.append(replace(sample, weights=own))
        before.extend(turn.segments)
    return samples


def _tries(turn: Turn) -> list[tuple[Turn, float]]:
    """The tries that are compared, and what each is worth. A fresh try without a failed call is the one that replaced
    the failure, which the turn itself is, or did not call: it says nothing of calls."""
    record = turn.repair
    if record is None or record.decision not in REPLACED:
        return []
    failure, *later = turn.abandoned
    failed = [failure, *(one for one in later[: record.fresh] if one.failures)]
    return [*((one, 0.0) for one in failed), (turn, 1.0)]


def written_sample(source: str, before: Sequence[Segment], written: Sequence[Segment], advantage: float) -> Sample:
    """What the model wrote in one turn, as a sample of its own after the history before it, both with ids. The mask is
    1 on what was written alone. source: id of the trajectory."""
    prefix, ids = ids_of(before), ids_of(written)
    logprobs = [logprob for s in written for logprob in s.logprobs or (None,) * len(s.ids or ())]
    spliced = [int(s.kind == "spliced") for s in written for _ in s.ids or ()]
    none = [0] * len(prefix)
    return Sample(
        ids=(*prefix, *ids),
        mask=(*none, *[1] * len(ids)),
        logprobs=(*[None] * len(prefix), *logprobs),
        spliced=(*none, *spliced),
        advantages=(advantage,) * (len(prefix) + len(ids)),
        source=source,
    )
