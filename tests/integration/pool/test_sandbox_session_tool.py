"""The tool that keeps a session for each trajectory: what it says when one is lost, and when its own code lost it."""

from __future__ import annotations

import pytest

from retcon.core.errors import CheckpointRefused, InfrastructureFault
from retcon.core.types import Observation, ToolCall
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Limits, SessionBounds
from retcon.tools.kinds.python import RESTARTED, PythonSessions
from retcon.tools.types import OpenTool, StatefulTool
from sessions import DEEP, using


async def say(tool: OpenTool, code: str) -> Observation:
    return await tool(ToolCall("c", "python", {"code": code}, 0))


def test_the_tool_keeps_state_goes_back_and_starts_anew_after_a_crash() -> None:
    async def work(pool: SandboxPool) -> None:
        tools = PythonSessions(pool)
        assert isinstance(tools, StatefulTool)
        tool = await tools.open("t1")
        assert (await say(tool, "x = 1\nx")).text == "1"
        state = await tool.checkpoint()
        crash = await say(tool, "x = 2\nimport os\nos.kill(os.getpid(), 9)")
        assert (crash.status, crash.error_type) == ("error", "SIGKILL")
        assert crash.text.endswith("SIGKILL: killed by signal 9")
        after = await tool.checkpoint()
        fresh = await say(tool, "'x' in globals()")
        assert (fresh.status, fresh.text) == ("ok", f"{RESTARTED}\nFalse")
        assert (await say(tool, "2")).text == "2"
        await tool.rollback(after)
        assert (await say(tool, "'x' in globals()")).text == f"{RESTARTED}\nFalse"
        await tool.rollback(state)
        assert (await say(tool, "x")).text == "1"
        await tool.rollback(after)
        assert (await say(tool, "'x' in globals()")).text == f"{RESTARTED}\nFalse"
        await tool.discard(after)
        with pytest.raises(InfrastructureFault, match="no checkpoint"):
            await tool.rollback(after)
        await tool.discard(state)
        assert (await say(tool, "1 / 0")).text.endswith("ZeroDivisionError: division by zero")
        assert (await tool(ToolCall("c", "python", "x", 0))).status == "malformed"
        await tool.close()
        assert pool.open_sessions == 0

    using(work)


NO_COPIES = (
    "import os\nfor name in os.listdir('/proc'):\n"
    "    if name.isdigit() and int(name) not in (1, os.getpid()):\n"
    "        try: os.kill(int(name), 9)\n        except OSError: pass\n1 / 0"
)
NO_FORK = "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (0, 0))"


@pytest.mark.parametrize(
    ("spoils", "why"),
    [
        (DEEP, "nested deeper"),
        (NO_FORK, "no further process"),
        ("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()", "threads"),
    ],
    ids=["deep folders", "no forks", "a thread"],
)
def test_code_that_prevents_a_checkpoint_keeps_its_state(spoils: str, why: str) -> None:
    async def work(pool: SandboxPool) -> None:
        tool = await PythonSessions(pool).open("t1")
        await say(tool, "x = 1")
        before = await tool.checkpoint()
        await say(tool, f"x = 2\n{spoils}")
        with pytest.raises(CheckpointRefused, match=why):
            await tool.checkpoint()
        assert (await say(tool, "x")).text == "2"
        await tool.rollback(before)
        assert (await say(tool, "x")).text == "1"
        await tool.close()

    using(work)


def test_code_that_prevents_its_own_rollback_loses_its_state_and_is_no_fault_of_ours() -> None:
    async def work(pool: SandboxPool) -> None:
        if pool.tier != "namespaces":
            pytest.skip("this machine grants no process namespace")
        tool = await PythonSessions(pool).open("t1")
        await say(tool, "x = 1")
        before = await tool.checkpoint()
        await say(tool, NO_COPIES)
        after = await tool.checkpoint()
        for state in (before, after, before):
            await tool.rollback(state)
            assert (await say(tool, "1 + 1")).text in ("2", f"{RESTARTED}\n2")
        await tool.discard(before)
        await tool.discard(after)
        assert (await say(tool, "2 + 2")).text.endswith("4")
        await tool.close()
        assert pool.open_sessions == 0

    using(work)


def test_a_session_that_the_states_of_several_fill_keeps_what_it_has() -> None:
    """As those of a tree do: nobody's code left what cannot be kept, and nobody's variables go."""

    async def work(pool: SandboxPool) -> None:
        tool = await PythonSessions(pool, limits=Limits(memory_mb=64)).open("t1")
        assert (await say(tool, "x = bytes([1]) * (50 << 20)\nlen(x)")).status == "ok"
        states = [await tool.checkpoint() for _ in range(3)]
        with pytest.raises(CheckpointRefused, match="hold more than 128 MiB: discard some"):
            await tool.checkpoint()
        assert (await say(tool, "len(x) >> 20")).text == "50"
        await tool.discard(states[0])
        await tool.rollback(await tool.checkpoint())
        assert (await say(tool, "len(x) >> 20")).text == "50"

    using(work)


def test_a_session_that_the_sandbox_lost_is_nobodys_mistake() -> None:
    async def work(pool: SandboxPool) -> None:
        tools = PythonSessions(pool)
        tool = await tools.open("t1")
        assert (await say(tool, "x = 1")).status == "ok"
        await tools.open("t2")  # there is room once the first was evicted
        for _repeat in range(2):
            seen = await say(tool, "x")
            assert (seen.status, seen.error_type) == ("infrastructure", "SessionLost")
            assert "evicted" in seen.text
        with pytest.raises(InfrastructureFault, match="evicted"):
            await tool.checkpoint()
        await pool.close()
        with pytest.raises(InfrastructureFault, match="trajectory t3: the sandbox is not open"):
            await tools.open("t3")

    using(work, sessions=SessionBounds(1, idle_seconds=0.2, wait_seconds=30))
