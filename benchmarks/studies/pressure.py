#!/usr/bin/env python
"""Measure what pushes a comparison's arms towards clean first tries.

    python benchmarks/studies/pressure.py runs/grid-failures/frequent-loose [--arms dapo-baseline saar …] [--until 12]

For each arm, over all of its seeds and the steps up to --until: e, the share of first calls that fail as sampled; f,
that of these after which the history that is learnt from goes on with a call that works (by a repair, or by itself);
s, the share of rollouts with a clean first call that are right; h, how much of it is left where that call failed as
sampled and stayed; r, how much where a fix replaced it. And the push itself: in the histories that are learnt from,
with q the share whose first call is clean, q (1 - q) times the mean advantage of these less that of the others; beside
it, what the first-order estimate of docs/protocol.md makes of e, f, s and h.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean

from retcon.core.types import Trajectory, Turn
from retcon.store.jsonl import read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", type=Path)
    parser.add_argument("--arms", nargs="+")
    parser.add_argument("--until", type=int, default=12)
    options = parser.parse_args()
    arms = options.arms or sorted(
        folder.name for folder in options.comparison.iterdir() if any(folder.glob("seed-*/trajectories"))
    )
    print("| arm | e | f | s | h | r | right | push, measured | push, estimated |\n|---|" + "---:|" * 8)
    for arm in arms:
        found = list(rollouts(options.comparison / arm, options.until))
        print(f"| {arm} | " + " | ".join("–" if v is None else f"{v:.3f}" for v in measured(found)) + " |", flush=True)


def rollouts(arm: Path, until: int) -> Iterator[Trajectory]:
    """Yield the rollouts that an arm learnt from."""
    for step in range(1, until + 1):
        for file in sorted(arm.glob(f"seed-*/trajectories/step-{step:06d}.*")):
            yield from (one for one in read(file) if one.training is not None and one.training.advantage is not None)


def measured(found: Iterable[Trajectory]) -> tuple[float | None, ...]:
    """Measure an arm's rollouts.

    Returns e, f, s, h, r, the share that is right, the push, and its estimate; None where nothing is counted.
    """
    called = [(one, *calls) for one in found if (calls := first_calls(one)) is not None]
    failed = [(one, kept) for one, first, kept in called if first.failures]
    clean = [one for one, first, _ in called if not first.failures]
    stayed = [one for one, kept in failed if kept.failures]
    replaced = [one for one, kept in failed if not kept.failures]
    e = len(failed) / len(called)
    f = mean(not kept.failures or retried(one) for one, kept in failed)
    s, after, fixed = (mean(map(right, some)) for some in (clean, stayed, replaced))
    h = after / s if s and after is not None else None
    r = fixed / s if s and fixed is not None else None
    advantages = [((one.training and one.training.advantage) or 0.0, kept) for one, _, kept in called]
    good = [value for value, kept in advantages if not kept.failures]
    bad = [value for value, kept in advantages if kept.failures]
    q = len(good) / len(called)
    push = q * (1 - q) * (fmean(good) - fmean(bad)) if good and bad else 0.0
    estimate = None
    if f is not None and s is not None and h is not None:
        estimate = e * s * (1 - f) * (1 - e + e * f) if replaced else e * (1 - e) * s * (1 - f * h)
    return e, f, s, h, r, mean(right(one) for one, *_ in called), push, estimate


def first_calls(one: Trajectory) -> tuple[Turn, Turn] | None:
    """Return the first turn with calls, as sampled and in the history."""
    turn = next((turn for turn in one.turns if any(tried.calls for tried in turn.raw())), None)
    return None if turn is None else (next(tried for tried in turn.raw() if tried.calls), turn)


def retried(one: Trajectory) -> bool:
    """Return whether the call after the first failed one works."""
    turns = iter([turn for turn in one.turns if turn.calls])
    next(turns)
    following = next(turns, None)
    return following is not None and not following.failures


def right(one: Trajectory) -> bool:
    return (one.reward or 0.0) > 0


def mean(values: Iterable[bool]) -> float | None:
    listed = list(values)
    return fmean(listed) if listed else None


if __name__ == "__main__":
    main()
