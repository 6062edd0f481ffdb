"""What counts as a failure: by the status that a tool reported."""

from __future__ import annotations

from collections.abc import Set
from typing import get_args

from retcon.core.errors import nearest
from retcon.core.types import Status, Turn

FAILURES: frozenset[Status] = frozenset({"error", "timeout", "limit", "malformed"})


def check_failures(failures: Set[Status]) -> None:
    """Raises ValueError for what is no status of a failure."""
    for status in failures - FAILURES:
        why = "never counts" if status in get_args(Status) else f"is not a status{nearest(status, FAILURES)}"
        raise ValueError(f"failures: {status!r} {why}; choose from {', '.join(sorted(FAILURES))}")


def has_failed(turn: Turn, failures: Set[Status]) -> bool:
    """Whether a call of this turn failed. A turn with an infrastructure fault did not, nor one already judged."""
    statuses = {o.status for o in turn.observations}
    return turn.repair is None and "infrastructure" not in statuses and not failures.isdisjoint(statuses)
