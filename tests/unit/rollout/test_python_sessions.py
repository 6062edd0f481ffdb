"""The Python tool with a memory over a sandbox that writes down what it is asked: seeds, limits, and what it closes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from retcon.core.errors import SessionLost
from retcon.core.seeds import derive
from retcon.core.types import Observation, ToolCall
from retcon.sandbox.types import Limits, Result
from retcon.tools.forks import Forkable
from retcon.tools.kinds.python import RESTARTED, Python, PythonSession, PythonSessions
from retcon.tools.loading import ToolSetup
from retcon.tools.types import OpenTool, StatefulTool

LIMITS = Limits(memory_mb=64)


class Session:
    """One whose interpreter ends with the cell `exit`, and says what it was asked in its value."""

    def __init__(self, limits: Limits | None, seed: int | None) -> None:
        self.limits, self.seed, self.open, self.ended = limits, seed, True, False
        self.kept = 0

    async def run(self, code: str) -> Result:
        self._check()
        self.ended = code == "exit"
        if code in ("exit", "fail"):
            return Result("error", "SystemExit", stdout="out\n", stderr="SystemExit: 1\n")
        return Result("ok", value=code)

    async def checkpoint(self) -> str:
        self._check()
        self.kept += 1
        return f"c{self.kept}"

    async def rollback(self, checkpoint: str) -> None:
        self.ended = False

    async def discard(self, checkpoint: str) -> None:
        self.kept -= 1

    async def close(self) -> None:
        self.open = False

    def _check(self) -> None:
        if self.ended:
            raise SessionLost("its code ended it", by_own_code=True)


class Sandbox:
    def __init__(self) -> None:
        self.sessions: list[Session] = []

    async def session(self, *, limits: Limits | None = None, seed: int | None = None) -> Session:
        self.sessions.append(Session(limits, seed))
        return self.sessions[-1]


def opened(work: Callable[[OpenTool], Awaitable[None]], *, trajectory: str = "t/0", chars: int = 2000) -> list[Session]:
    """The sessions that were opened while a trajectory's tool was worked with."""
    sandbox = Sandbox()

    async def run() -> None:
        tools = PythonSessions(sandbox, limits=LIMITS, output_chars=chars)  # type: ignore[arg-type]
        await work(await tools.open(trajectory))

    asyncio.run(run())
    return sandbox.sessions


async def say(tool: OpenTool, code: str) -> Observation:
    return await tool(ToolCall("c", "python", {"code": code}, 0))


async def ends_twice(tool: OpenTool) -> None:
    for code in ("exit", "exit", "1"):
        await say(tool, code)


def test_random_numbers_follow_from_the_trajectory_and_are_others_in_a_fresh_interpreter() -> None:
    first, again, other = (opened(ends_twice, trajectory=name) for name in ("t/0", "t/0", "t/1"))
    seeds = [session.seed for session in first]
    assert seeds[0] == derive("python", "t/0")
    assert seeds == [session.seed for session in again]
    assert len({*seeds, *(session.seed for session in other)}) == 6


def test_a_restart_that_was_rolled_back_leaves_no_trace_in_later_random_numbers() -> None:
    """What a lookahead tried is no part of the history."""

    async def tried(tool: OpenTool) -> None:
        before = await tool.checkpoint()
        await say(tool, "exit")
        await say(tool, "1")
        await tool.rollback(before)
        await ends_twice(tool)

    assert [session.seed for session in opened(tried)][2:] == [session.seed for session in opened(ends_twice)][1:]


def test_random_numbers_of_a_branch_do_not_depend_on_which_branch_is_quicker() -> None:
    def seeds(first: str, second: str) -> set[tuple[str, int | None]]:
        async def run() -> set[tuple[str, int | None]]:
            sandbox = Sandbox()
            tools = Forkable(PythonSessions(sandbox))  # type: ignore[arg-type]
            branches = {"t/0": await tools.open("t/0")}
            await tools.fork("t/0", "t/1")
            branches["t/1"] = await tools.open("t/1")
            found = set()
            for name in (first, second):
                await say(branches[name], "exit")
                await say(branches[name], "1")
                found.add((name, sandbox.sessions[-1].seed))
            return found

        return asyncio.run(run())

    assert seeds("t/0", "t/1") == seeds("t/1", "t/0")


def test_an_interpreter_that_was_restarted_has_the_limits_of_the_first() -> None:
    assert [session.limits for session in opened(ends_twice)] == [LIMITS] * 3


def test_of_the_interpreters_that_ended_none_stays_open() -> None:
    async def work(tool: OpenTool) -> None:
        await ends_twice(tool)
        await tool.close()

    assert [session.open for session in opened(work)] == [False] * 3


def test_that_the_interpreter_was_restarted_is_told_above_a_failure_too() -> None:
    """Once, and not to a call that ran nothing."""

    async def work(tool: OpenTool) -> None:
        await say(tool, "exit")
        assert (await tool(ToolCall("c", "python", "print(", 0))).status == "malformed"
        said.extend([(await say(tool, code)).text for code in ("fail", "fail")])

    said: list[str] = []
    opened(work)
    assert said == [f"{RESTARTED}\nout\nSystemExit: 1", "out\nSystemExit: 1"]


def test_an_interpreter_that_a_rollback_leaves_behind_is_closed() -> None:
    async def work(tool: OpenTool) -> None:
        state = await tool.checkpoint()
        await say(tool, "exit")
        assert (await say(tool, "1")).text == f"{RESTARTED}\n1"
        await tool.rollback(state)
        assert (await say(tool, "2")).text == "2", "there nothing was restarted"

    assert [session.open for session in opened(work)] == [True, False]


@pytest.mark.parametrize("sessions", [False, True])
def test_the_model_is_told_whether_variables_stay(sessions: bool) -> None:
    setup = ToolSetup(Sandbox(), output_chars=99, sessions=sessions)  # type: ignore[arg-type]
    tool = Python().build(setup)
    kept = "Variables and files are kept between calls." in tool.spec.description
    assert kept is sessions is isinstance(tool, StatefulTool)
    assert ("Every call runs in a fresh interpreter." in tool.spec.description) is not sessions
    assert Python().spec(sessions=sessions) == tool.spec
    if isinstance(tool, StatefulTool):
        opened = asyncio.run(tool.open("t"))
        assert isinstance(opened, PythonSession)
        assert opened.spec == tool.spec
