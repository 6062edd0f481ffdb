"""Tables of the counts of an offline purification."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from retcon.core.texts import counted
from retcon.purify.offline import REASONS
from retcon.report.tables import ANY_WIDTH
from retcon.transcripts.purifier import Count, total
from retcon.transcripts.verdicts import RULES

_TYPES = 8
_NAME, _LEAST = 30, 8
"""Characters of a file's name in a table: about the most, and the fewest."""


def purification_tables(names: Sequence[str], counts: Sequence[Count], console: Console) -> Iterator[RenderableType]:
    """Yield tables of files, failures by type, and reasons for leaving failures. Files take one line each, or a few
    where the console is too narrow."""
    whole = total(counts)
    rows = [*zip(names, counts, strict=True), *([("all", whole)] if len(names) > 1 else [])]
    columns = _columns(whole)
    least = _files([(name[:_LEAST], count) for name, count in rows], columns)
    if console.measure(least, options=console.options.update(width=ANY_WIDTH)).maximum <= console.width:
        yield _files(rows, columns)
    else:
        for name, count in rows:
            yield Text(name, "bold", overflow="fold")
            yield _file(count, columns)
    if whole.failed:
        yield _listed("failed calls, by the rule that says so", whole.rules, RULES)
        kinds = dict(whole.types.most_common(_TYPES))
        rest = whole.failed - sum(kinds.values())
        yield _listed("by exception", kinds | ({"others": rest} if rest else {}), {})
    if whole.left:
        yield _listed("failed turns that stay, by reason", whole.left, REASONS)


def remarks(files: Sequence[Path], counts: Sequence[Count]) -> Iterator[str]:
    """Yield remarks on unread records and mixed formats."""
    for file, count in zip(files, counts, strict=True):
        if count.bad:
            yield f"{file}: {counted(count.bad, 'record')} could not be read: {_places(count.bad_at, count.bad)}"
        if len(count.formats) > 1:
            mixed = ", ".join(f"{name} {number:,}" for name, number in count.formats.most_common())
            yield f"{file}: mixed formats: {mixed}; --format NAME reads all as one"
        if count.unread:
            signs = ", ".join(sign for sign, _ in count.unread_as.most_common(3))
            yield (
                f"{file}: {count.unread} of {count.transcripts} transcripts have no call that can be read, though they "
                f"have signs of tool use ({signs}): {_places(count.unread_at, count.unread)}"
            )
        elif count.transcripts and not count.calls:
            yield f"{file}: no calls in {counted(count.transcripts, 'transcript')}: nothing to purify"


def _places(numbers: Sequence[int], of: int) -> str:
    return f"records {', '.join(map(str, numbers))}{', …' if of > len(numbers) else ''}"


def shorten_names(names: Sequence[str], width: int) -> Sequence[str]:
    """Shorten file names to about `width` characters, keeping different names different. Common beginnings and ends go
    first, then the middle of each."""
    long = [name for name in names if len(name) > width]
    if not long:
        return names
    begin = _shared(long)
    begin = begin[: max(begin.rfind(c) for c in "/-_. ") + 1]
    end = len(_shared([name[len(begin) :][::-1] for name in long])) if len(set(long)) > 1 else 0
    cut = [_without(name, len(begin), end) if len(name) > width else name for name in names]
    half = (width - 1) // 2
    shown = [name if len(name) <= width else f"{name[:half]}…{name[-half:]}" for name in cut]
    # Names that differ in their middles alone stay long: the table breaks them.
    return [full if shown.count(short) > 1 else short for full, short in zip(cut, shown, strict=True)]


def _shared(names: Sequence[str]) -> str:
    """Common prefix of all names."""
    return "".join(c[0] for c in takewhile(lambda c: len(set(c)) == 1, zip(*names, strict=False)))


def _without(name: str, begin: int, end: int) -> str:
    return f"{'…' * bool(begin)}{name[begin : len(name) - end]}{'…' * bool(end)}"


def _columns(whole: Count) -> dict[str, Callable[[Count], int]]:
    """Columns for each file. whole: the counts of all files."""
    columns: dict[str, Callable[[Count], int]] = {
        "rows": lambda c: c.transcripts,
        "calls": lambda c: c.calls,
        "failed": lambda c: c.failed,
        "shallow": lambda c: c.shallow,
        "deep": lambda c: c.deep,
        "left": lambda c: c.left.total(),
        "dropped": lambda c: c.dropped,
        "bad": lambda c: c.bad,
        "saved, B": lambda c: c.bytes_before - c.bytes_after,
    }
    return {title: of for title, of in columns.items() if title not in ("dropped", "bad") or of(whole)}


def _files(rows: Sequence[tuple[str, Count]], columns: Mapping[str, Callable[[Count], int]]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("file", overflow="fold")  # the one that gives way: names are single words
    table.add_column("format", no_wrap=True, max_width=10)
    for title in columns:
        table.add_column(title, justify="right", no_wrap=True)
    for name, (_, count) in zip(shorten_names([name for name, _ in rows], _NAME), rows, strict=True):
        table.add_row(
            Text(name, "bold" if name == "all" else ""),
            ", ".join(count.formats) or "–",
            *(f"{of(count):,}" for of in columns.values()),
        )
    return table


def _file(count: Count, columns: Mapping[str, Callable[[Count], int]]) -> Table:
    table = Table(box=None, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("format", ", ".join(count.formats) or "–")
    for title, of in columns.items():
        table.add_row(title, f"{of(count):,}")
    return table


def _listed(title: str, counts: Mapping[str, int], meaning: Mapping[Any, str]) -> Table:
    table = Table(box=None, title=title, title_justify="left", title_style="bold", show_header=False, pad_edge=False)
    table.add_column(justify="right")
    table.add_column(style="cyan")
    table.add_column(style="dim")
    for name, number in sorted(counts.items(), key=lambda item: -item[1]):
        table.add_row(f"{number:,}", name, meaning.get(name, ""))
    return table
