"""Harnesses that lead a second conversation, a critic's say: what becomes of the rollout where one of the two fails."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="serving needs the [serve] extra")

import httpx

from integration.serve.test_harness_rollouts import ask, rolled
from retcon.serve.harness import ModelEndpoint
from retcon.tasks.types import Task
from servers.agent import user


@pytest.mark.parametrize("lost", ["the main one's", "the critic's"])
@pytest.mark.parametrize("critic", ["critic", None], ids=["a session", "a conversation"])
def test_an_answer_to_another_conversation_makes_good_no_fault(lost: str, critic: str | None) -> None:
    """Only one to the same, however much later."""

    async def solve(task: Task, endpoint: ModelEndpoint) -> None:
        await ask(endpoint, [user("Hi.")])
        talks = [([user("Go.")], None), ([user("Who is right?")], critic)]
        first, second = talks if lost == "the main one's" else talks[::-1]
        with pytest.raises(httpx.HTTPStatusError):
            await ask(endpoint, first[0], session=first[1])
        await ask(endpoint, second[0], session=second[1])
        if again:
            await ask(endpoint, first[0], session=first[1])
            await ask(endpoint, [user("Go.")])

    def reply(id: str, *_: object) -> str:
        asked.append(id)
        if len(asked) == 2:
            raise ConnectionError("gone")
        return "\\boxed{42}"

    asked: list[str] = []
    again = False
    (made,), _, context = rolled(solve, reply)
    assert (made.stop, made.reward) == ("infrastructure", None)
    assert "gone" in context.faults.first
    asked.clear()
    again = True
    assert rolled(solve, reply)[0][0].reward == 1.0


def test_a_harness_that_names_a_session_for_all_that_it_asks_is_informed_about_the_header() -> None:
    """As one does for `serve-agent`."""

    async def solve(task: Task, endpoint: ModelEndpoint) -> None:
        await ask(endpoint, [user("Go.")], session="smol-1")

    (made,), _, context = rolled(solve, ["\\boxed{42}"])
    assert (made.stop, made.reward) == ("infrastructure", None)
    assert context.faults.first.startswith("the harness asks under x-retcon-session: smol-1 alone")
