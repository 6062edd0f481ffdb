"""Progress of one command: a bar in a terminal, plain lines elsewhere, and a file for whoever started it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from retcon.store.whole import write_whole

if TYPE_CHECKING:
    from retcon.models.devices import Placement

FILE = "RETCON_PROGRESS"
"""Environment variable: a file that a parent process reads `{"label", "done", "total"}` from."""

Tell = Callable[[int, int], None]
"""Takes (done, total)."""


@contextmanager
def telling(label: str) -> Iterator[Tell]:
    """A function that shows how far `label` has come."""
    if path := os.environ.get(FILE):
        yield lambda done, total: _write(Path(path), label, done, total)
        return
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(label, lambda line: console.print(line, highlight=False, soft_wrap=True))
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def tell_place(where: Placement) -> None:
    """Say where a command computes, and what its recipe could gain there."""
    # Through sys.stderr, which a bar on the terminal redirects to above itself.
    for line in (where.line, *where.hints):
        typer.echo(line, err=True)


class Lines:
    """Progress as plain lines: one at every tenth of the way, the first and the last among them."""

    def __init__(self, label: str, write: Callable[[str], None]) -> None:
        self._label, self._write = label, write
        self._tenth: int | None = None

    def __call__(self, done: int, total: int) -> None:
        tenth = 10 * done // max(1, total)
        if tenth != self._tenth:
            self._tenth = tenth
            self._write(f"{self._label}: {done} of {total}")


def _write(path: Path, label: str, done: int, total: int) -> None:
    write_whole(path, json.dumps({"label": label, "done": done, "total": total}))
