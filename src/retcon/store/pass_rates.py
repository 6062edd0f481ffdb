"""Pass rates of tasks in JSON Lines, appended as they are measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from retcon.core.errors import RecordError
from retcon.store.lines import LineAppender


class PassRate(msgspec.Struct, frozen=True, omit_defaults=True):
    """Share of rollouts in which a model solved a task. model: fingerprint of its folder. passed: those with a positive
    reward, of `rollouts` without infrastructure faults. content: fingerprint of the task, None from an earlier version.
    harness: import path and code hash of the one that made them, empty: Retcon's own loop, None: an earlier version."""

    task: str
    model: str
    passed: int
    rollouts: int
    content: str | None = None
    harness: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.passed <= self.rollouts or not self.rollouts:
            raise ValueError(f"{self.passed} of {self.rollouts} rollouts passed: impossible")

    @property
    def rate(self) -> float:
        return self.passed / self.rollouts


class PassRateFile:
    """Appender of measurements, unbuffered; use it in a `with`. Raises RecordError if the file cannot be written."""

    def __init__(self, path: Path) -> None:
        self._lines = LineAppender(path)

    def add(self, measured: PassRate) -> None:
        """Append one line."""
        self._lines.add(msgspec.json.encode(measured) + b"\n", name=f"the pass rate of {measured.task}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()


def read_pass_rates(path: Path) -> Iterator[PassRate]:
    """Read a file's measurements, in order. Empty lines and unknown fields are ignored.

    Raises RecordError, which begins `FILE, line N:`, at a line that is not a measurement.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _read_line(line, f"{path}, line {number}")
    except FileNotFoundError:
        raise RecordError(f"{path} does not exist; `retcon difficulty` makes one") from None
    except OSError as error:
        raise RecordError(f"{path}: the pass rates cannot be read: {error}") from error


def select_model(measured: Iterator[PassRate], model: str) -> dict[str, PassRate]:
    """Map tasks to measurements with `model`: of several, the one with most rollouts, the later one if equal or of
    other content."""
    best: dict[str, PassRate] = {}
    for one in measured:
        there = best.get(one.task)
        newer = there is None or one.rollouts >= there.rollouts or one.content != there.content
        if one.model == model and newer:
            best[one.task] = one
    return best


def _read_line(line: bytes, where: str) -> PassRate:
    try:
        return msgspec.json.decode(line, type=PassRate)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        cut = (
            ""
            if line.endswith(b"\n")
            else "cut off in the middle (was its writer stopped?); `retcon difficulty` mends it: "
        )
        raise RecordError(f"{where}: {cut}not a pass rate: {error}") from error
