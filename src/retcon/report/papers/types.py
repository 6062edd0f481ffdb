"""Parts of a reproduction: arms, claims, and studies beside a paper's figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from retcon.core.types import REPLACED, Trajectory
from retcon.evaluate.statistics import Interval
from retcon.report.comparison import HELD_OUT, IN_TRAINING, PLAIN, REPAIRED, ArmRun, Arms
from retcon.report.plots import escape_name
from retcon.store import jsonl
from retcon.store.compression import SUFFIXES
from retcon.store.whole import storage_errors, whole_file

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Variant:
    """An arm. role: key of Paper.recipes that it starts from. keys: overrides. switches_to: role whose [repair] it gets
    for the second half of its steps, if any. rate: factor on the recipe's learning rate. start: name of the start that
    arms of another model than the first one's share."""

    name: str
    role: str
    keys: tuple[str, ...] = ()
    switches_to: str = ""
    rate: float = 1.0
    start: str = ""


@dataclass(frozen=True, slots=True)
class Ours:
    """Our value beside a paper's. figures: names, separated by spaces, of an arm's figures or recipe keys such as
    `rl.lr`. less: the arm whose figures are subtracted."""

    arm: str
    figures: str
    less: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A value of the paper. source: table or section. here: None with a reason in `differs`."""

    what: str
    value: str
    source: str
    here: Ours | None = None
    differs: str = ""


def table(source: str, columns: Sequence[tuple[str, str, str]], *rows: tuple[str, str, str, str]) -> Iterator[Claim]:
    """Yield the claims of a paper's table: one per cell with a figure here, one for the rest of a row. columns: head,
    and either figures of the arms here or "" and a reason. rows: label, cells as the paper prints them, the arm here or
    "", and what differs."""
    for label, cells, arm, differs in rows:
        rest, reasons = list[str](), list[str]()
        for (head, figures, reason), cell in zip(columns, cells.split(), strict=True):
            if cell != "-" and arm and figures:
                about = "; ".join(filter(None, (differs, reason)))
                yield Claim(f"{label}: {head}", cell, source, Ours(arm, figures), about)
            elif cell != "-":
                rest.append(f"{head} {cell}")
                reasons.append(reason if arm else differs)
        if rest:
            yield Claim(label, ", ".join(rest), source, None, "; ".join(dict.fromkeys(reasons)))


@dataclass(frozen=True, slots=True)
class Extra:
    """A figure that a comparison lacks: one value a run or None, or, for a single run, one with its interval. better:
    the sign of what is better, 0 for neither. most, least: its bounds."""

    name: str
    label: str
    digits: int
    better: int
    value: Callable[[ArmRun], float | Interval | None]
    most: float = math.inf
    least: float = 0.0


@dataclass(frozen=True, slots=True)
class Study:
    """A table or picture of the paper. arms: names of variants. figures, curves: of a comparison's. note: what differs
    here. first: the baseline arm, by default the paper's. repaired: whether it reads evaluations with purification on.
    draw: writes a picture of its own into a folder."""

    name: str
    title: str
    arms: tuple[str, ...]
    figures: tuple[str, ...]
    claims: tuple[Claim, ...]
    extras: tuple[Extra, ...] = ()
    curves: tuple[str, ...] = ()
    note: str = ""
    first: str = ""
    repaired: bool = False
    draw: Callable[[Arms, Path], Path | None] | None = None


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper. name: on the command line. recipes: role to miniature recipe. variants: all arms, the first being the
    baseline. settings: the paper's hyperparameters. elsewhere: parts that other commands cover. quick: overrides of
    `--quick`."""

    name: str
    title: str
    arxiv: str
    recipes: dict[str, str]
    variants: tuple[Variant, ...]
    studies: tuple[Study, ...]
    settings: tuple[Claim, ...]
    elsewhere: tuple[str, ...]
    quick: tuple[str, ...]

    def compared(self, study: Study) -> tuple[str, ...]:
        """Names of the study's arms, the baseline first."""
        return tuple(dict.fromkeys((study.first or self.variants[0].name, *study.arms)))

    def arms_of(self, studies: tuple[Study, ...]) -> tuple[Variant, ...]:
        """Return the variants that these studies need, in the paper's order."""
        named = {arm for study in studies for arm in self.compared(study)}
        return tuple(variant for variant in self.variants if variant.name in named)


ROLLOUTS = "trajectories-t1.jsonl"


def repaired_by(attempt: int) -> Callable[[ArmRun], float | None]:
    """Return the share of failed turns repaired within `attempt` attempts. As one lookahead makes attempt after
    attempt, this is what a smaller K would have repaired."""
    return lambda run: _share_repaired(run.run.folder / REPAIRED / ROLLOUTS, attempt)


def failing_calls_of_right(run: ArmRun) -> float | None:
    """Return the share of failed calls in right rollouts, purification off."""
    return _failing_of_right(run.run.folder / PLAIN / ROLLOUTS)


def deep_share(run: ArmRun) -> float | None:
    """Return the share of a training's repairs that replaced the reasoning too."""
    shallow, deep = run.run.total("shallow"), run.run.total("deep")
    return None if shallow is None or deep is None or not shallow + deep else deep / (shallow + deep)


def cpu_of_a_rollout(run: ArmRun) -> float | None:
    """Return the CPU milliseconds of training per rollout, updates included."""
    seconds, rollouts = run.run.last("cpu_s"), run.run.total("rollouts")
    return None if seconds is None or not rollouts else 1000 * seconds / rollouts


def tokens_of_a_rollout(run: ArmRun) -> float | None:
    """Return the tokens sampled in training per rollout, lookaheads included."""
    tokens, rollouts = run.run.total("sampled_tokens"), run.run.total("rollouts")
    return None if tokens is None or not rollouts else tokens / rollouts


def evaluation_minutes(condition: str, *, wall: bool = False) -> Callable[[ArmRun], float | None]:
    """Measure the evaluation at T = 1 in minutes, CPU or wall."""

    def minutes(run: ArmRun) -> float | None:
        result = run.results.get(condition)
        setting = result.settings.get("t1") if result else None
        return None if setting is None else (setting.wall_s if wall else setting.cpu_s) / 60

    return minutes


def slowdown(run: ArmRun) -> float | None:
    """Return by how many percent purification lengthens the evaluation, in CPU time."""
    off, on = (evaluation_minutes(condition)(run) for condition in (PLAIN, REPAIRED))
    return None if on is None or not off else 100 * (on / off - 1)


def cut_off(run: ArmRun) -> float | None:
    """Return the mean share of training rollouts out of tokens or turns."""
    shares = [share for step in run.run.metrics if (share := step.get("cut_off")) is not None]
    return sum(shares) / len(shares) if shares else None


@cache
def _attempts(file: Path) -> tuple[int, tuple[int, ...]]:
    """Turns at which a repair was tried, and the attempts that each repaired turn took."""
    tried, taken = 0, []
    for turn in (turn for rollout in _read(file) for turn in rollout.turns):
        if turn.repair is not None and turn.repair.attempts:
            tried += 1
            if turn.repair.decision in REPLACED:
                taken.append(turn.repair.attempts)
    return tried, tuple(taken)


def _share_repaired(file: Path, attempt: int) -> float | None:
    tried, taken = _attempts(file)
    return sum(n <= attempt for n in taken) / tried if tried else None


def _failing_of_right(file: Path) -> float | None:
    calls = failed = 0
    for rollout in _read(file):
        if (rollout.reward or 0.0) > 0:
            calls += sum(len(turn.observations) for turn in rollout.turns)
            failed += sum(turn.failures for turn in rollout.turns)
    return failed / calls if calls else None


def _read(file: Path) -> Iterable[Trajectory]:
    """Rollouts of the file, which may have been compressed since; empty if it is gone."""
    there = (path for suffix in ("", *SUFFIXES) if (path := file.with_name(file.name + suffix)).is_file())
    return jsonl.read(found) if (found := next(there, None)) else ()


def failures_and_accuracy(run: ArmRun, accuracy: str) -> np.ndarray:
    """Return step, failed calls per rollout and `accuracy`, (3, T). Of the steps that have `accuracy`; failures are the
    mean over the steps since the point before."""
    import numpy as np

    points, since = list[tuple[float, float, float]](), list[float]()
    for number, step in enumerate(run.run.metrics, start=1):
        if (failures := step.get("raw_failures")) is not None:
            since.append(failures)
        if (height := step.get(accuracy)) is not None and since:
            points.append((float(number), sum(since) / len(since), height))
            since = []
    return np.array(points, dtype=float).reshape(-1, 3).T


def correlation(run: ArmRun, accuracy: str) -> Interval | None:
    """Return Pearson's r between changes of failures and accuracy. With Fisher's interval; None for fewer than four
    changes, and where one of the two never changes."""
    import numpy as np

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
    """Write `spikes.png` of the first arm's first run; None if it has no steps. Raises StorageError."""
    from matplotlib.figure import Figure

    arm, (run, *_) = next(iter(arms.items()))
    (steps, failures, heights), held_out = (failures_and_accuracy(run, metric) for metric in (IN_TRAINING, HELD_OUT))
    if not len(steps):
        return None
    figure = Figure(figsize=(6.4, 3.8), dpi=150, layout="constrained")
    axes = figure.add_subplot(xlabel="step", title=f"{escape_name(arm)}: failed calls and accuracy")
    axes.plot(steps, failures, color="tab:red")
    axes.set_ylabel("failed calls per rollout", color="tab:red")
    other = axes.twinx()
    other.plot(steps, heights, color="tab:blue")
    other.plot(held_out[0], held_out[2], "o", color="tab:blue")
    other.set_ylabel("pass rate; dots: held out", color="tab:blue")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / "spikes.png") as whole:
        figure.savefig(whole, format="png")
    return folder / "spikes.png"
