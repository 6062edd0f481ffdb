"""What a reproduction is made of: arms, and studies that set their figures beside a paper's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

from retcon.core.types import REPLACED, Trajectory
from retcon.evaluate.statistics import Interval
from retcon.report.comparison import HELD_OUT, IN_TRAINING, PLAIN, REPAIRED, Arms, ComparedRun
from retcon.report.plots import shown
from retcon.store import jsonl
from retcon.store.compression import SUFFIXES
from retcon.store.whole import explained, whole_file


@dataclass(frozen=True, slots=True)
class Variant:
    """An arm. role: of the recipe that it begins with, a key of Paper.recipes. keys: what it changes of that.
    switches_to: the role of the recipe whose [repair] it gets for the second half of its steps, if any. rate: factor on
    the recipe's learning rate. start: name of the start that arms of another model than the first one's share."""

    name: str
    role: str
    keys: tuple[str, ...] = ()
    switches_to: str = ""
    rate: float = 1.0
    start: str = ""


@dataclass(frozen=True, slots=True)
class Here:
    """What stands beside a paper's value: figures of an arm, or keys of its recipe such as `rl.lr`, by their names with
    spaces between; less: the arm whose figures are subtracted."""

    arm: str
    figures: str
    less: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A value of the paper. source: table or section. here: None with a reason in `differs`."""

    what: str
    value: str
    source: str
    here: Here | None = None
    differs: str = ""


def table(source: str, columns: Sequence[tuple[str, str, str]], *rows: tuple[str, str, str, str]) -> Iterator[Claim]:
    """A table of the paper: a claim for each cell that has a figure here, and one for the rest of a row. columns: head,
    and either figures of the arms here or "" and a reason. rows: label, cells as the paper prints them, the arm here,
    "" for none, and what differs."""
    for label, cells, arm, differs in rows:
        rest, reasons = list[str](), list[str]()
        for (head, figures, reason), cell in zip(columns, cells.split(), strict=True):
            if cell != "-" and arm and figures:
                about = "; ".join(filter(None, (differs, reason)))
                yield Claim(f"{label}: {head}", cell, source, Here(arm, figures), about)
            elif cell != "-":
                rest.append(f"{head} {cell}")
                reasons.append(reason if arm else differs)
        if rest:
            yield Claim(label, ", ".join(rest), source, None, "; ".join(dict.fromkeys(reasons)))


@dataclass(frozen=True, slots=True)
class Extra:
    """A figure that a comparison does not have: one value a run, None where there is none, or one with its interval,
    which counts where there is but one run. better: the sign of what is better, 0 where neither is. most, least: that
    it can be."""

    name: str
    label: str
    digits: int
    better: int
    value: Callable[[ComparedRun], float | Interval | None]
    most: float = math.inf
    least: float = 0.0


@dataclass(frozen=True, slots=True)
class Study:
    """A table or picture of the paper. arms: names of variants. figures, curves: of a comparison's. note: what is
    different here. first: the arm that the others are compared with, the paper's where it is "". repaired: whether it
    reads evaluations with purification on. draw: writes a picture of its own into a folder."""

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
    """name: as on the command line. recipes: role to the recipe that stands for it in miniature. variants: all arms,
    of which the first is what the others are compared with. settings: the paper's hyperparameters. elsewhere: what of
    the paper no study here is about, and which command is. quick: overrides of `--quick`."""

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
        """Names of the study's arms, the one that the others are compared with first."""
        return tuple(dict.fromkeys((study.first or self.variants[0].name, *study.arms)))

    def arms_of(self, studies: tuple[Study, ...]) -> tuple[Variant, ...]:
        """The variants that these studies need, in the paper's order."""
        named = {arm for study in studies for arm in self.compared(study)}
        return tuple(variant for variant in self.variants if variant.name in named)


ROLLOUTS = "trajectories-t1.jsonl"


def repaired_by(attempt: int) -> Callable[[ComparedRun], float | None]:
    """Of the turns that failed while an evaluation repaired: the share that was repaired by this attempt or an earlier
    one. With one lookahead that goes on attempt after attempt, this is what a smaller K would have repaired."""
    return lambda run: _share_repaired(run.run.folder / REPAIRED / ROLLOUTS, attempt)


def failing_calls_of_right(run: ComparedRun) -> float | None:
    """The share of calls that fail in the right rollouts of the evaluation without purification."""
    return _failing_of_right(run.run.folder / PLAIN / ROLLOUTS)


def deep_share(run: ComparedRun) -> float | None:
    """Of the repairs of a training: the share that replaced the reasoning as well."""
    shallow, deep = run.run.total("shallow"), run.run.total("deep")
    return None if shallow is None or deep is None or not shallow + deep else deep / (shallow + deep)


def cpu_of_a_rollout(run: ComparedRun) -> float | None:
    """Milliseconds of CPU time that training cost for each rollout that it made, updates included."""
    seconds, rollouts = run.run.last("cpu_s"), run.run.total("rollouts")
    return None if seconds is None or not rollouts else 1000 * seconds / rollouts


def tokens_of_a_rollout(run: ComparedRun) -> float | None:
    """Tokens that training sampled for each rollout that it made, lookaheads included."""
    tokens, rollouts = run.run.total("sampled_tokens"), run.run.total("rollouts")
    return None if tokens is None or not rollouts else tokens / rollouts


def evaluation_minutes(condition: str, *, wall: bool = False) -> Callable[[ComparedRun], float | None]:
    """Minutes that the evaluation at T = 1 under this condition took, of CPU or of the clock."""

    def minutes(run: ComparedRun) -> float | None:
        result = run.results.get(condition)
        setting = result.settings.get("t1") if result else None
        return None if setting is None else (setting.wall_s if wall else setting.cpu_s) / 60

    return minutes


def slowdown(run: ComparedRun) -> float | None:
    """Percent by which purification lengthens the evaluation, in CPU time."""
    off, on = (evaluation_minutes(condition)(run) for condition in (PLAIN, REPAIRED))
    return None if on is None or not off else 100 * (on / off - 1)


def cut_off(run: ComparedRun) -> float | None:
    """The share of a training's rollouts that ended for want of tokens or turns, the mean over its steps."""
    shares = [share for step in run.run.metrics if (share := step.get("cut_off")) is not None]
    return sum(shares) / len(shares) if shares else None


@cache
def _attempts(file: Path) -> tuple[int, tuple[int, ...]]:
    """Turns that a repair was tried at, and of those that were repaired the attempts that it took."""
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
    """Of the file, which may have been compressed since; nothing where it is gone."""
    there = (path for suffix in ("", *SUFFIXES) if (path := file.with_name(file.name + suffix)).is_file())
    return jsonl.read(found) if (found := next(there, None)) else ()


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
