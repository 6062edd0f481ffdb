"""What a text shows and names, and how a program stands in what repeats it."""

from __future__ import annotations

import json

import pytest

from retcon.purify.programs import parse
from retcon.purify.words import decimals, mentions, programs, rewrite_text, tokens


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("We go.\n```python\nx = 1\n```\nDone.", ["```python\nx = 1\n```"]),
        ("<solution>X = 1</solution>\n```\ny = 2\n```", ["X = 1", "```\ny = 2\n```"]),
        ("```\ny = 2\n```\n<solution>\nx = 1\n</solution>", ["```\ny = 2\n```", "\nx = 1\n"]),
        ("<solution>\n```\nx = 1\n```\n</solution>", ["```\nx = 1\n```"]),
        ("<solution>so it is</solution>", []),
        ("<solution> x = 1 </solution>", [" x = 1 "]),
        ("<solution>  \n  x = 1\n  y = 2\n</solution>", ["  \n  x = 1\n  y = 2\n"]),  # as a list's item is indented
    ],
)
def test_programs_are_what_is_fenced_and_solutions_that_python_reads(text: str, shown: list[str]) -> None:
    assert [text[start:end] for start, end in programs(text)] == shown


def test_names_and_numbers_are_told_apart_by_their_length_and_their_point() -> None:
    text = "We take `r1` of 42, 12345, 2.50 for root(7)."
    assert tokens(text) == {"take", "42", "12345", "2.5", "for", "root", "7"}
    assert tokens(text, shortest=4) == {"take", "12345", "2.5", "root"}
    assert mentions(text) == {"r1", "12345", "2.5", "root"}
    assert mentions("The roots are 98,765 and 4.") == {"98765"}, "numbers with commas, too"
    assert decimals(text) == {"2.5"}


@pytest.mark.parametrize(
    ("text", "anew"),
    [
        (json.dumps({"result": "é = 1 < 2\nx"}), json.dumps({"result": "y"})),
        (json.dumps({"result": "é = 1 < 2\nx"}, ensure_ascii=False), json.dumps({"result": "y"})),
        (r'"\u003cpy> é = 1 < 2\nx"', r'"\u003cpy> y"'),  # what stands around it stays as it is written
        (r'"\u00e8 \u00e9 = 1 \u003c 2\nx"', r'"\u00e8 y"'),
        (r'"\u00e9 = 1 \u003c 2\nx {"', '"y {"'),
        (r'", "\u00e9 = 1 \u003c 2\nx"', r'", "\u00e9 = 1 \u003c 2\nx"'),  # a string that nothing opens is none
        (r'A 5" root: {"code": "\u00e9 = 1 \u003c 2\nx", "of": {}}', 'A 5" root: {"code": "y", "of": {}}'),
    ],
)
def test_a_program_is_written_anew_as_it_stands_there(text: str, anew: str) -> None:
    assert rewrite_text(text, "é = 1 < 2\nx", "y") == anew


def test_programs_are_read_to_100_levels_and_numbers_to_14000_bits() -> None:
    assert parse("x" + "[0]" * 97) is not None
    assert parse("x" + "[0]" * 98) is None
    assert parse(f"x = 0x{'f' * 3500}") is not None
    assert parse(f"x = 0x1{'f' * 3500}") is None
