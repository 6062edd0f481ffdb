"""Sim(c_t, c'): how alike two programs are."""

from __future__ import annotations

import difflib


def similarity(a: str, b: str) -> float:
    """The Ratcliff-Obershelp ratio of two texts, in [0, 1]; 1 for two empty ones. Not symmetric: `a` is c_t, `b` is c'.

    autojunk stays off: it would drop frequent characters from texts of 200 and more, so that long programs look less
    alike than they are.
    """
    return difflib.SequenceMatcher(None, a, b, autojunk=False).ratio()
