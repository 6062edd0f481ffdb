from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from retcon.core.texts import parse_literal, parse_program


@pytest.mark.parametrize("code", ["print((1", "a\0", "\ud800", "(" * 5000, "-" * 100_000 + "1"])
def test_what_python_does_not_take_is_none(code: str) -> None:
    assert parse_program(code) is None


@pytest.mark.parametrize(
    "code",
    [
        r"""from retcon.core.texts import parse_program; assert parse_program("print(1if 1else 2, '\\d')")""",
        r"""from retcon.core.texts import parse_literal; assert parse_literal("['\\d']") is None""",
    ],
)
def test_python_says_nothing_of_odd_programs_and_lists(code: str) -> None:
    told = subprocess.run([sys.executable, "-W", "default", "-c", code], capture_output=True, text=True, check=True)
    assert told.stderr == ""


@pytest.mark.parametrize(
    "value", [["a", "b"], ["it's", 'a "b"', "a\\d\n"], [], {"inputs": [["1"]], "outputs": [None, True, 0.5]}, [["a"]]]
)
def test_what_python_writes_is_read(value: Any) -> None:
    assert parse_literal(f" {value!r}\n") == value


@pytest.mark.parametrize(
    "text",
    [
        *("['a' 'b']", "[1 2]", "['a' 'b', 'c']", "[a, b]", "['a', ('b', 'c')]", "[{'a'}]", "{1: 'a'}", "[b'a']"),
        *("[1e999]", "'a'", "7", "", "['a'] + ['b']", "[array(['a'], dtype=object)]", "['a", "[" * 5000, "[f'a']"),
        "[" + "7" * 5000 + "]",
    ],
)
def test_what_json_has_not_or_python_writes_otherwise_is_not_read(text: str) -> None:
    assert parse_literal(text) is None
