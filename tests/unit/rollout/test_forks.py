"""Tools with a memory that the trajectories of a tree share, and sessions that their states fill."""

from __future__ import annotations

import asyncio

import pytest

from playing import run_python
from retcon.core.errors import CheckpointRefused, InfrastructureFault
from retcon.core.types import ToolCall
from retcon.sandbox.types import Result
from retcon.tools.forks import Forkable
from retcon.tools.scripted import ScriptedSessions
from retcon.tools.sessions import RESTARTED, PythonSessions

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


class Room:
    """A sandbox whose first session keeps so many checkpoints, and refuses more as it is `full`, or for its code."""

    def __init__(self, room: int, *, full: bool) -> None:
        self.room, self.full = room, full
        self.opened: list[Room.Session] = []

    async def session(self, **_: object) -> Room.Session:
        self.opened.append(Room.Session(self))
        return self.opened[-1]

    class Session:
        def __init__(self, sandbox: Room) -> None:
            self.sandbox, self.kept, self.open = sandbox, 0, True

        async def run(self, code: str) -> Result:
            return Result("ok", value="1")

        async def checkpoint(self) -> str:
            if self.kept == self.sandbox.room and self is self.sandbox.opened[0]:
                raise CheckpointRefused("not this one", full=self.sandbox.full)
            self.kept += 1
            return str(self.kept)

        async def discard(self, checkpoint: str) -> None:
            self.kept -= 1

        async def close(self) -> None:
            self.open = False


@pytest.mark.parametrize(
    ("room", "full", "fault"), [(0, False, False), (2, True, False), (3, True, True), (3, False, False)],
    ids=["code left what no state has room for", "states of one fill it", "states of several fill it", "code left it"],
)  # fmt: skip
def test_whose_doing_it_is_that_a_state_cannot_be_kept(room: int, full: bool, fault: bool) -> None:
    """It is a fault of nobody where several trajectories fill a session; else its own code's, which starts anew."""

    async def work() -> str:
        sandbox = Room(room, full=full)
        tool = await PythonSessions(sandbox).open("t1")  # type: ignore[arg-type]
        states = [await tool.checkpoint() for _ in range(room)]
        if fault:
            with pytest.raises(InfrastructureFault, match="not this one"):
                await tool.checkpoint()
        else:
            states.append(await tool.checkpoint())
        assert len(sandbox.opened) == (1 if fault else 2)
        said = (await tool(CALL)).text
        for state in states:
            await tool.discard(state)
        assert [session.open for session in sandbox.opened] == ([True] if fault else [False, True])
        return said

    assert asyncio.run(work()) == ("1" if fault else f"{RESTARTED}\n1")
