"""Reinforcement, supervised and preference training. The package can be called: `retcon.train("own", …)`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A package that is also the function which users call."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Train a model on problems (`retcon.train.own.train`)."""
        from retcon.train.own import train

        return train(*args, **options)


sys.modules[__name__].__class__ = _Callable
