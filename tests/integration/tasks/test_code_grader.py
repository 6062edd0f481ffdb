"""Answers that are programs are graded by their tests, in the sandbox."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import os
import pickle
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from comparing import answer, trajectory, turn
from conversing import bytes_of
from retcon.chat.chat import Chat
from retcon.chat.family import FAMILIES
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.types import Trajectory
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.rollout.group import rollout_group
from retcon.rollout.loop import run_rollout
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Sandbox
from retcon.tasks.graders.code import find_program
from retcon.tasks.grading.cases import read_tests
from retcon.tasks.grading.grading import GradeSettings, Grading
from retcon.tasks.grading.registry import Fault, Outcome, Reply
from retcon.tasks.types import Task
from retcon.tools.kinds.python import PythonTool

T = TypeVar("T")
DATA = Path(os.environ.get("RETCON_DATA", Path(__file__).parents[3].parent / "shared" / "data")) / "eval"
HUMANEVAL, MBPP = DATA / "HumanEval.jsonl.gz", DATA / "mbpp.json"
PROGRAMS = Path(__file__).parents[3] / "benchmarks/workloads/livecodebench.jsonl"
RIGHT = "def add(a, b):\n    return a + b"
CHECKS = "def check(f):\n    assert f(1, 2) == 3\n    assert f(-1, 1) == 0\ncheck(add)"
TASK = Task("add", "Write add(a, b).", "", meta={"tests": CHECKS})
SECONDS = 5.0
LIMITS = RolloutLimits(max_tokens=2000, max_turns=3)


class World:
    """A loop and a sandbox for a module's tests."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.sandbox = SandboxPool(workers=2)
        self.runner.run(self.sandbox.start())

    def run(self, work: Callable[[Sandbox], Awaitable[T]]) -> T:
        async def main() -> T:
            return await work(self.sandbox)

        return self.runner.run(main())

    def outcomes(self, pairs: Sequence[tuple[str, dict[str, Any]]], **options: object) -> list[Outcome]:
        """What is said of each program with its tests (`Task.meta`)."""

        async def work(sandbox: Sandbox) -> list[Outcome]:
            settings = GradeSettings("code", options={"code": {"seconds": SECONDS, **options}})
            async with Grading(settings, sandbox=sandbox) as grading:
                return await asyncio.gather(
                    *(
                        grading.outcome(Task(f"t/{n}", "?", "", meta=meta), Reply(f"```python\n{program}\n```"))
                        for n, (program, meta) in enumerate(pairs)
                    )
                )

        return self.run(work)

    def scores(self, pairs: Sequence[tuple[str, dict[str, Any]]], **options: object) -> list[float]:
        found = self.outcomes(pairs, **options)
        assert not [said for said in found if isinstance(said, Fault)]
        return [said.score for said in found if not isinstance(said, Fault)]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    yield made
    made.runner.run(made.sandbox.close())
    made.runner.close()


def test_the_tests_decide(world: World) -> None:
    wrong = "def add(a, b):\n    return a - b"
    checks = {"tests": CHECKS}
    programs = (RIGHT, wrong, "def add(", "pass", "while True: pass", "x = 'x' * 10**11")
    assert world.scores([(program, checks) for program in programs], seconds=1) == [1, 0, 0, 0, 0, 0]


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
def test_an_answer_cannot_leave_before_its_tests(world: World, program: str) -> None:
    assert world.scores([(program, {"tests": CHECKS}), (RIGHT, {"tests": CHECKS})], at_once=1) == [0, 1]


def test_no_answer_meets_what_another_left(world: World) -> None:
    spoils = "import builtins, math\nbuiltins.sum = lambda *a: 3\nmath.left = 1\nopen('left', 'w').write('x')\n" + RIGHT
    looks = "import math, os\ndef add(a, b):\n    assert not hasattr(math, 'left') and not os.path.exists('left')\n"
    pairs = [
        (spoils, {"tests": CHECKS}),
        (f"{looks}    return sum((a, b))", {"tests": CHECKS}),
        ("add", {"tests": CHECKS}),
    ]
    assert world.scores(pairs, at_once=1) == [1, 1, 0]


@pytest.mark.parametrize(
    "spoils",
    [
        "os.kill(-1, signal.SIGKILL)",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); os.killpg(0, signal.SIGTERM)",
        "socket.socket(fileno=3).shutdown(socket.SHUT_RDWR)",
    ],
)
def test_an_answer_that_spoils_its_session_is_wrong_and_the_next_is_graded(world: World, spoils: str) -> None:
    """Its first state, to go back to, is a process too; what was done to it may show only once it is gone back to."""
    programs = [RIGHT, f"import os, signal, socket\n{spoils}\ndef add(a, b): return 0", RIGHT, RIGHT]
    assert world.scores([(program, {"tests": CHECKS}) for program in programs], at_once=1) == [1, 0, 1, 1]


def test_the_share_of_asserts_that_pass(world: World) -> None:
    meta = {"test_list": ["assert f(1) == 1", "assert f(2) == 4", "assert f(3) == 9", "assert f(4) == 16"]}
    programs = [
        "def f(n): return n * n",
        "def f(n): return 1 if n < 3 else n * n",
        "import os\ndef f(n): return n * n if n != 2 else os._exit(0)",
        "def f(n): return n * n if n != 3 else f(n)",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
        "def f(n): return n * n if n != 2 else 5",
        "import threading, time, os\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
        "def f(n): return n * n if n != 3 else os._exit(0)",
        "import threading, time, os\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
        "def f(n): return n * n if n not in (1, 3) else os._exit(0)",
        "oops",
    ]
    assert world.scores([(p, meta) for p in programs], score="share") == [1, 0.75, 0.75, 0.75, 0.75, 0.75, 0.5, 0]
    assert world.scores([(p, meta) for p in programs]) == [1, 0, 0, 0, 0, 0, 0, 0]


def test_tests_that_nothing_calls_are_called(world: World) -> None:
    functions = "def test_one():\n    assert f(1) == 2\nasync def test_two():\n    assert f(2) == 3\n"
    suite = (
        "import unittest\nclass T(unittest.TestCase):\n    @classmethod\n    def setUpClass(cls): cls.one = 1\n"
        "    def setUp(self): self.two = 2\n    def test_a(self):\n        with self.subTest(): "
        "self.assertEqual(f(self.one), 2)\n    def test_b(self): self.assertEqual(f(self.two), 3)\n"
    )
    metas = [
        {"tests": functions},
        {"tests": [functions]},
        {"test_list": ["K = 1", *functions.split("async ")[:1], "assert f(2) == 2 + K"]},
        {"tests": suite + "if __name__ == '__main__':\n    unittest.main()"},
        {"test": suite, "entry_point": "f"},
    ]
    right, half = "def f(a): return a + 1", "def f(a): return 2"
    leaves = "import unittest\ndef f(a):\n    raise unittest.SkipTest if a == 1 else SystemExit(0)"
    for program, score in ((right, 1), (half, 0.5), ("def f(a): return 3 if a > 1 else 0", 0.5), (leaves, 0)):
        assert world.scores([(program, meta) for meta in metas], score="share") == [score] * 5
        assert world.scores([(program, meta) for meta in metas]) == [float(score == 1)] * 5
    assert world.scores([("pass", meta) for meta in metas]) == [0] * 5


def test_what_tests_define_is_there_after_one_that_failed(world: World) -> None:
    meta = {"tests": ["def same(a, b): return a == b", "assert same(f(1), 2)", "assert same(f(2), 3)"]}
    assert world.scores([("def f(a): return 3", meta)], score="share") == [0.5]


def test_programs_that_read_and_print(world: World) -> None:
    meta = {"tests": [{"input": "1 2\n", "output": "3\n"}, {"input": "5 5\n", "output": "10"}]}
    programs = [
        "a, b = map(int, input().split())\nprint(a + b)",
        "from __future__ import division\nif __name__ == '__main__':\n    print(float(sum(map(int, input().split()))))",
        "a, b = map(int, input().split())\nprint(pow(a + b, 1, 100), floor(0.5) or '', sep='')",
        "print(3)",
        "a, b = map(int, input().split())\nprint(a + b)\nraise SystemExit(1)",
        "input()\ninput()",
        "class Solution:\n    def add(self): pass",
    ]
    assert world.scores([(p, meta) for p in programs]) == [1, 1, 1, 0, 1, 0, 0]
    assert world.scores([(p, meta) for p in programs], score="share") == [1, 1, 1, 0.5, 1, 0, 0]


def test_functions_are_called_as_livecodebench_calls_them(world: World) -> None:
    cases = [{"input": "[1, 2]\n3", "output": "[4, 5]"}, {"input": "[]\n1", "output": "[]"}]
    packed = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()
    public = json.dumps([{"input": "[0]\n0", "output": "[0]", "testtype": "functional"}])
    meta = {"public_test_cases": public, "private_test_cases": packed, "metadata": '{"func_name": "shift"}'}
    body = "def shift({}values: List[int], by: int) -> List[int]:\n{}    return [v + by for v in values]"
    method = "class Solution:\n    " + body.format("self, ", "    ")
    programs = [
        method, body.format("", ""), "def shift(values, by): return tuple(v + by for v in values)",
        "def shift(values, by): return {v + by for v in values}", "def shift(values, by): return values",
        "class Any:\n    def __eq__(self, other): return True\ndef shift(values, by): return Any()",
        "import json\njson.dumps = lambda value: '[4, 5]'\ndef shift(values, by): return 0",
        "x = []\nx.append(x)\ndef shift(values, by): return x",
        "def shift(values, by): print('[4, 5]'); raise SystemExit(0)",
    ]  # fmt: skip
    assert world.scores([(p, meta) for p in programs]) == [1, 1, 1, 0, 0, 0, 0, 0, 0]


def by_livecodebench(world: World, replies: Sequence[tuple[dict[str, Any], Reply]], **options: object) -> list[Outcome]:
    async def work(sandbox: Sandbox) -> list[Outcome]:
        settings = GradeSettings("livecodebench", options={"livecodebench": options})
        async with Grading(settings, sandbox=sandbox) as grading:
            metas = [
                {"public_test_cases": row["tests"], "metadata": {"func_name": row.get("func_name")}}
                for row, _ in replies
            ]
            tasks = [Task(f"lcb/{n}", "?", "", meta=meta) for n, meta in enumerate(metas)]
            return await asyncio.gather(*map(grading.outcome, tasks, (reply for _, reply in replies)))

    return world.run(work)


def test_replies_are_graded_as_livecodebenchs_runner_does_and_strictly(world: World) -> None:
    """Those that sleep for seconds are left to `benchmarks/studies/livecodebench.py`, which recorded the verdicts."""
    rows = [row for row in map(json.loads, PROGRAMS.read_text().splitlines()) if "time.sleep" not in row["program"]]
    replies = [(row, Reply(row.get("reply") or f"```python\n{row['program']}\n```")) for row in rows]
    said = by_livecodebench(world, replies)
    found = {row["name"]: getattr(one, "grades", one) for row, one in zip(rows, said, strict=True)}
    assert found == {row["name"]: {"lcb": row["lcb"], "strict": row["strict"]} for row in rows}
    assert [getattr(one, "right", one) for one in said] == [row["lcb"] for row in rows]


def test_livecodebenchs_clock_is_the_walls_and_strict_may_decide(world: World) -> None:
    row = {"tests": [{"input": "3\n", "output": "9\n", "testtype": "stdin"}]}
    reply = Reply("```\nimport time\ntime.sleep(1.5)\nprint(int(input()) ** 2)\n```")
    for decides, right in (("lcb", False), ("strict", True)):
        (said,) = by_livecodebench(world, [(row, reply)], seconds=1, decides=decides)
        assert not isinstance(said, Fault)
        assert (said.right, said.score, said.grades) == (right, right, {"lcb": False, "strict": True})


def test_a_program_that_was_called_is_livecodebenchs_answer_where_the_last_turn_has_no_fence(world: World) -> None:
    program = "print(int(input()) ** 2)"
    rollout = trajectory("t/0", turn(program, "9"), answer("That is it."), reward=None)
    row = {"tests": [{"input": "3\n", "output": "9\n", "testtype": "stdin"}]}
    task = Task("t", "?", "", meta={"public_test_cases": row["tests"]})

    async def work(sandbox: Sandbox) -> Trajectory:
        async with Grading(GradeSettings("livecodebench"), sandbox=sandbox) as grading:
            return await grading.grade(task, rollout)

    graded = world.run(work)
    assert (graded.reward, graded.answer, graded.grades) == (1, program, {"lcb": True, "strict": True})


def test_a_body_alone_goes_on_from_its_prompt(world: World) -> None:
    prompt = "from typing import List\ndef twice(x):\n    return 2 * x\n\ndef four(x: int) -> int:\n    "
    meta = {"prompt": prompt, "entry_point": "four", "test": "def check(c):\n    assert c(2) == 8"}
    programs = ["return twice(twice(x))", "def four(x: List) -> int:\n    return twice(2 * x)", "return x"]
    assert world.scores([(p, meta) for p in programs]) == [1, 1, 0]


def test_a_reply_without_a_program_is_wrong(world: World) -> None:
    async def work(sandbox: Sandbox) -> Outcome:
        async with Grading(GradeSettings("code"), sandbox=sandbox) as grading:
            return await grading.outcome(TASK, Reply("I would add them."))

    said = world.run(work)
    assert not isinstance(said, Fault)
    assert (said.score, said.answer) == (0.0, None)


def test_a_group_is_graded_by_running_its_answers(world: World) -> None:
    async def work(sandbox: Sandbox) -> list[Trajectory]:
        groups = []
        async with Grading(GradeSettings("code"), sandbox=sandbox) as grading:
            for body in (RIGHT, "def add(a, b):\n    return 3"):
                groups += await rolled_out(sandbox, body, grading)
        return groups

    right, wrong = world.run(work)
    assert (right.reward, right.answer) == (1.0, RIGHT)
    assert wrong.reward == -1.0
    assert find_program(Reply("", wrong), read_tests(TASK)) == "def add(a, b):\n    return 3"


async def rolled_out(sandbox: Sandbox, body: str, grading: Grading) -> list[Trajectory]:
    return await rollout_group(
        TASK,
        RolloutContext(
            ScriptedEngine(ByteTokenizer(), [f"```python\n{body}\n```", "That is it."]),
            Chat(ByteTokenizer()),
            {"python": PythonTool(sandbox)},
            LIMITS,
        ),
        count=1,
        seed=0,
        step=0,
        grade=grading.grade,
    )


@pytest.mark.parametrize(
    "family", [name for name in FAMILIES.names if name not in ("markdown", "gemma") and FAMILIES.find(name).template]
)
def test_an_answer_may_end_with_its_block_where_blocks_are_no_calls(world: World, family: str) -> None:
    """Its turn ends with a mark, right behind the closing fence."""
    chat, draft = Chat(bytes_of(family), style=family), "def add(a, b):\n    return a - b"
    said = f"First:\n```python\n{draft}\n```\nNo, that subtracts. So:\n```python\n{RIGHT}\n```"

    async def work(sandbox: Sandbox) -> Trajectory:
        async with Grading(GradeSettings("code"), sandbox=sandbox) as grading:
            context = RolloutContext(ScriptedEngine(chat.tokenizer, [said]), chat, {}, LIMITS)
            return await grading.grade(TASK, await run_rollout(TASK, context, id="add/0", seed=0))

    trajectory = world.run(work)
    assert trajectory.turns[-1].text != said
    assert (trajectory.reward, trajectory.answer) == (1.0, RIGHT)


def test_a_fault_of_the_sandbox_is_no_verdict(world: World) -> None:
    async def work(sandbox: Sandbox) -> Trajectory:
        async with Grading(GradeSettings("code"), sandbox=SandboxPool(workers=1)) as grading:
            return (await rolled_out(sandbox, RIGHT, grading))[0]

    trajectory = world.run(work)
    assert (trajectory.reward, trajectory.stop) == (None, "infrastructure")


def test_a_task_without_tests_is_refused_by_name(world: World) -> None:
    async def work(sandbox: Sandbox) -> None:
        async with Grading(GradeSettings("code"), sandbox=sandbox) as grading:
            await grading.check(TASK)
            await grading.check(Task("mine/7", "?", ""))

    with pytest.raises(ValueError, match="task mine/7 has no tests: meta must hold 'tests'"):
        world.run(work)


@pytest.mark.skipif(not HUMANEVAL.exists(), reason=f"{HUMANEVAL} is not there")
def test_humanevals_own_solutions_pass(world: World) -> None:
    with gzip.open(HUMANEVAL, "rt") as file:
        rows = [json.loads(line) for line in file]
    assert world.scores([(r["prompt"] + r["canonical_solution"], r) for r in rows], seconds=60) == [1] * 164
    assert world.scores([(r["canonical_solution"], r) for r in (*rows[::8], *rows[55:64:8])], seconds=60) == [1] * 23
    assert world.scores([(r["prompt"] + "    pass\n", r) for r in rows[::8]]) == [0] * 21
