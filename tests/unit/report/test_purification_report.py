"""The counts of a purification on a terminal, however narrow."""

from __future__ import annotations

import io

from rich.console import Console

from retcon.report.purification import purification_tables
from retcon.transcripts.purifier import Count


def test_what_a_narrow_console_shows_of_a_file_is_what_a_wide_one_does() -> None:
    count = Count(transcripts=1)
    for width in (20, 200):
        console = Console(file=io.StringIO(), width=width)
        for table in purification_tables(["a.jsonl"], [count], console):
            console.print(table)
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert all(title in text for title in ("a.jsonl", "format", "rows", "saved, B"))
