"""Which program of a reply is its answer."""

from __future__ import annotations

from typing import Any

import pytest

from comparing import answer, trajectory, turn
from retcon.tasks.graders.code import called_names, find_program
from retcon.tasks.grading import cases
from retcon.tasks.grading.registry import Reply
from retcon.tasks.types import Task

DEFINES = "def f(a):\n    return a + 1"
USES = "print(f(1))  # 2"
HUMANEVAL = {"prompt": "def f(a):\n", "entry_point": "f", "test": "def check(c):\n    assert c(1) == 2"}
CALLED = {"input_output": {"fn_name": "f", "inputs": [[1]], "outputs": [2]}}


def read(meta: dict[str, Any]) -> cases.Tests:
    return cases.read_tests(Task("mine/7", "?", "", meta=meta))


def chosen(meta: dict[str, Any], *blocks: str) -> str | None:
    text = "\n\nExample usage:\n\n".join(f"```python\n{block}\n```" for block in blocks)
    return find_program(Reply(text), read(meta))


@pytest.mark.parametrize(
    "meta",
    [
        HUMANEVAL,
        CALLED,
        {"test_list": ["assert f(1) == 2"]},
        {"tests": "import math\ndef near(a, b): return math.isclose(a, b)\nassert near(f(1), 2)"},
        {"test": "from solution import f\ndef test_f():\n    assert f(1) == 2"},
        {"tests": [{"fn_name": "f", "input": [1], "output": 2}]},
    ],
)
def test_a_block_that_shows_how_to_use_the_answer_is_not_the_answer(meta: dict[str, Any]) -> None:
    assert called_names(read(meta)) == {"f"}
    assert chosen(meta, DEFINES, USES) == DEFINES
    assert chosen(meta, DEFINES, "r = f(1)\nassert r == 2", "f == 2") == DEFINES
    for last in ("f = lambda a: a + 1", "f: object = abs", "class Solution:\n    def f(self, a): return 0", DEFINES):
        assert chosen(meta, "def f(a): pass", last) == last
    assert chosen(meta, USES) == USES
    assert chosen(meta, "print(f(2))", USES) == USES


def test_the_last_block_is_the_answer_where_nothing_says_what_is_called() -> None:
    stdio = {"tests": [{"input": "1", "output": "2"}]}
    for meta in (stdio, {"tests": "assert True"}):
        assert chosen(meta, DEFINES, USES) == USES


@pytest.mark.parametrize(
    "uses",
    [
        'if __name__ == "__main__":\n    print(f(1))', "for a in range(3):\n    print(f(a))",
        "import doctest\n\ndoctest.testmod()", "def test_f():\n    assert f(1) == 2\n\ntest_f()",
        "# Prints 2.\ndef main():\n    print(f(1))\n\nmain()", "print(\n    f(1)\n)",
    ],
)  # fmt: skip
def test_what_is_not_indented_is_no_body_beside_the_answer(uses: str) -> None:
    assert chosen(HUMANEVAL, DEFINES, uses) == DEFINES
    indented = "\n    # one more\n    return a + 1"
    assert chosen(HUMANEVAL, indented, uses) == indented
    assert chosen({**HUMANEVAL, "prompt": "def f(a):\n    "}, "return a + 1", "f(1)\nf(2)") == "return a + 1"


def test_a_call_that_tries_the_answer_out_is_not_the_answer() -> None:
    rollout = trajectory("t/0/0", turn(DEFINES, ""), turn(USES, "2"), answer("That is it."), reward=None)
    assert find_program(Reply("That is it.", rollout), read(CALLED)) == DEFINES
    assert find_program(Reply("", rollout), read({"tests": [{"input": "1", "output": "2"}]})) == USES


@pytest.mark.parametrize("end", ["</think>", "[/THINK]"])
def test_a_program_that_was_only_thought_is_no_answer(end: str) -> None:
    thought, said = f"```python\n{DEFINES}\n```", f"```python\n{USES}\n```"
    for meta in (CALLED, HUMANEVAL):
        assert find_program(Reply(f"{thought}\n{end}\n\nI cannot solve this."), read(meta)) is None
        assert find_program(Reply(f"{thought}\n{end}\n\n{said}"), read(meta)) == USES
        assert find_program(Reply(f"{thought}\n{end}\n"), read(meta)) == DEFINES  # as of what is in a box


@pytest.mark.parametrize("mark", ["</think>", "[/THINK]", "<|message|>"])
def test_a_block_left_open_in_a_thought_is_not_closed_by_the_answer(mark: str) -> None:
    thought = f"Let me try:\n```python\nprint(f(1)\n{mark}\nIt prints:\n"
    rollout = trajectory("t/0/0", turn(DEFINES, ""), answer(f"{thought}```\n2\n```"), reward=None)
    assert find_program(Reply(f"{thought}```\n2\n```", rollout), read(CALLED)) == DEFINES
    assert find_program(Reply(f"{thought}```\n2\n```"), read(CALLED)) in ("2", None)
    assert find_program(Reply(f"{thought}```\n2\n```\n```python\n{DEFINES}\n```"), read(CALLED)) == DEFINES
    body = f"    return '{mark}' or a\n\nprint(1)"
    assert chosen(HUMANEVAL, body) == body
