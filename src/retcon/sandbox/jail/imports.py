"""What is done to modules once they are loaded, preloaded or imported by the program later. Standard library only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec

Change = Callable[[ModuleType], None]


def after_import(changes: Mapping[str, Change]) -> None:
    """Call each function with the module of its name: now where it is loaded, else once it is.

    One that misses an attribute was given a module of the program's own that bears the name, and leaves it.
    """
    later = {}
    for name, change in changes.items():
        if name in sys.modules:
            _apply(change, sys.modules[name])
        else:
            later[name] = change
    if later:
        sys.meta_path.insert(0, _Later(later))


def _apply(change: Change, module: ModuleType) -> None:
    with contextlib.suppress(AttributeError):
        change(module)


class _Later:
    """Finds modules as the others in `sys.meta_path` do, and changes them once they are loaded."""

    def __init__(self, changes: Mapping[str, Change]) -> None:
        self._changes = changes

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._changes:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                self._change_after(spec.loader, self._changes[name])
                return spec
        return None

    def _change_after(self, loader: Loader, change: Change) -> None:
        load = loader.exec_module

        def load_and_change(module: ModuleType) -> None:
            load(module)
            _apply(change, module)

        loader.exec_module = load_and_change  # type: ignore[method-assign]
