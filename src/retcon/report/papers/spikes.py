"""Figure 2 of CLEANER: whether steps in which more calls fail are steps in which accuracy falls."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np

from retcon.evaluate.statistics import Interval
from retcon.report.compared.curves import HELD_OUT, IN_TRAINING
from retcon.report.compared.figures import Arms
from retcon.report.compared.reading import ComparedRun
from retcon.report.papers.types import Extra
from retcon.report.plots import shown
from retcon.store.whole import explained, whole_file


def failures_and_accuracy(run: ComparedRun, accuracy: str) -> np.ndarray:
    """Step, failed calls per rollout, and `accuracy`, (3, T), of the steps that have it; failures are the mean over the
    steps since the point before, as evaluations come every few steps."""
    points, since = list[tuple[float, float, float]](), list[float]()
    for number, step in enumerate(run.run.metrics, start=1):
        if (failures := step.get("raw_failures")) is not None:
            since.append(failures)
        if (height := step.get(accuracy)) is not None and since:
            points.append((float(number), sum(since) / len(since), height))
            since = []
    return np.array(points, dtype=float).reshape(-1, 3).T


def correlation(run: ComparedRun, accuracy: str) -> Interval | None:
    """Pearson's r between the changes of both from point to point, with Fisher's interval; None of fewer than four
    changes, and where one of the two never changes."""
    _, failures, heights = failures_and_accuracy(run, accuracy)
    changes = np.diff(np.stack([failures, heights]))
    if (count := changes.shape[1]) < 4 or not changes.std(axis=1).all():
        return None
    r = float(np.clip(np.corrcoef(changes)[0, 1], -1 + 1e-12, 1 - 1e-12))
    half = 1.96 / math.sqrt(count - 3)  # of the normal distribution, 95 %
    return Interval(r, math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half))


SPIKES = (
    Extra("spikes_held_out", "r, failures and held-out pass@1", 2, 0, partial(correlation, accuracy=HELD_OUT), 1, -1),
    Extra("spikes_training", "r, failures and pass rate", 2, 0, partial(correlation, accuracy=IN_TRAINING), 1, -1),
)


def draw_spikes(arms: Arms, folder: Path) -> Path | None:
    """Write `spikes.png`: both over the steps of the first arm's first run, None where it has none. Raises
    StorageError."""
    from matplotlib.figure import Figure

    arm, (run, *_) = next(iter(arms.items()))
    (steps, failures, heights), held_out = (failures_and_accuracy(run, metric) for metric in (IN_TRAINING, HELD_OUT))
    if not len(steps):
        return None
    figure = Figure(figsize=(6.4, 3.8), dpi=150, layout="constrained")
    axes = figure.add_subplot(xlabel="step", title=f"{shown(arm)}: failed calls and accuracy")
    axes.plot(steps, failures, color="tab:red")
    axes.set_ylabel("failed calls per rollout", color="tab:red")
    other = axes.twinx()
    other.plot(steps, heights, color="tab:blue")
    other.plot(held_out[0], held_out[2], "o", color="tab:blue")
    other.set_ylabel("pass rate; dots: held out", color="tab:blue")
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / "spikes.png") as whole:
        figure.savefig(whole, format="png")
    return folder / "spikes.png"
