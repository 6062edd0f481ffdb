"""The counts of an offline purification as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from retcon.purify.offline import REASONS
from retcon.transcripts.failures import RULES
from retcon.transcripts.report import Count, total

_TYPES = 8


def purification_tables(names: Sequence[str], counts: Sequence[Count]) -> Iterator[Table]:
    """One line a file, then what failed by rule and type, then why failures stay."""
    yield _files(names, counts)
    whole = total(counts)
    if whole.failed:
        yield _listed("failed calls, by the rule that says so", whole.rules, RULES)
        kinds = dict(whole.types.most_common(_TYPES))
        rest = whole.failed - sum(kinds.values())
        yield _listed("by exception", kinds | ({"others": rest} if rest else {}), {})
    if whole.left:
        yield _listed("failed turns that stay, by reason", whole.left, REASONS)


def _files(names: Sequence[str], counts: Sequence[Count]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("file", overflow="ellipsis")  # the one that gives way: names are single words
    table.add_column("format", no_wrap=True, max_width=9)
    whole = total(counts)
    columns = {
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
    columns = {title: of for title, of in columns.items() if title not in ("dropped", "bad") or of(whole)}
    for title in columns:
        table.add_column(title, justify="right", no_wrap=True)
    rows = list(zip(names, counts, strict=True))
    for name, count in [*rows, ("all", whole)] if len(rows) > 1 else rows:
        table.add_row(
            Text(name, "bold" if name == "all" else ""),
            ", ".join(count.formats) or "–",
            *(f"{of(count):,}" for of in columns.values()),
        )
    return table


def _listed(title: str, counts: Mapping[str, int], meaning: Mapping[Any, str]) -> Table:
    table = Table(box=None, title=title, title_justify="left", title_style="bold", show_header=False, pad_edge=False)
    table.add_column(justify="right")
    table.add_column(style="cyan")
    table.add_column(style="dim")
    for name, number in sorted(counts.items(), key=lambda item: -item[1]):
        table.add_row(f"{number:,}", name, meaning.get(name, ""))
    return table
