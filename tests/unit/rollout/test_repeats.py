"""Programs that can come to but one thing run once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from retcon.core.types import Observation, ToolCall
from retcon.sandbox.types import Limits, Result
from retcon.tools.kinds.python import LONGEST, Python, PythonSessions, PythonTool, ResultCache, is_deterministic
from retcon.tools.loading import ToolSetup

OK = Result("ok", stdout="2\n", exit_code=0, seconds=0.5)
LIMITS = Limits(wall_seconds=30.0)
WRONG = Result("error", "NameError", stderr="NameError: name 'a' is not defined\n", exit_code=1, seconds=0.5)


class Counted:
    """A sandbox that gives one answer after another, the last one again and again; it runs no batches."""

    def __init__(self, *answers: Result) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def run(self, code: str, **options: object) -> Result:
        if options.get("stdin"):
            return Result("infrastructure")
        self.asked.append(code)
        await asyncio.sleep(0)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def close(self) -> None:
        return


def called(
    sandbox: Counted, *codes: str, at_once: bool = False, reuse: Limits | None = LIMITS
) -> Sequence[Observation]:
    tool = PythonTool(sandbox, reuse=reuse)

    async def run() -> Sequence[Observation]:
        calls = [tool(ToolCall(f"c{n}", "python", {"code": code}, 0)) for n, code in enumerate(codes)]
        return await asyncio.gather(*calls) if at_once else [await call for call in calls]

    return asyncio.run(run())


@pytest.mark.parametrize(
    "code",
    [
        "print(1 + 1)",
        "import math\nfrom fractions import Fraction as F\nprint(math.gcd(88, 33), F(1, 3))",
        "from collections.abc import Mapping\nfrom math import *\nprint(pi)",
        "def f(n):\n    return n * f(n - 1) if n else 1\nprint(f(5))",
        "class A:\n    def __init__(self, a):\n        self.a = a\nprint(A(1).a)",
        "if __name__ == '__main__':\n    _a = [x for x in {3, 1, 2}]\n    print(sorted(_a))",
        "class A:\n    b = 1\nmatch A():\n    case A(b=1):\n        print(2)",
        "1 / 0",
        "",
    ],
)
def test_what_computes_alone_follows_from_its_text(code: str) -> None:
    assert is_deterministic(code) is True


@pytest.mark.parametrize(
    "code",
    [
        "import time\nprint(time.time())",
        "from random import random\nprint(random())",
        "import math, os",
        "import numpy.random",
        "from . import math",
        "from math import __loader__",
        "from fractions import sys",
        "import fractions\nprint(fractions.sys.argv)",
        "import re\nprint(re._cache)",
        "print(open('a').read())",
        "n = int(input())",
        "print(id(3), hash('a'))",
        "eval('__imp' + 'ort__(\"time\")')",
        "print(__import__('time').time())",
        "print(().__class__)",
        "match print:\n    case object(__self__=there):\n        print(there)",
        "print((n for n in ()).gi_frame.f_builtins)",
        "import re\nprint(re.enum.bltns.open('a'))",
        "from string import Formatter\nprint(Formatter().get_field('0.__self__', [print], {}))",
        "f = getattr\nprint(f(1, 'real'))",
        "def f():\n    def g(a=[lambda: open('b')]):\n        pass",
        "print(f'{open(\"a\")}')",
    ],
)
def test_what_may_reach_further_does_not(code: str) -> None:
    assert is_deterministic(code) is False


def test_odd_programs_are_read_without_a_word() -> None:
    assert is_deterministic("print(1if 1else 2, '\\d')") is True


def test_of_what_is_no_python_nothing_can_be_said() -> None:
    assert is_deterministic("print((1") is None
    assert is_deterministic("a\0") is None
    assert is_deterministic("(" * 5000) is None


@pytest.mark.parametrize("result", [OK, WRONG, Result("timeout", "TimeoutError", seconds=29.9)])
def test_the_same_program_runs_once(result: Result) -> None:
    sandbox = Counted(result, replace(OK, stdout="another\n"))
    first, second, other = called(sandbox, "a", "a", "b")
    assert sandbox.asked == ["a", "b"]
    assert (first.seconds, second) == (result.seconds, replace(first, call_id="c1", seconds=0.0))
    assert other.text == "another"


def test_without_reuse_it_runs_each_time() -> None:
    sandbox = Counted(OK)
    called(sandbox, "a", "a", reuse=None)
    assert sandbox.asked == ["a", "a"]


@pytest.mark.parametrize(
    "result",
    [
        Result("timeout", "TimeoutError", seconds=30.0),
        Result("timeout", "TimeoutError"),  # of a sandbox that does not say how long it took
        Result("limit", "MemoryError"),
        Result("infrastructure", "WorkerDied"),
        Result("error", "MemoryError", exit_code=1),
        Result("error", "SIGSEGV", exit_code=-11),
        Result("error", "NameError"),  # of a server that does not say how it ended
        replace(OK, stdout="a" * (LONGEST + 1)),
    ],
)
def test_what_another_run_might_not_come_to_is_not_kept(result: Result) -> None:
    sandbox = Counted(result)
    called(sandbox, "a", "a")
    assert sandbox.asked == ["a", "a"]


def test_what_no_compiler_takes_is_kept_where_the_sandboxs_own_refused_it() -> None:
    refused = Result("error", "SyntaxError", stderr="SyntaxError: '(' was never closed\n", exit_code=1)
    for result, times in ((refused, 1), (replace(refused, error_type="IndentationError"), 1), (OK, 2), (WRONG, 2)):
        sandbox = Counted(result)
        called(sandbox, "print((1", "print((1")
        assert len(sandbox.asked) == times


def test_a_long_program_runs_each_time() -> None:
    sandbox = Counted(OK)
    called(sandbox, *["#" * LONGEST] * 2, *["#" * (LONGEST + 1)] * 2)
    assert list(map(len, sandbox.asked)) == [LONGEST, LONGEST + 1, LONGEST + 1]


def test_of_calls_at_once_one_runs_and_the_others_wait_for_it() -> None:
    sandbox = Counted(OK, WRONG)
    seen = called(sandbox, "a", "a", "a", "import os", "import os", at_once=True)
    assert sorted(sandbox.asked) == ["a", "import os", "import os"]
    assert len({one.text for one in seen[:3]}) == 1


def test_where_the_one_that_runs_comes_to_nothing_each_runs_by_itself() -> None:
    sandbox = Counted(Result("infrastructure", "WorkerDied"), OK)
    seen = called(sandbox, "a", "a", "a", at_once=True)
    assert [one.status for one in seen] == ["infrastructure", "ok", "ok"]
    assert sandbox.asked == ["a"] * 3


def test_a_caller_that_is_gone_takes_nobody_with_it() -> None:
    async def run() -> tuple[Result, bool]:
        repeats, begun = ResultCache(LIMITS), asyncio.Event()

        async def endless() -> Result:
            begun.set()
            await asyncio.Event().wait()
            return OK

        first = asyncio.ensure_future(repeats.run("a", endless))
        await begun.wait()
        second = asyncio.ensure_future(repeats.run("a", _gives(OK)))
        await asyncio.sleep(0)
        waited = not second.done()
        first.cancel()
        return await asyncio.wait_for(second, 10), waited

    assert asyncio.run(run()) == (OK, True)


def test_the_program_that_was_called_the_longest_ago_is_forgotten() -> None:
    async def run() -> list[float]:
        repeats = ResultCache(LIMITS, most=2)
        return [(await repeats.run(code, _gives(OK))).seconds for code in ("a", "b", "a", "c", "a", "b")]

    assert asyncio.run(run()) == [0.5, 0.5, 0.0, 0.5, 0.0, 0.5]


def test_a_recipes_tool_reuses_where_its_section_says_so() -> None:
    for reuse, times in ((LIMITS, 1), (None, 2)):
        sandbox = Counted(OK)
        tool = Python().build(ToolSetup(sandbox, output_chars=100, reuse=reuse))
        assert isinstance(tool, PythonTool)
        for _ in range(2):
            asyncio.run(tool(ToolCall("c", "python", {"code": "a"}, 0)))
        assert len(sandbox.asked) == times
    assert isinstance(
        Python().build(ToolSetup(Counted(OK), output_chars=100, sessions=True, reuse=LIMITS)), PythonSessions
    )


def _gives(result: Result) -> Callable[[], Awaitable[Result]]:
    async def call() -> Result:
        return result

    return call
