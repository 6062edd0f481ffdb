"""Tools with a memory that the trajectories of a tree share, and states that cannot be kept."""

from __future__ import annotations

import asyncio

import pytest

from playing import run_python
from retcon.core.errors import CheckpointRefused
from retcon.core.types import ToolCall
from retcon.sandbox.types import Result
from retcon.tools.forks import Forkable
from retcon.tools.kinds.python import PythonSessions
from retcon.tools.scripted import ScriptedSessions

CALL = ToolCall("0", "python", {"code": "1"}, 0)


def test_what_was_kept_for_a_trajectory_that_lost_the_tool_goes_with_it_once():
    async def work() -> list[str]:
        sessions = ScriptedSessions(run_python)
        tools = Forkable(sessions)
        one = await tools.open("one")
        used, _ = await one.checkpoint(), await one.checkpoint()
        await one.discard(used)
        await tools.fork("one", "other")
        other = await tools.open("other")
        await other(CALL)
        await one.close()
        (session,) = sessions.opened
        assert not session.kept
        return [event for event in session.events if event.startswith("discard")]

    freed = asyncio.run(work())
    assert len(freed) == len(set(freed))


class Full:
    """A sandbox whose sessions keep no state."""

    def __init__(self) -> None:
        self.opened = 0

    async def session(self, **_: object) -> Full:
        self.opened += 1
        return self

    async def run(self, code: str) -> Result:
        return Result("ok", value="1")

    async def checkpoint(self) -> str:
        raise CheckpointRefused("not this one")


def test_a_state_that_cannot_be_kept_stays_as_it_is():
    async def work() -> str:
        sandbox = Full()
        tool = await PythonSessions(sandbox).open("t1")  # type: ignore[arg-type]
        with pytest.raises(CheckpointRefused, match="not this one"):
            await tool.checkpoint()
        assert sandbox.opened == 1
        return (await tool(CALL)).text

    assert asyncio.run(work()) == "1"


def tree() -> tuple[ScriptedSessions, Forkable]:
    """A tool whose state cannot be kept while a trajectory's `x` is set."""
    sessions = ScriptedSessions(run_python, refuses=lambda state: "x is set" if state.get("x") else "")
    return sessions, Forkable(sessions)


def python(code: str) -> ToolCall:
    return ToolCall("0", "python", {"code": code}, 0)


@pytest.mark.parametrize("freed", ["by its code", "by its end"])
def test_a_trajectory_waits_for_another_whose_state_cannot_be_kept(freed: str):
    async def work() -> list[str]:
        _, tools = tree()
        one = await tools.open("one")
        await one(python("y = 1"))
        await tools.fork("one", "other")
        other = await tools.open("other")
        await one(python("x = 5; y = 2"))
        waiting = asyncio.create_task(other(python("y")))
        said = [(await one(python("x + y"))).text]
        assert not waiting.done()
        await (one(python("x = 0")) if freed == "by its code" else one.close())
        return [*said, (await waiting).text]

    assert asyncio.run(work()) == ["7", "1"]


def test_there_is_no_branch_from_a_state_that_cannot_be_kept():
    async def work() -> str:
        sessions, tools = tree()
        one = await tools.open("one")
        await one(python("x = 5"))
        with pytest.raises(CheckpointRefused, match="x is set"):
            await tools.fork("one", "other")
        assert not sessions.opened[0].kept
        return (await one(python("x"))).text

    assert asyncio.run(work()) == "5"
