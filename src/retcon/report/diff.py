"""What a purifier replaced: failure and fix, line by line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from retcon.core.types import RepairRecord, Trajectory, Turn
from retcon.purify.splice import program
from retcon.report.rows import SIDE_BY_SIDE, plain

_OUTPUT_LINES = 12
MOST_LINES = 1000
"""Of a text that is aligned with another; longer ones, which take difflib minutes, are shown line beside line."""
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_STYLES = {" ": "dim", "-": "red", "+": "green"}


@dataclass(frozen=True, slots=True)
class Change:
    """A turn that a purifier looked at. number: 1-based, in the purified history."""

    trajectory: Trajectory
    number: int

    @property
    def turn(self) -> Turn:
        return self.trajectory.turns[self.number - 1]

    @property
    def repair(self) -> RepairRecord:
        repair = self.turn.repair
        if repair is None:
            raise ValueError(f"turn {self.number} of {self.trajectory.id} was not judged")
        return repair


def changes(trajectory: Trajectory) -> list[Change]:
    """The turns of a trajectory that a purifier looked at."""
    return [Change(trajectory, n) for n, turn in enumerate(trajectory.turns, 1) if turn.repair is not None]


def show_change(change: Change) -> RenderableType:
    """Heading, reason, then failure and fix: side by side where there is room, else one below the other."""
    first = change.turn.raw()[0]
    rows: list[RenderableType] = [_heading(change), _facts(change, first)]
    if change.repair.decision in ("described", "unrepaired", "answered"):
        rows.append(Group(*_lines(" ", _said(first)), *_lines("-", program(first.calls)), *_lines("!", _output(first))))
    else:
        skipped = len(change.turn.abandoned) - 2
        rows.append(_Compared(first, change.turn))
        if skipped > 0:
            rows.append(
                plain(f"and {skipped} failed attempt{'s' * (skipped > 1)} in between, taken out too", "dim italic")
            )
    return Group(*rows)


@dataclass(frozen=True, slots=True)
class _Compared:
    """A failed turn and what stands in its place."""

    before: Turn
    after: Turn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        pairs = [
            *_aligned(_said(self.before), _said(self.after)),
            ("", ""),
            *_aligned(program(self.before.calls), program(self.after.calls)),
            ("", ""),
        ]
        outputs = _output(self.before).split("\n"), _output(self.after).split("\n")
        if options.max_width < SIDE_BY_SIDE:
            for left, right in pairs:
                yield from _unified(left, right)
            yield from _lines("!", "\n".join(outputs[0]))
            yield from _lines("=", "\n".join(outputs[1]))
            return
        table = Table.grid(expand=True, padding=(0, 1))
        for _ in range(2):
            table.add_column(ratio=1, overflow="fold")
        for left, right in pairs:
            same = left == right
            table.add_row(_line(" " if same else "-", left), _line(" " if same else "+", right))
        for n in range(max(map(len, outputs))):
            failed, worked = (lines[n] if n < len(lines) else "" for lines in outputs)
            table.add_row(_line("!", failed, "yellow"), _line("=", worked, "cyan"))
        yield table


def _heading(change: Change) -> RenderableType:
    return Rule(
        plain(f"{change.trajectory.id} · turn {change.number} · {change.repair.decision}", "bold"), align="left"
    )


def _facts(change: Change, first: Turn) -> Text:
    failure = next((o for o in first.observations if o.status not in ("ok", "infrastructure")), None)
    parts = [origin.source] if (origin := change.trajectory.origin) is not None else []
    if failure is not None:
        rule = f" (rule: {failure.rule})" if failure.rule is not None else ""
        parts.append(f"failed: {failure.error_type or failure.status}{rule}")
    if change.repair.similarity is not None:
        parts.append(f"similarity {change.repair.similarity:.2f}")
    if change.repair.reason:
        parts.append(change.repair.reason)
    return plain(" · ".join(parts), "cyan")


def _said(turn: Turn) -> str:
    """What the model wrote before its first call."""
    return turn.text[: turn.calls[0].char].strip("\n") if turn.calls else turn.text


def _output(turn: Turn) -> str:
    """The outputs without their colours, cut in the middle where they are long."""
    lines = _ANSI.sub("", "\n".join(o.text.strip("\n") for o in turn.observations)).splitlines()
    if len(lines) > _OUTPUT_LINES:
        half = _OUTPUT_LINES // 2
        lines = [*lines[:half], f"… {len(lines) - 2 * half} lines …", *lines[-half:]]
    return "\n".join(lines) or "(no output)"


def _aligned(before: str, after: str) -> Iterator[tuple[str | None, str | None]]:
    """Lines of two texts next to each other; None where the other has a line more."""
    a, b = before.split("\n") if before else [], after.split("\n") if after else []
    if max(len(a), len(b)) > MOST_LINES:
        yield from zip_longest(a, b)
        return
    for _, a0, a1, b0, b1 in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        for n in range(max(a1 - a0, b1 - b0)):
            yield a[a0 + n] if a0 + n < a1 else None, b[b0 + n] if b0 + n < b1 else None


def _unified(left: str | None, right: str | None) -> Iterator[Text]:
    if left == right:
        yield _line(" ", left)
        return
    if left is not None:
        yield _line("-", left)
    if right is not None:
        yield _line("+", right)


def _lines(mark: str, text: str) -> Sequence[Text]:
    style = {"!": "yellow", "=": "cyan"}.get(mark)
    return [_line(mark, line, style) for line in text.split("\n")]


def _line(mark: str, text: str | None, style: str | None = None) -> Text:
    if text is None:
        return Text("")
    return plain(f"{mark} {text.removesuffix(chr(13))}", style or _STYLES.get(mark, ""))
