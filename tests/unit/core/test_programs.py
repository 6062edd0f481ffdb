from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from retcon.core.programs import parsed


def test_a_program_is_a_tree() -> None:
    tree = parsed("a = 1\nprint(a)")
    assert tree is not None
    assert list(map(type, tree.body)) == [ast.Assign, ast.Expr]


@pytest.mark.parametrize("code", ["print((1", "a\0", "\ud800", "(" * 5000, "-" * 100_000 + "1"])
def test_what_python_does_not_take_is_none(code: str) -> None:
    assert parsed(code) is None


def test_python_says_nothing_of_odd_programs() -> None:
    code = r"""from retcon.core.programs import parsed; assert parsed("print(1if 1else 2, '\\d')")"""
    told = subprocess.run([sys.executable, "-W", "default", "-c", code], capture_output=True, text=True, check=True)
    assert told.stderr == ""
