"""Failures by the statuses of tools, and runs of failures."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import get_args

from retcon.core.errors import nearest
from retcon.core.types import Status, Turn
from retcon.purify.tools import is_noop

FAILURES: frozenset[Status] = frozenset({"error", "timeout", "limit", "malformed"})


def check_failures(failures: Set[Status]) -> None:
    """Raise ValueError for a status that is no failure."""
    for status in failures - FAILURES:
        why = "never counts" if status in get_args(Status) else f"is not a status{nearest(status, FAILURES)}"
        raise ValueError(f"failures: {status!r} {why}; choose from {', '.join(sorted(FAILURES))}")


def has_failed(turn: Turn, failures: Set[Status]) -> bool:
    """Whether a call of this turn failed. A turn with an infrastructure fault did not, nor one already judged."""
    if turn.repair is not None:
        return False
    statuses = [o.status for o in turn.observations]
    return not failures.isdisjoint(statuses) and "infrastructure" not in statuses


def failed(turn: Turn) -> bool:
    """Whether a turn with all outputs failed and was not judged before."""
    return len(turn.calls) == len(turn.observations) and has_failed(turn, FAILURES)


def lacks_outputs(turn: Turn) -> bool:
    """Whether a call failed in a turn that misses an output."""
    found = turn.repair is None and not FAILURES.isdisjoint([o.status for o in turn.observations])
    return found and not failed(turn)


def works(turn: Turn) -> bool:
    """Whether all calls of a turn succeeded, beyond doubt."""
    if not turn.calls or len(turn.calls) != len(turn.observations) or turn.repair is not None:
        return False
    return all(o.status == "ok" and o.rule is None for o in turn.observations)


def turn_does_nothing(turn: Turn) -> bool:
    """Whether all calls of a turn worked, and did nothing (`pass`, comments)."""
    return works(turn) and all(map(is_noop, turn.calls))


def is_fix(turn: Turn) -> bool:
    """Whether an attempt can replace a failure: all calls succeeded, and one of them does something."""
    return works(turn) and not all(map(is_noop, turn.calls))


def user_follows(turn: Turn) -> bool:
    """Whether a user spoke between this turn and the next."""
    return "prompt" in [s.kind for s in turn.segments]


def run_starts(turns: Sequence[Turn]) -> list[int]:
    """Find where runs of failures begin; calls that do nothing continue a run, a user's words end it."""
    starts: list[int] = []
    running = False
    for n, turn in enumerate(turns):
        if failed(turn):
            if not running:
                starts.append(n)
            running = True
        elif not (running and turn_does_nothing(turn)):
            running = False
        running = running and not user_follows(turn)
    return starts


def run_end(turns: Sequence[Turn], start: int) -> tuple[int, str | None]:
    """Find the turn after a run of failures; if no fix, say why."""
    at = start
    while failed(turns[at]) or turn_does_nothing(turns[at]):
        at += 1
        if user_follows(turns[at - 1]):
            return at, "user"
        if at == len(turns):
            return at, "end"
    if works(turns[at]):
        return at, None
    return at, "unclear" if turns[at].calls else "answered"
