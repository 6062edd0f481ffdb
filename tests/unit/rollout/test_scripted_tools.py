"""The scripted tools, against which users test too: a script that does not fit is told, and no test passes by it."""

from __future__ import annotations

import asyncio

import pytest

from playing import call, play, run_python
from retcon.core.errors import InfrastructureFault
from retcon.core.types import Observation, ToolCall
from retcon.tools.scripted import ScriptedSessions, ScriptedTool


def cell(code: str) -> ToolCall:
    return ToolCall("c", "python", {"code": code}, 0)


def test_code_that_a_script_lacks_is_the_scripts_mistake() -> None:
    tool = ScriptedTool({"print(1)": ("1", "ok", None)})
    assert asyncio.run(tool(cell("print(1)"))) == Observation("c", "1", "ok")
    with pytest.raises(KeyError, match=r"no answer to 'print\(2\)' \(did you mean 'print\(1\)'"):
        asyncio.run(tool(cell("print(2)")))
    assert tool.executed == ["print(1)", "print(2)"]


def test_a_state_that_is_kept_does_not_change_with_what_runs_afterwards() -> None:
    async def work() -> None:
        session = await ScriptedSessions(run_python).open("t")
        await session(cell("rows = [1]"))
        state = await session.checkpoint()
        for _ in range(2):
            await session(cell("rows.append(2)"))
            assert session.state == {"rows": [1, 2]}
            await session.rollback(state)
            assert session.state == {"rows": [1]}

    asyncio.run(work())


def test_one_cannot_go_back_to_what_is_not_kept() -> None:
    async def work() -> None:
        session = await ScriptedSessions(run_python).open("t")
        state = await session.checkpoint()
        await session.discard(state)
        with pytest.raises(InfrastructureFault, match=f"no checkpoint '{state}'"):
            await session.rollback(state)

    asyncio.run(work())


def test_a_script_without_an_answer_ends_the_rollout_that_asks_for_it() -> None:
    with pytest.raises(KeyError, match="no answer to 'x"):
        play([call("x")], tool=ScriptedTool({"y": ("", "ok", None)}))
