"""How arms look: one colour and line style each, the same in every figure and on the page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle


@dataclass(frozen=True, slots=True)
class Look:
    """colour: hex. line: a matplotlib line style."""

    colour: str
    line: str


# Okabe and Ito's palette: told apart by colour-blind readers; the line styles by readers of grey prints.
COLD_START = Look("#555555", ":")
_KNOWN = {"baseline": Look("#0072B2", "--"), "saar": Look("#D55E00", "-"), "roc": Look("#009E73", "-.")}
_OTHERS = (Look("#CC79A7", "-"), Look("#E69F00", "--"), Look("#56B4E9", "-."), Look("#000000", ":"))


def looks(arms: Iterable[str]) -> dict[str, Look]:
    """A look for every arm; the shipped arms always have their own."""
    others = cycle(_OTHERS)
    return {arm: _KNOWN.get(arm) or next(others) for arm in arms}
