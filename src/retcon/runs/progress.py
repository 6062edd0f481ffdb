"""Progress of one command: a bar in a terminal, lines elsewhere, a file for a parent process."""

from __future__ import annotations

import atexit
import json
import os
import resource
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
"""How often the parent reads it."""

OnProgress = Callable[[int, int], None]
"""Takes (done, total)."""


def cost_file(progress: Path) -> Path:
    """Return the file beside a progress file that holds the command's cost."""
    return progress.with_suffix(".cpu_s")


def _write_cost(progress: Path) -> None:
    """Write the CPU seconds of this process and its children."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cost_file(progress).write_text(f"{sum(usage.ru_utime + usage.ru_stime for usage in usages):.2f}", encoding="ascii")


@contextmanager
def show_progress(label: str) -> Iterator[OnProgress]:
    """Return a function that shows the progress of `label`."""
    if path := os.environ.get(FILE):
        atexit.unregister(_write_cost)
        atexit.register(_write_cost, Path(path))
        yield ProgressFile(Path(path), label)
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
def show_steps(label: str, steps: int, stages: Sequence[str] = ()) -> Iterator[StepProgress]:
    """Return a callable that shows each step's metrics. In a terminal the lines stand above a bar. stages: names."""
    with show_progress(label) as tell:
        yield StepProgress(tell, label, steps, stages)


@contextmanager
def show_rollouts(label: str) -> Iterator[RolloutProgress]:
    """Return a callable that shows finished rollouts and the time left."""
    with show_progress(label) as tell:
        yield RolloutProgress(tell, label)


EVERY = 30.0
"""Seconds between two lines on rollouts."""
FIRST = 5.0
"""Seconds until the first."""


class RolloutProgress:
    """Display of rollouts, sampled tokens and time left: beside the bar in a terminal, else as lines."""

    def __init__(self, tell: OnProgress, label: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._label, self._clock = tell, label, clock
        self._began = clock()
        self._next = self._began + FIRST
        self._before: int | None = None
        self._done = self._total = self._tokens = 0

    def __call__(self, done: int, total: int) -> None:
        """Show that so many rollouts are done, those of earlier sessions included."""
        if (done, total) == (self._done, self._total):
            return
        if self._before is None:
            self._before = done - 1
        self._done, self._total = done, total
        if not isinstance(self._tell, Lines):
            self._tell(done, total)
        self._show()

    def sampled(self, tokens: int) -> None:
        """Show how many tokens this session has sampled so far."""
        self._tokens = tokens
        self._show()

    def _show(self) -> None:
        now = self._clock()
        new, left = self._done - (self._before or 0), self._total - self._done
        parts = _progress_parts(self._tokens, now - self._began, new, left)
        if isinstance(self._tell, Bar):
            self._tell.describe(", ".join((self._label, *parts)))
        elif now >= self._next or (self._total and not left):
            self._next = now + EVERY
            done = f"{self._done} of {self._total} rollouts" if self._total else "no rollout done yet"
            print_line(", ".join((f"{self._label}: {done}", *parts)))


def _progress_parts(tokens: int, seconds: float, done: int, left: int) -> list[str]:
    """Tokens and their rate, and when the rollouts that are left will be done. seconds: that it has taken so far."""
    spent = max(seconds, 1e-9)
    rate = [f"{tokens:,} tokens, {tokens / spent:,.0f} a second"] if tokens else []
    return rate + ([f"all rollouts in about {format_duration(spent / done * left)}"] if done > 0 and left else [])


class StepProgress:
    """Display of each step's metrics and, within a step, its rollouts. In a terminal beside the bar."""

    def __init__(
        self, tell: OnProgress, label: str, steps: int, stages: Sequence[str] = (), *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._tell, self._label, self._steps, self._clock = tell, label, steps, clock
        self._line = StepLine(steps, stages, clock=clock)
        self._step, self._began = 0, clock()
        self._next = self._began + FIRST

    def __call__(self, metrics: Mapping[str, float | None]) -> None:
        """Show a finished step."""
        print_line(self._line(metrics))
        if isinstance(self._tell, Bar):
            self._tell.describe(self._label)
        if not isinstance(self._tell, Lines):  # its lines would repeat this one
            self._tell(int(metrics["step"] or 0), self._steps)

    def rollouts(self, step: int, done: int, total: int, tokens: int) -> None:
        """Show the progress of a step's rollouts. tokens: sampled in it so far."""
        now = self._clock()
        if step != self._step:
            self._step, self._began = step, now - 1  # what comes first comes a second after its beginning
        left = total - done + (self._steps - step) * total
        parts = [f"step {step}/{self._steps}: {done} of {total} rollouts"]
        parts += _progress_parts(tokens, now - self._began, done, left)
        if isinstance(self._tell, Bar):
            self._tell.describe(f"{self._label}  {', '.join(parts)}")
        elif now >= self._next:
            self._next = now + EVERY
            print_line(", ".join(parts))


class Bar:
    """Progress as a bar of the terminal."""

    def __init__(self, progress: Progress, label: str) -> None:
        self._progress = progress
        self._bar = progress.add_task(label, total=None)

    def __call__(self, done: int, total: int) -> None:
        self._progress.update(self._bar, completed=done, total=total)

    def describe(self, label: str) -> None:
        self._progress.update(self._bar, description=label)


def print_place(where: Placement) -> None:
    """Print where a command computes, and keys that would speed it up."""
    for line in (where.line, *where.hints):
        print_line(line)


def print_line(line: str) -> None:
    """Print a line beside the progress."""
    # Through sys.stderr, which a bar on the terminal redirects to above itself.
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class StepFigure:
    """One figure of a step's line. metric: its name in metrics.jsonl; label before, unit behind."""

    metric: str
    label: str
    form: str
    unit: str = ""


FIGURES = (
    StepFigure("reward", "reward", "{:+.3f}"),
    StepFigure("pass_rate", "pass", "{:.1%}"),
    StepFigure("eval_pass_rate", "held out", "{:.1%}"),
    StepFigure("raw_failures", "failed calls", "{:.2f}"),
    StepFigure("loss", "loss", "{:.4f}"),
    StepFigure("accuracy", "accuracy", "{:.1%}"),
    StepFigure("margin", "margin", "{:+.3f}"),
    StepFigure("tokens_per_second", "", "{:,.0f}", " tokens/s"),
    StepFigure("kl", "kl", "{:.4f}"),
)
RECENT = 20
"""Latest steps from which the time left is estimated."""


class StepLine:
    """Formatter of a step's line.

    Args:
        steps: of the whole run, earlier sessions included.
        stages: names of its stages, in order.
        clock: seconds; `wall_s` of the metrics leaves out evaluations.
    """

    def __init__(self, steps: int, stages: Sequence[str] = (), *, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps, self._stages, self._clock = steps, stages, clock
        self._recent: deque[tuple[int, float]] = deque(maxlen=RECENT)

    def __call__(self, metrics: Mapping[str, float | None]) -> str:
        step = int(metrics["step"] or 0)
        parts = [f"step {step:>{len(str(self._steps))}}/{self._steps}"]
        if self._stages and (stage := int(metrics.get("stage") or 0)):
            parts.append(f"stage {stage}/{len(self._stages)} {self._stages[stage - 1]}")
        # In reinforcement learning, sign and size of the loss follow the advantages.
        left_out = {"loss"} if "reward" in metrics else set()
        for shown in FIGURES:
            value = metrics.get(shown.metric)
            if shown.metric == "tokens_per_second" and value is None:
                value = _rate(metrics)
            if value is not None and shown.metric not in left_out:
                parts.append(f"{shown.label} {shown.form.format(value)}{shown.unit}".strip())
        if (left := self._left(step)) is not None:
            parts.append(f"left {format_duration(left)}")
        return "  ".join(parts)

    def _left(self, step: int) -> float | None:
        """Seconds left by the mean of the last steps; None after a session's first."""
        self._recent.append((step, self._clock()))
        (first, since), (last, until) = self._recent[0], self._recent[-1]
        return None if first == last else (self._steps - last) * (until - since) / (last - first)


def _rate(metrics: Mapping[str, float | None]) -> float | None:
    """Tokens a second of a supervised step."""
    tokens, seconds = metrics.get("tokens"), metrics.get("seconds")
    return tokens / seconds if tokens and seconds else None


def format_duration(seconds: float) -> str:
    """Format as `0:07`, `12:40` or `3:05:00`: hours, minutes and seconds."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


class Lines:
    """Progress as plain lines, the first, the last and one per tenth."""

    def __init__(self, label: str, write: Callable[[str], None]) -> None:
        self._label, self._write = label, write
        self._tenth: int | None = None

    def __call__(self, done: int, total: int) -> None:
        tenth = 10 * done // max(1, total)
        if tenth != self._tenth:
            self._tenth = tenth
            self._write(f"{self._label}: {done} of {total}")


class ProgressFile:
    """Progress in a file, throttled to its reader's interval."""

    def __init__(self, path: Path, label: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._label, self._clock = path, label, clock
        self._at: float | None = None

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if done < total and self._at is not None and now - self._at < POLL_SECONDS:
            return
        self._at = now
        write_whole(self._path, json.dumps({"label": self._label, "done": done, "total": total}))
