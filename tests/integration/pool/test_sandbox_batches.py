"""Programs that only compute come to the same in a batch as on their own, and leave nothing to one another."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import islice
from typing import Unpack

import pytest

from retcon.core.types import ToolCall
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Limits, Program, ProgramOptions, Result
from retcon.tasks.kinds.numbers import PROGRAMS
from retcon.tools.kinds.python import BatchRunner, PythonTool, leaves_nothing

LIMITS = Limits(cpu_seconds=2.0)
ALIKE = [
    "print(1 + 1)",
    "1 + 1",
    "'a\\n'",
    "None",
    "",
    "x = 3\nprint(x, end='')\nprint('\\t', x, sep='\\x00')",
    "print((1",
    "  print(1)",
    "print('a' 'b')\nprint(a)",
    "value = 1\nprint(valeu)",
    "def f(n):\n    total = 1\n    return totl\nf(5)",
    "def f(n):\n    return f(n - 1) if n else 1 / 0\nprint(1)\nf(3)",
    "import math\nprint(math.sqr(2))",
    "from math import gcd, lcm as l\nprint(gcd(6, 4), l(6, 4))",
    "from math import nothing",
    "print(10 ** 5000)",
    "10 ** 5000",
    "print(int('a'))",
    "print([1, 2][5])",
    "print({}['k'])",
    "print(len(5), 3)",
    "print(f'{1.5:>8.3f}', {3, 1, 2}, {'b', 'a'})",
    "print(len, int)",
    "a = [n for n in range(5) if n % 2]\nwhile a:\n    a.pop()\nelse:\n    print(a)",
    "print(*map(str, range(3)))\nprint(sum(1 for _ in range(9)), min([]))",
    "print = 5\nlen = 6\nrange(1)()",
    "print(__name__)",
]
ON_THEIR_OWN = [
    "while True: pass",
    "print(sum(n * n for n in range(20_000_000)))",
    "def f(n):\n    return f(n + 1)\nf(0)",
    "[0] * 10 ** 10",
    "print('\\u00e9')",
    "print('a' * 5000)",
    "print('a' is 'b')",
    "exit(3)",
]
REACHING = [
    "import math\nmath.pi = 3",
    "import math\nfor math.pi in [3]: pass",
    "import decimal\ndecimal.getcontext()",
    "from decimal import *",
    "class A:\n    def __del__(self): print(1)",
    "type('A', (), {'__del__': lambda self: print(1)})()",
    "def f():\n    try:\n        yield 1\n    finally:\n        print(2)",
    "print('{0.gi_frame}'.format(x for x in ()))",
    "g = (x for x in ())\nprint(g.gi_frame.f_back)",
    "try:\n    while True: pass\nexcept: pass",
    "del print",
    "global x",
    "a = 1 " + "+ 1 " * 2000,
]


async def in_both(programs: list[str]) -> list[tuple[Result, Result | None]]:
    async with SandboxPool(limits=LIMITS) as sandbox:
        alone = await asyncio.gather(*(sandbox.run(one, seed=1) for one in programs))
        batches = BatchRunner(sandbox, LIMITS)
        runs = [batches.run(one, valid=leaves_nothing(one) is True) for one in programs]
        return list(zip(alone, await asyncio.gather(*runs), strict=True))


def test_a_batch_gives_what_each_program_gives_alone() -> None:
    taught = [one.format(60, 7, 5) for kind in PROGRAMS.values() for one in (*kind.right, *kind.failing, *kind.wrong)]
    programs = [one for one in (*ALIKE, *taught) if leaves_nothing(one) is not False]
    assert len(programs) == len(ALIKE) + len(taught)
    for program, (alone, batched) in zip(programs, asyncio.run(in_both(programs)), strict=True):
        assert batched is not None, program
        assert replace(batched, seconds=0.0, peak_memory=0) == replace(alone, seconds=0.0, peak_memory=0), program


def test_what_may_end_otherwise_runs_on_its_own() -> None:
    around = [one for program in ON_THEIR_OWN for one in (program, "print(1)")]
    found = [batched for _, batched in asyncio.run(in_both(around))]
    assert found[::2] == [None] * len(ON_THEIR_OWN)
    assert [one and one.stdout for one in found[1::2]] == ["1\n"] * len(ON_THEIR_OWN)


@pytest.mark.parametrize("program", REACHING)
def test_what_may_change_its_process_is_in_no_batch(program: str) -> None:
    assert leaves_nothing(program) is False


def test_a_batch_whose_process_ends_leaves_the_others_to_their_own() -> None:
    programs = ["print(1)", "print(sum(range(10 ** 12)))", "print(2)"]  # which no timer ends
    first, endless, after = (batched for _, batched in asyncio.run(in_both(programs)))
    assert first is not None
    assert (first.stdout, endless, after) == ("1\n", None, None)


class Counted(SandboxPool):
    """Counts its calls."""

    calls = 0

    async def run(self, program: str | Program, /, **options: Unpack[ProgramOptions]) -> Result:
        self.calls += 1
        return await super().run(program, **options)


def test_a_tool_runs_what_is_called_at_once_in_few_processes() -> None:
    async def run() -> tuple[int, list[str]]:
        async with Counted(limits=LIMITS) as sandbox:
            tool = PythonTool(sandbox, reuse=LIMITS)
            codes = [f"print({n})" for n in range(40)] + ["import os\nprint(os.sep)", "print(1 / 0)"]
            calls = [ToolCall(f"c{n}", "python", {"code": code}, 0) for n, code in enumerate(codes)]
            found = await asyncio.gather(*map(tool, calls))
            return sandbox.calls, [one.text for one in found]

    calls, texts = asyncio.run(run())
    assert calls == 2
    assert list(islice(texts, 41)) == [*map(str, range(40)), "/"]
    assert texts[-1].endswith("ZeroDivisionError: division by zero")
