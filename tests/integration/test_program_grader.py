"""Answers that are programs are graded by their tests, in the sandbox."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.types import Trajectory
from retcon.engine.scripted import ScriptedEngine
from retcon.engine.types import SamplingParams
from retcon.rollout.group import rollout_group
from retcon.rollout.limits import Limits
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Sandbox
from retcon.tasks.programs import ProgramGrader, answered_program
from retcon.tasks.types import Task
from retcon.tools.python import PythonTool

T = TypeVar("T")
DATA = Path(os.environ.get("RETCON_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
HUMANEVAL = DATA / "eval" / "HumanEval.jsonl.gz"
RIGHT = "def add(a, b):\n    return a + b"
TESTS = "def check(f):\n    assert f(1, 2) == 3\n    assert f(-1, 1) == 0\ncheck(add)"


def with_sandbox(work: Callable[[Sandbox], Awaitable[T]], workers: int = 2) -> T:
    async def main() -> T:
        async with SandboxPool(workers=workers) as sandbox:
            return await work(sandbox)

    return asyncio.run(main())


def verdicts(pairs: Sequence[tuple[str, str]]) -> list[bool]:
    async def work(sandbox: Sandbox) -> list[bool]:
        grader = ProgramGrader(sandbox)
        return [await grader.passes(program, tests) for program, tests in pairs]

    return with_sandbox(work)


def test_the_tests_decide() -> None:
    wrong = "def add(a, b):\n    return a - b"
    assert verdicts([(RIGHT, TESTS), (wrong, TESTS), ("def add(", TESTS), ("pass", TESTS)]) == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "program",
    [
        "import os; os._exit(0)",
        "import sys; sys.exit(0)",
        "def add(a, b):\n    import os\n    os._exit(0)",
        "def add(a, b):\n    raise SystemExit(0)",
        "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): return 0",
        "import builtins\nbuiltins.AssertionError = SystemExit\ndef add(a, b): raise AssertionError",
        "import sys\nsys.excepthook = lambda *a: None\ndef add(a, b): return 0",
        "print('passed')\nprint('Tool call success')",
    ],
)
def test_an_answer_cannot_leave_before_its_tests(program: str) -> None:
    assert verdicts([(program, TESTS)]) == [False]


def test_a_group_is_graded_by_running_its_answers() -> None:
    def reply(body: str) -> str:
        return f"```python\n{body}\n```"

    task = Task("add", "Write add(a, b).", "", meta={"tests": TESTS})

    async def work(sandbox: Sandbox) -> list[Trajectory]:
        groups = []
        for body in (RIGHT, "def add(a, b):\n    return 3"):
            engine = ScriptedEngine(ByteTokenizer(), [reply(body), "That is it."])
            groups += await rollout_group(
                task,
                count=1,
                engine=engine,
                tools={"python": PythonTool(sandbox)},
                chat=Chat(ByteTokenizer()),
                limits=Limits(max_tokens=2000, max_turns=3, lookahead_tokens=0),
                sampling=SamplingParams(),
                seed=0,
                step=0,
                grade=ProgramGrader(sandbox).grade,
            )
        return groups

    right, wrong = with_sandbox(work)
    assert (right.reward, right.answer) == (1.0, RIGHT)
    assert wrong.reward == -1.0
    assert answered_program(wrong) == "def add(a, b):\n    return 3"


def test_a_fault_of_the_sandbox_is_no_verdict() -> None:
    async def work(sandbox: Sandbox) -> Trajectory:
        task = Task("add", "Write add(a, b).", "", meta={"tests": TESTS})
        engine = ScriptedEngine(ByteTokenizer(), [f"```python\n{RIGHT}\n```", "Done."])
        closed = SandboxPool(workers=1)
        (trajectory,) = await rollout_group(
            task,
            count=1,
            engine=engine,
            tools={"python": PythonTool(sandbox)},
            chat=Chat(ByteTokenizer()),
            limits=Limits(max_tokens=2000, max_turns=3, lookahead_tokens=0),
            sampling=SamplingParams(),
            seed=0,
            step=0,
            grade=ProgramGrader(closed).grade,
        )
        return trajectory

    trajectory = with_sandbox(work)
    assert (trajectory.reward, trajectory.stop) == (None, "infrastructure")


def test_a_task_without_tests_is_refused_by_name() -> None:
    async def work(sandbox: Sandbox) -> Trajectory:
        return await ProgramGrader(sandbox).grade(Task("mine/7", "?", ""), Trajectory("t", "mine/7", (), ()))

    with pytest.raises(ValueError, match=r"task mine/7 has no tests: meta\['tests'\]"):
        with_sandbox(work, workers=1)


@pytest.mark.skipif(not HUMANEVAL.exists(), reason=f"{HUMANEVAL} is not there")
def test_humanevals_own_solutions_pass() -> None:
    with gzip.open(HUMANEVAL, "rt") as file:
        rows = [json.loads(line) for line in file][::16]
    pairs = [(r["prompt"] + r["canonical_solution"], f"{r['test']}\ncheck({r['entry_point']})") for r in rows]
    empty = [(r["prompt"] + "    pass\n", f"{r['test']}\ncheck({r['entry_point']})") for r in rows]
    assert verdicts(pairs) == [True] * len(rows)
    assert verdicts(empty) == [False] * len(rows)
