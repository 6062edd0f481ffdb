"""Harnesses that do what none should, and what their rollouts come to."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("starlette", reason="serving needs the [serve] extra")

from integration.serve.test_harness_rollouts import TASK, grade, once, rolled
from retcon.engine.scripted import ScriptedEngine
from retcon.rollout.member import rollout_member
from retcon.serve.harness.opening import open_harness
from retcon.serve.harness.solving import ModelEndpoint, Solve
from retcon.tasks.types import Task
from servers.agent import BYTES, context_of


async def cancels(task: Task, endpoint: ModelEndpoint) -> None:
    raise asyncio.CancelledError


def cancels_in_its_thread(task: Task, endpoint: ModelEndpoint) -> None:
    raise asyncio.CancelledError


async def exits(task: Task, endpoint: ModelEndpoint) -> None:
    sys.exit("no key")


def exits_in_its_thread(task: Task, endpoint: ModelEndpoint) -> None:
    sys.exit(3)


async def in_a_group(task: Task, endpoint: ModelEndpoint) -> None:
    async def asked() -> None:
        raise LookupError("no such tool")

    async with asyncio.TaskGroup() as group:
        group.create_task(asked())


@pytest.mark.parametrize(
    ("solve", "why"),
    [
        (cancels, "the harness raised CancelledError ("),
        (cancels_in_its_thread, "the harness raised CancelledError ("),
        (exits, "the harness raised SystemExit: no key ("),
        (exits_in_its_thread, "the harness raised SystemExit: 3 ("),
        (in_a_group, "the harness raised LookupError: no such tool ("),
    ],
)
def test_whatever_a_harness_raises_costs_its_rollout_alone(solve: Solve, why: str) -> None:
    (made,), _, context = rolled(solve, ["Never."])
    assert (made.stop, made.reward) == ("infrastructure", None)
    assert context.faults.first.startswith(why)


def test_a_run_that_ends_takes_its_harnesses_along() -> None:
    """A cancelled run is no harness's fault."""

    async def main() -> None:
        begun = asyncio.Event()

        async def solve(task: Task, endpoint: ModelEndpoint) -> None:
            begun.set()
            await asyncio.Event().wait()

        async with open_harness(solve, 60.0) as harness:
            context = context_of(ScriptedEngine(BYTES, ["Never."]))
            own = replace(context, harness=harness)
            running = asyncio.ensure_future(rollout_member(TASK, own, 0, seed=3, step=2, grade=grade))
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert own.faults.first == ""

    asyncio.run(asyncio.wait_for(main(), 60))


def test_an_answer_after_the_time_is_none() -> None:
    async def solve(task: Task, endpoint: ModelEndpoint) -> Any:
        await once(task, endpoint)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "42"

    (made,), _, context = rolled(solve, ["Well."], seconds=0.5)
    assert (made.stop, made.reward) == ("infrastructure", None)
    assert context.faults.first == "the harness took more than 0.5 seconds (rollout.harness_seconds)"
