"""Tests of programs that nothing in them calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from datafiles import write
from retcon.tasks.data.fields import DataError
from retcon.tasks.data.settings import FileTaskSettings
from retcon.tasks.grading.cases import Check, read_tests
from retcon.tasks.types import Task

FUNCTION = "def test_f():\n    assert f(1) == 2\n"
CASE = "import unittest\nclass T(unittest.TestCase):\n    def test_a(self): self.assertEqual(f(1), 2)\n"
SUITE = "__import__('unittest').TestSuite([T('test_{}')]).debug()"


def codes(*tests: str, **meta: Any) -> list[str]:
    given = {"tests": list(tests)} if tests else meta
    cases = read_tests(Task("mine/7", "?", "", meta=given)).cases
    return [case.code for case in cases if isinstance(case, Check)]


def ends(*tests: str) -> list[str]:
    return [code.splitlines()[-1] for code in codes(*tests)]


@pytest.mark.parametrize(
    ("test", "calls"),
    [
        (FUNCTION, ["test_f()"]),
        (FUNCTION + "def test_g(n=3): assert f(n)\ndef other(): pass", ["test_f()", "test_g()"]),
        ("async def test_f(): assert await f(1) == 2", ["__import__('asyncio').run(test_f())"]),
        ("class TestF:\n    def test_a(self): assert f(1) == 2", ["TestF().test_a()"]),
        (CASE + "    def test_b(self): pass\n", [SUITE.format("a"), SUITE.format("b")]),
        (CASE + "if __name__ == '__main__':\n    unittest.main()\n", [SUITE.format("a")]),
        (CASE + "unittest.main(argv=[''], exit=False)", [SUITE.format("a")]),
        (CASE + "s = unittest.defaultTestLoader.loadTestsFromTestCase(T)\nr = unittest.TextTestRunner()\nr.run(s)",
         [SUITE.format("a")]),
        ("import random, pytest\nrandom.seed(1)\nprint('go')\n" + FUNCTION + "pytest.main()", ["test_f()"]),
        ("def make(n): return [n]\nDATA = make(3)\n" + FUNCTION, ["test_f()"]),
        (f"DATA = f\"{{'\N{NO-BREAK SPACE}'.join('ab')}}\"\n{FUNCTION}", ["test_f()"]),
        ("from unittest.mock import patch\n@patch('os.getcwd')\ndef test_f(mock): assert f(1) == 2", ["test_f()"]),
        ("from unittest import TestCase\nclass A(TestCase):\n    def test_a(self): pass\nclass B(A): pass",
         ["__import__('unittest').TestSuite([A('test_a')]).debug()",
          "__import__('unittest').TestSuite([B('test_a')]).debug()"]),
    ],
)  # fmt: skip
def test_each_test_that_nothing_calls_is_a_case(test: str, calls: list[str]) -> None:
    assert ends(test) == calls
    assert codes(tests=test) == codes(test)
    assert not any(".main(" in code or "r.run" in code for code in codes(test))


def test_pieces_that_only_define_something_are_no_cases() -> None:
    cases = read_tests(
        Task("mine/7", "?", "", meta={"tests": ["def h(x): return x", "assert h(f(1))", "assert h(f(2))", "y = f(3)"]})
    ).cases
    assert cases == (
        Check("def h(x): return x\nassert h(f(1))"),
        Check("assert h(f(2))\ny = f(3)", "def h(x): return x"),
    )
    assert ends("K = 2", FUNCTION, "assert f(2) == 3") == ["test_f()", "assert f(2) == 3"]
    assert codes("K = 2", FUNCTION)[0].startswith("K = 2\n")
    assert ends(FUNCTION, "test_f()") == ["test_f()"]


def test_a_check_that_no_answer_could_pass_is_refused() -> None:
    with pytest.raises(ValueError, match=r"they are no Python 3\.\d+: .*, line 1"):
        codes(test="def check(c) assert c(1)", entry_point="f", prompt="def f(x):\n")
    with pytest.raises(ValueError, match=r"entry_point 'the f' is no name"):
        codes(test="def check(c): assert c(1)", entry_point="the f", prompt="def f(x):\n")


@pytest.mark.parametrize(
    ("test", "told"),
    [
        ("def helper(): assert f(1) == 2", "they check nothing"),
        ("x = f(1)", "they check nothing"),
        ("x = 1\nassert f(1) == (2", r"they are no Python 3\.\d+: '\(' was never closed, line 2"),
        ("import unittest\nunittest.main()", "they check nothing"),
        ("def test_f(a, b=1, *, c):\n    assert f(a)", r"'test_f' needs arguments \(a, c\)"),
        ("import pytest\n@pytest.mark.parametrize('a', [1])\ndef test_f(a): pass", r"'test_f' .* \(a\)"),
        (
            "class TestF:\n    def setup_method(self): pass\n    def test_a(self): pass",
            "'TestF.setup_method' is called",
        ),
    ],
)
def test_what_would_check_nothing_is_refused_before_work(tmp_path: Path, test: str, told: str) -> None:
    with pytest.raises(ValueError, match=rf"task mine/7: .*{told}"):
        codes(test)
    row = {"question": "Write f.", "tests": [test]}
    file = write(tmp_path / "a.jsonl", [{"question": "Write g.", "tests": ["assert g(1)"]}, row])
    with pytest.raises(DataError, match=rf"a\.jsonl, line 2: its tests cannot be read: .*{told}"):
        FileTaskSettings(path=file).open()
