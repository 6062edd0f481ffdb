#!/usr/bin/env python
"""Measure what pushes a comparison's arms towards clean first tries.

    python benchmarks/studies/pressure.py runs/grid-failures/frequent-loose [--arms dapo-baseline saar …] [--until 12]

For each arm, over all of its seeds and the steps up to --until: e, the share of first calls that fail as sampled; f,
that of these after which the history that is learnt from goes on with a call that works (by a repair, or by itself);
s, the share of rollouts with a clean first call that are right; h, how much of it is left where that call failed as
sampled and stayed; r, how much where a fix replaced it; and the last two's difference in right rollouts, with a 95 %
interval by a bootstrap over tasks. And the push itself: in the histories that are learnt from,
with q the share whose first call is clean, q (1 - q) times the mean advantage of these less that of the others; beside
it, what the first-order estimate of docs/protocol.md makes of e, f, s and h.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

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
    print(
        "| arm | e | f | s | h | r | right | fixed less failed | push, measured | push, estimated |\n|---|"
        + "---:|" * 9
    )
    for arm in arms:
        found = list(rollouts(options.comparison / arm, options.until))
        values = ["–" if v is None else v if isinstance(v, str) else f"{v:.3f}" for v in measured(found)]
        print(f"| {arm} | {' | '.join(values)} |", flush=True)


def rollouts(arm: Path, until: int) -> Iterator[Trajectory]:
    """Yield the rollouts that an arm learnt from."""
    for step in range(1, until + 1):
        for file in sorted(arm.glob(f"seed-*/trajectories/step-{step:06d}.*")):
            yield from (one for one in read(file) if one.training is not None and one.training.advantage is not None)


def measured(found: Iterable[Trajectory]) -> tuple[float | str | None, ...]:
    """Measure an arm's rollouts.

    Returns e, f, s, h, r, the share that is right, the difference with its interval, the push, and its estimate; None
    where nothing is counted.
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
    return e, f, s, h, r, mean(right(one) for one, *_ in called), difference(replaced, stayed), push, estimate


def difference(some: Sequence[Trajectory], others: Sequence[Trajectory]) -> str | None:
    """Return by how much more of `some` are right, with its interval."""
    if not some or not others:
        return None
    tasks = {task: n for n, task in enumerate(sorted({one.task for one in (*some, *others)}))}
    counts = np.zeros((2, 2, len(tasks)))  # of either kind: rollouts, and right ones, by task
    for kind, rollouts in enumerate((some, others)):
        for one in rollouts:
            counts[kind, :, tasks[one.task]] += 1, right(one)
    draws = np.random.default_rng(0).integers(len(tasks), size=(2000, len(tasks)))
    made, good = counts[:, 0, draws].sum(-1), counts[:, 1, draws].sum(-1)
    low, high = np.nanquantile(good[0] / made[0] - good[1] / made[1], [0.025, 0.975])
    mean = counts[0, 1].sum() / counts[0, 0].sum() - counts[1, 1].sum() / counts[1, 0].sum()
    return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"


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
