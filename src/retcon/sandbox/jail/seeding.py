"""The global generators of random numbers that a call or a session starts with. Standard library only."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec

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
    later = set()
    for name in NAMES:
        if name in sys.modules:
            _give(sys.modules[name], seed)
        else:
            later.add(name)
    if later:
        sys.meta_path.insert(0, _Later(later, seed))


def _give(module: ModuleType, seed: int) -> None:
    with contextlib.suppress(AttributeError):  # a program's own module may bear the name
        module.seed(seed & 0xFFFFFFFF if module.__name__ in NUMPYS else seed)


class _Later:
    """Finds modules as the others in `sys.meta_path` do, and has them seeded once they are loaded."""

    def __init__(self, names: set[str], seed: int) -> None:
        self._names = names
        self._seed = seed

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._names:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                self._seed_after(spec.loader)
                return spec
        return None

    def _seed_after(self, loader: Loader) -> None:
        load = loader.exec_module

        def load_and_seed(module: ModuleType) -> None:
            load(module)
            _give(module, self._seed)

        loader.exec_module = load_and_seed  # type: ignore[method-assign]
