"""Progress of one command: a bar in a terminal, plain lines elsewhere, and a file for whoever started it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retcon.store.whole import write_whole

if TYPE_CHECKING:
    from rich.progress import Progress

    from retcon.models.devices import Placement

FILE = "RETCON_PROGRESS"
"""Environment variable: a file that a parent process reads `{"label", "done", "total"}` from."""

POLL_SECONDS = 0.2
"""How often it does."""

Tell = Callable[[int, int], None]
"""Takes (done, total)."""


@contextmanager
def telling(label: str) -> Iterator[Tell]:
    """A function that shows how far `label` has come."""
    if path := os.environ.get(FILE):
        yield Written(Path(path), label)
        return
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(label, lambda line: console.out(line, highlight=False))
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield Bar(progress, label)


@contextmanager
def telling_steps(label: str, steps: int, stages: Sequence[str] = ()) -> Iterator[StepProgress]:
    """What gets the metrics of each of `steps` steps, and shows a line of each: above a bar in a terminal. stages:
    names of the run's."""
    with telling(label) as tell:
        yield StepProgress(tell, label, steps, stages)


EVERY = 30.0
"""Seconds between two lines on the rollouts of a step."""
FIRST = 5.0
"""Seconds until the first."""


class StepProgress:
    """Shows a line of each step's metrics, and within a step how far its rollouts are: in a terminal beside the bar."""

    def __init__(
        self, tell: Tell, label: str, steps: int, stages: Sequence[str] = (), *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._tell, self._label, self._steps, self._clock = tell, label, steps, clock
        self._line = StepLine(steps, stages, clock=clock)
        self._step, self._began = 0, clock()
        self._next = self._began + FIRST

    def __call__(self, metrics: Mapping[str, float | None]) -> None:
        """Show a step that is over."""
        tell_line(self._line(metrics))
        if isinstance(self._tell, Bar):
            self._tell.describe(self._label)
        if not isinstance(self._tell, Lines):  # which would say the same again
            self._tell(int(metrics["step"] or 0), self._steps)

    def rollouts(self, step: int, done: int, total: int, tokens: int) -> None:
        """Show how far a step's rollouts are. tokens: sampled in it so far."""
        now = self._clock()
        if step != self._step:
            self._step, self._began = step, now - 1  # what comes first comes a second after its beginning
        spent = max(now - self._began, 1e-9)
        parts = [f"step {step}/{self._steps}: {done} of {total} rollouts"]
        if tokens:
            parts.append(f"{tokens:,} tokens, {tokens / spent:,.0f} a second")
        if done:
            left = spent / done * (total - done + (self._steps - step) * total)
            parts.append(f"all rollouts in about {duration(left)}")
        if isinstance(self._tell, Bar):
            self._tell.describe(f"{self._label}  {', '.join(parts)}")
        elif now >= self._next:
            self._next = now + EVERY
            tell_line(", ".join(parts))


class Bar:
    """Progress as a bar of the terminal."""

    def __init__(self, progress: Progress, label: str) -> None:
        self._progress = progress
        self._bar = progress.add_task(label, total=None)

    def __call__(self, done: int, total: int) -> None:
        self._progress.update(self._bar, completed=done, total=total)

    def describe(self, label: str) -> None:
        self._progress.update(self._bar, description=label)


def tell_place(where: Placement) -> None:
    """Say where a command computes, and what its recipe could gain there."""
    for line in (where.line, *where.hints):
        tell_line(line)


def tell_line(line: str) -> None:
    """A line beside the progress."""
    # Through sys.stderr, which a bar on the terminal redirects to above itself.
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Shown:
    """One figure of a step's line. metric: its name in metrics.jsonl; label before, unit behind."""

    metric: str
    label: str
    form: str
    unit: str = ""


FIGURES = (
    Shown("reward", "reward", "{:+.3f}"),
    Shown("pass_rate", "pass", "{:.1%}"),
    Shown("eval_pass_rate", "held out", "{:.1%}"),
    Shown("raw_failures", "failed calls", "{:.2f}"),
    Shown("loss", "loss", "{:.4f}"),
    Shown("accuracy", "accuracy", "{:.1%}"),
    Shown("margin", "margin", "{:+.3f}"),
    Shown("tokens_per_second", "", "{:,.0f}", " tokens/s"),
    Shown("kl", "kl", "{:.4f}"),
)
RECENT = 20
"""Steps that the time left is reckoned from: what came long before says little about what is to come."""


class StepLine:
    """Makes the line of each step. steps: of the whole run, of which a session may take the last ones alone. stages:
    names of its stages, in their order; none where it has none. clock: seconds, from which the time left is
    reckoned: what a run cost, its `wall_s`, leaves out evaluations on the way."""

    def __init__(self, steps: int, stages: Sequence[str] = (), *, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps, self._stages, self._clock = steps, stages, clock
        self._recent: deque[tuple[int, float]] = deque(maxlen=RECENT)

    def __call__(self, metrics: Mapping[str, float | None]) -> str:
        step = int(metrics["step"] or 0)
        parts = [f"step {step:>{len(str(self._steps))}}/{self._steps}"]
        if self._stages and (stage := int(metrics.get("stage") or 0)):
            parts.append(f"stage {stage}/{len(self._stages)} {self._stages[stage - 1]}")
        # A loss of reinforcement learning says nothing to the eye: its sign and size follow the advantages.
        left_out = {"loss"} if "reward" in metrics else set()
        for shown in FIGURES:
            value = metrics.get(shown.metric)
            if shown.metric == "tokens_per_second" and value is None:
                value = _rate(metrics)
            if value is not None and shown.metric not in left_out:
                parts.append(f"{shown.label} {shown.form.format(value)}{shown.unit}".strip())
        if (left := self._left(step)) is not None:
            parts.append(f"left {duration(left)}")
        return "  ".join(parts)

    def _left(self, step: int) -> float | None:
        """Seconds, by the mean of the last steps; None after a session's first, which has nothing to compare with."""
        self._recent.append((step, self._clock()))
        (first, since), (last, until) = self._recent[0], self._recent[-1]
        return None if first == last else (self._steps - last) * (until - since) / (last - first)


def _rate(metrics: Mapping[str, float | None]) -> float | None:
    """Tokens that were learnt in a second of a supervised step."""
    tokens, seconds = metrics.get("tokens"), metrics.get("seconds")
    return tokens / seconds if tokens and seconds else None


def duration(seconds: float) -> str:
    """`0:07`, `12:40`, `3:05:00`: hours, minutes and seconds."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


class Lines:
    """Progress as plain lines: one at every tenth of the way, the first and the last among them."""

    def __init__(self, label: str, write: Callable[[str], None]) -> None:
        self._label, self._write = label, write
        self._tenth: int | None = None

    def __call__(self, done: int, total: int) -> None:
        tenth = 10 * done // max(1, total)
        if tenth != self._tenth:
            self._tenth = tenth
            self._write(f"{self._label}: {done} of {total}")


class Written:
    """Progress in a file, for whoever looks into it: no oftener than it looks, but for the end, as each takes some
    milliseconds, or far more on a slow disk, and an evaluation tells every rollout. clock: seconds."""

    def __init__(self, path: Path, label: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._label, self._clock = path, label, clock
        self._at: float | None = None

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if done < total and self._at is not None and now - self._at < POLL_SECONDS:
            return
        self._at = now
        write_whole(self._path, json.dumps({"label": self._label, "done": done, "total": total}))
