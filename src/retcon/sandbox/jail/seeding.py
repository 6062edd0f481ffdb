"""The global generators of random numbers that a call or a session starts with. Standard library only."""

from __future__ import annotations

import os
import sys
from functools import partial
from types import ModuleType

from retcon.sandbox.jail.imports import after_import

NUMPYS = ("numpy.random", "sympy.core.random")
"""Modules with a generator that takes seeds of 32 bits."""
NAMES = ("random", *NUMPYS)


def reseed(seed: int | None = None) -> None:
    """Give preloaded generators of random numbers the state of `seed`, or a fresh one; that `random` gives itself.

    Those that are not preloaded get the state of `seed` when they are imported, and have a fresh one without. With a
    number: without one numpy takes five times as long, in each call, whether it draws a number or not.
    """
    if seed is None:
        for name in NUMPYS:
            if name in sys.modules:
                _give(sys.modules[name], int.from_bytes(os.urandom(4), "big"))
        return
    after_import(dict.fromkeys(NAMES, partial(_give, seed=seed)))


def _give(module: ModuleType, seed: int) -> None:
    module.seed(seed & 0xFFFFFFFF if module.__name__ in NUMPYS else seed)
