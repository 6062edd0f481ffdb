"""Ctrl-C: what is kept and how to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Interrupted(Exception):
    """The user pressed Ctrl-C; the message says what is kept and how to continue."""


@contextmanager
def interruptible(message: str | Callable[[], str]) -> Iterator[None]:
    """Turns Ctrl-C inside the block into `Interrupted` with `message`, or with what it says by then."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(message if isinstance(message, str) else message()) from None
