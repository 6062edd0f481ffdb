"""How long trajectories get, learnt from those that ended and from those that are still open."""

from __future__ import annotations

import math
from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

RATIO = 1.1
"""Of one bin's edge to the next one's."""
LEAST, BINS = 16, 128
EDGES = [0.0, *(LEAST * RATIO**n for n in range(BINS - 1)), math.inf]
"""Tokens; the last finite edge is at about 2.6 million."""
_EDGES = np.array(EDGES)
HORIZONS = 16
"""Points of the future at which the room that trajectories will take is looked at."""
FRESH = 32
"""Trajectories that may have ended since the table was made, at least."""
REMEMBERED = 16_384
"""Ended trajectories that count in full; older ones count less, as a model in training changes."""


class Lengths:
    """The Kaplan–Meier estimate of trajectories' final tokens (prompt, what was sampled and what was shown).

    Those that end first are short; that the others are longer already is what an average of the ended ones leaves out,
    and what this estimate counts (Kaplan and Meier 1958: an open trajectory is a censored observation). Before any
    ended, the estimate is the worst case.
    """

    def __init__(self) -> None:
        self._ended = [0.0] * BINS
        self._open = [0] * BINS
        self._ceiling = 0
        self._changed = True
        self._ends = self._since = 0.0
        self._rest = np.zeros(BINS)
        self._lives = np.ones((BINS, HORIZONS))
        self._ahead = np.zeros(HORIZONS)

    def moved(self, before: int | None, tokens: int | None) -> None:
        """An open trajectory has `tokens` now and had `before` (None: it was not there, or is no longer)."""
        if before is not None:
            self._open[_bin(before)] -= 1
        if tokens is not None:
            self._open[_bin(tokens)] += 1

    def ended(self, tokens: int) -> None:
        """A trajectory is over, with so many tokens."""
        self._ended[_bin(tokens)] += 1
        self._ends += 1
        self._since += 1

    def can_reach(self, tokens: int) -> None:
        """A call that may go up to so many tokens: none was known to get longer."""
        if tokens > self._ceiling:
            self._ceiling, self._changed = tokens, True

    def remaining(self, tokens: float) -> float:
        """Tokens that a trajectory of `tokens` is expected to add."""
        self._refresh()
        return min(max(0.0, self._ceiling - tokens), float(self._rest[_bin(tokens)]))

    def room(self, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """(2, HORIZONS) tokens that trajectories of these sizes, (N,), are expected to take together when each that is
        still there has added 0, and more and more tokens, and the variance of that: each counts with the chance that it
        gets so long. What two sets of trajectories take is the sum of both."""
        self._refresh()
        lives = self._lives[np.searchsorted(_EDGES, sizes, side="right") - 1]
        then = sizes[:, None] + self._ahead
        return np.stack(((lives * then).sum(0), (lives * (1 - lives) * then**2).sum(0)))

    def _refresh(self) -> None:
        if not self._changed and self._since <= max(FRESH, self._ends / 16):
            return
        if self._ends > 2 * REMEMBERED:
            self._ended = [count / 2 for count in self._ended]
            self._ends /= 2
        survives = np.interp(self._points(), np.minimum(EDGES, self._ceiling + 1.0), self._survival())
        now = np.maximum(survives[:, :1], 1e-12)
        self._lives = np.where(self._points() <= self._ceiling, np.minimum(1.0, survives / now), 0.0)
        self._lives[:, 0] = 1.0  # they are there
        self._rest = np.asarray(np.trapezoid(self._lives, self._ahead, axis=1))
        self._changed, self._since = False, 0.0

    def _points(self) -> NDArray[np.float64]:
        """(BINS, HORIZONS) tokens: the middle of each bin, and what may be added. Sets how far is looked ahead."""
        self._ahead = self._ceiling * np.linspace(0, 1, HORIZONS) ** 1.5
        edges = np.minimum(EDGES, self._ceiling)
        return np.asarray((edges[:-1] + edges[1:])[:, None] / 2 + self._ahead)

    def _survival(self) -> list[float]:
        """(BINS + 1,) of the edges: the share of trajectories that get longer."""
        risk = sum(self._ended) + sum(self._open)
        lives = [1.0]
        for ended, open_ in zip(self._ended, self._open, strict=True):
            lives.append(lives[-1] * (1 - ended / risk) if ended else lives[-1])
            risk -= ended + open_
        return lives


def _bin(tokens: float) -> int:
    return min(BINS - 1, bisect_right(EDGES, tokens) - 1)
