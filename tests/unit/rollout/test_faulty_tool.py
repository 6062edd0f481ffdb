"""Calls that fail as those of a tool whose service has a hiccup."""

from __future__ import annotations

import asyncio

import pytest

from playing import call, play
from retcon.core.types import Observation, ToolCall
from retcon.purify.saar import Saar
from retcon.tools.faults import HICCUPS, FaultSetup, FaultyTool
from retcon.tools.scripted import ScriptedSessions, ScriptedTool
from retcon.tools.types import StatefulTool, Tool


def asked(
    tool: Tool | StatefulTool,
    rate: float,
    *,
    calls: int = 400,
    seed: int = 0,
    chars: int = 200,
    trajectory: str = "t/0",
    order: int = 1,
) -> dict[str, Observation]:
    """What `calls` calls of one trajectory are told, by the call's id, asked in some order."""

    async def run() -> dict[str, Observation]:
        opened = await FaultyTool(tool, FaultSetup(rate, seed, chars)).open(trajectory)
        ids = [f"{n}.0.0" for n in range(calls)][::order]
        return {id: await opened(ToolCall(id, "python", {"code": "x"}, char=0)) for id in ids}

    return asyncio.run(run())


def answering() -> ScriptedTool:
    return ScriptedTool(lambda code: ("fine", "ok", None))


def test_a_share_of_the_calls_fails_visibly_and_never_reaches_the_tool() -> None:
    tool = answering()
    told = asked(tool, 0.25)
    failed = [one for one in told.values() if one.status != "ok"]
    assert 70 < len(failed) < 130  # 100 ± 3.5 standard deviations
    assert {one.status for one in failed} == {"error"}  # no infrastructure fault, for which the rollout would go
    assert {(one.error_type, one.text) for one in failed} == {(kind, f"{kind}: {said}") for kind, said in HICCUPS}
    assert len(tool.executed) == 400 - len(failed)


def test_which_calls_fail_depends_on_seed_trajectory_and_call_alone() -> None:
    def failing(**changes: object) -> set[str]:
        told = asked(answering(), 0.25, **changes)  # type: ignore[arg-type]
        return {id for id, one in told.items() if one.status != "ok"}

    assert failing() == failing(order=-1)
    assert failing() != failing(seed=1)
    assert failing() != failing(trajectory="t/1")


@pytest.mark.parametrize(("rate", "status"), [(0.0, {"ok"}), (1.0, {"error"})])
def test_none_or_all(rate: float, status: set[str]) -> None:
    assert {one.status for one in asked(answering(), rate, calls=50).values()} == status


def test_a_small_budget_is_kept() -> None:
    texts = {one.text for one in asked(answering(), 1.0, calls=50, chars=24).values()}
    assert texts == {f"{kind}: {said}"[:24] for kind, said in HICCUPS}


def test_a_tool_with_state_is_still_opened_checkpointed_and_closed() -> None:
    tool = ScriptedSessions(lambda code, state: (str(state.setdefault(code, 1)), "ok", None))

    async def run() -> None:
        opened = await FaultyTool(tool, FaultSetup(0.0, 0, 200)).open("t/0")
        name = await opened.checkpoint()
        await opened(ToolCall("0", "python", {"code": "x"}, char=0))
        await opened.rollback(name)
        await opened.discard(name)
        await opened.close()

    asyncio.run(run())
    assert tool.opened[0].events == ["checkpoint 1", "run x", "rollback 1", "discard 1", "close"]
    assert tool.opened[0].trajectory == "t/0"


def test_a_rollout_sees_the_fault_and_a_repair_takes_it_for_a_failure() -> None:
    """All calls fail, so that nothing is repaired; the rollout goes on to its answer."""
    faulty = FaultyTool(answering(), FaultSetup(1.0, 0, 200))
    made = play([call("x"), call("x"), "42"], tool=faulty, repair=Saar(attempts=1)).trajectory  # type: ignore[arg-type]
    assert made.raw_failures == 2
    assert made.stop == "answer"
    assert "did not answer in time" in made.text or "was reset" in made.text
