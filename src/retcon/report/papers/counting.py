"""Figures of papers that a comparison lacks, from metrics, results and the trajectories of evaluations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from retcon.core.types import REPLACED, Trajectory
from retcon.report.compared.reading import PLAIN, REPAIRED, ComparedRun
from retcon.store import jsonl
from retcon.store.compression import SUFFIXES

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
