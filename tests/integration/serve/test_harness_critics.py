"""Harnesses that lead a second conversation, a critic's say: what becomes of the rollout where one of the two fails."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="serving needs the [serve] extra")


from integration.serve.test_harness_rollouts import ask, rolled
from retcon.serve.harness import ModelEndpoint
from retcon.tasks.types import Task
from servers.agent import user


def test_a_harness_that_names_a_session_for_all_that_it_asks_is_informed_about_the_header() -> None:
    """As one does for `serve-agent`."""

    async def solve(task: Task, endpoint: ModelEndpoint) -> None:
        await ask(endpoint, [user("Go.")], session="smol-1")

    (made,), _, context = rolled(solve, ["\\boxed{42}"])
    assert (made.stop, made.reward) == ("infrastructure", None)
    assert context.faults.first.startswith("the harness asks under x-retcon-session: smol-1 alone")
