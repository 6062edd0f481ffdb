"""The counts of a purification on a terminal, however narrow."""

from __future__ import annotations

import io
from collections import Counter

import pytest
from rich.console import Console

from retcon.report.purification import purification_tables
from retcon.transcripts.purifier import Count

TITLES = ["rows", "calls", "failed", "shallow", "deep", "left", "saved,", "B"]


@pytest.mark.parametrize("width", [30, 40, 80])
def test_names_and_numbers_are_whole_or_have_a_line_each(width: int) -> None:
    names = ["first_transcripts.jsonl", "second_transcripts.jsonl"]
    counts = [
        Count(formats=Counter(messages=n), transcripts=n, calls=2 * n, bytes_before=10**6 * n, bytes_after=n)
        for n in (3000, 4000)
    ]
    console = Console(file=io.StringIO(), width=width)
    for table in purification_tables(names, counts, console):
        console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    assert all(f"{number:,}" in text for number in (3000, 4000, 7000, 6000, 8000, 14000, 2999997000))
    heads = text.splitlines()[0].split()
    assert heads == (["file", "format", *TITLES] if width == 80 else names[:1])
    assert "…" not in text


def test_what_a_narrow_console_shows_of_a_file_is_what_a_wide_one_does() -> None:
    count = Count(transcripts=1)
    for width in (20, 200):
        console = Console(file=io.StringIO(), width=width)
        for table in purification_tables(["a.jsonl"], [count], console):
            console.print(table)
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert all(title in text for title in ("a.jsonl", "format", "rows", "saved, B"))
