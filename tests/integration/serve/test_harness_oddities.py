"""Harnesses that do what none should, and what their rollouts come to."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("starlette", reason="serving needs the [serve] extra")

import httpx

from integration.serve.test_harness_rollouts import TASK, grade, once, rolled
from retcon.core.errors import RecipeError
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.rollout.context import RolloutLimits
from retcon.rollout.group import rollout_member
from retcon.serve.harness import HarnessFunction, ModelEndpoint, find_harness
from retcon.serve.harness_server import open_harness
from retcon.tasks.types import Task
from retcon.train.objective.shaping import has_void_turn
from servers.agent import BYTES, SEARCH, context_of, user


async def cancels(task: Task, endpoint: ModelEndpoint) -> None:
    raise asyncio.CancelledError


def cancels_in_its_thread(task: Task, endpoint: ModelEndpoint) -> None:
    raise asyncio.CancelledError


async def exits(task: Task, endpoint: ModelEndpoint) -> None:
    sys.exit("no key")


def exits_in_its_thread(task: Task, endpoint: ModelEndpoint) -> None:
    sys.exit(3)


async def in_a_group(task: Task, endpoint: ModelEndpoint) -> None:
    async def one() -> None:
        raise LookupError("no such tool")

    async with asyncio.TaskGroup() as group:
        group.create_task(one())


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
def test_whatever_a_harness_raises_costs_its_rollout_alone(solve: HarnessFunction, why: str) -> None:
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


def asked(endpoint: ModelEndpoint, path: str = "chat/completions", **more: Any) -> Any:
    """A request that has been sent, and its answer."""
    body = more.pop("body", {"model": endpoint.name, "messages": [user("Go.")]})
    return httpx.post(f"{endpoint.url}/{path}", json=body, timeout=60, **more)


def test_a_rollout_has_no_session_to_end() -> None:
    """As serve-agent's have, which are rewarded there: else there would be nothing left to learn from."""

    def solve(task: Task, endpoint: ModelEndpoint) -> float:
        session = asked(endpoint).headers["X-Retcon-Session"]
        refused = asked(endpoint, f"sessions/{session}/reward", body={"reward": 1.0})
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "no_such_endpoint")
        assert "its harness returns the reward" in refused.text
        return 0.5

    (made,), _, context = rolled(solve, ["Well."])
    assert (made.stop, made.reward, context.faults.first) == ("answer", 0.5, "")


@pytest.mark.parametrize(("reply", "answer"), [("Well.", "Well."), ("Well, " * 200, None)])
def test_a_reward_of_the_harnesss_own_is_of_the_models_last_message(reply: str, answer: str | None) -> None:
    """Else `rl.void_turns` would take every rollout for one that gave no answer, and nothing would be learnt."""

    async def solve(task: Task, endpoint: ModelEndpoint) -> float:
        await once(task, endpoint)
        return 0.5

    (made,), *_ = rolled(solve, [reply], limits=RolloutLimits(400, 3))
    assert (made.reward, made.answer) == (0.5, answer)
    assert has_void_turn(made) is (answer is None)


@pytest.mark.parametrize("arguments", ['{"cod": "6 * 7"}', '{"code": 42}'])
def test_the_harness_of_the_example_tells_a_call_that_it_cannot_run(arguments: str) -> None:
    """What it raised for the model's mistakes would keep them from being learnt."""
    replies = [f'<tool_call>\n{{"name": "python", "arguments": {arguments}}}\n</tool_call>', "\\boxed{42}"]
    (made,), _, context = rolled(find_harness("examples.own_harness.agent:solve"), replies, style="hermes")
    assert (made.reward, context.faults.first) == (1.0, "")
    assert [one.status for one in made.turns[0].observations] == ["error"]


async def posted(endpoint: ModelEndpoint, text: str, **more: object) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as http:
        body = {"model": endpoint.name, "messages": [user(text)], **more}
        return await http.post(f"{endpoint.url}/chat/completions", json=body)


@pytest.mark.parametrize("more", [{}, {"tools": [SEARCH]}])
def test_no_rollout_has_more_turns_than_it_may_where_it_asks_at_once(more: dict[str, Any]) -> None:
    """Those of requests that are being answered count; one that might find none left waits, and is told so then."""

    async def solve(task: Task, endpoint: ModelEndpoint) -> None:
        answers.extend(await asyncio.gather(*(posted(endpoint, f"Try {n}.", **more) for n in range(6))))

    answers: list[httpx.Response] = []
    (made,), engine, _ = rolled(solve, lambda *_: "Yes.", limits=RolloutLimits(4000, 3), style="hermes")
    assert sorted(one.status_code for one in answers) == [200] * 3 + [400] * 3
    assert {one.json()["error"]["code"] for one in answers if one.status_code == 400} == {"max_turns"}
    assert len(engine.seen) == 3
    assert (len(made.turns), made.stop) == (1, "turns")


def returns(says: Any) -> HarnessFunction:
    async def solve(task: Task, endpoint: ModelEndpoint) -> Any:
        await once(task, endpoint)
        return says

    return solve


def test_a_built_in_that_does_not_say_what_it_takes_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"rollout\.harness: 'builtins:max' is .*where a function solve"):
        find_harness("builtins:max")
