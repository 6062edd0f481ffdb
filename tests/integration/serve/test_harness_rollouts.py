"""Rollouts that a harness makes: a function that asks the model at a URL of its own, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("starlette", reason="serving needs the [serve] extra")

import httpx

from retcon.core.codec import from_dict, to_dict
from retcon.core.errors import InfrastructureFault, RecipeError
from retcon.core.types import Trajectory, ids_of
from retcon.engine.kinds.scripted import Reply, ScriptedEngine
from retcon.engine.types import SamplingParams
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.rollout.group import rollout_group, rollout_member
from retcon.serve.harness import HarnessFunction, ModelEndpoint
from retcon.serve.harness_server import open_harness
from retcon.tasks.graders.text import final_answer
from retcon.tasks.registry import Grade
from retcon.tasks.types import Task
from servers.agent import BYTES, LIMITS, SAAR, SEARCH, context_of, said, user

TASK = Task("sums/1", "What is 6 times 7?", "42", system="Be brief.")


def grade(task: Task, trajectory: Trajectory) -> Trajectory:
    """As task sets do: what ended by a limit is wrong, and what was lost is not graded."""
    answer = final_answer(trajectory.turns[-1].text) if trajectory.stop == "answer" else None
    return replace(trajectory, answer=answer, reward=float(answer == task.answer))


async def ask(endpoint: ModelEndpoint, messages: Sequence[Any], *, session: str | None = None, **more: object) -> Any:
    """The message that the model answers with, as a harness sends it back."""
    headers = {"X-Retcon-Session": session} if session else {}
    async with httpx.AsyncClient(timeout=60, headers=headers) as http:
        body = {"model": endpoint.name, "messages": list(messages), **more}
        answer = await http.post(f"{endpoint.url}/chat/completions", json=body)
        return said(answer.raise_for_status().json())


async def once(task: Task, endpoint: ModelEndpoint) -> None:
    await ask(endpoint, [{"role": "system", "content": task.system}, user(task.question)])


def rolled(
    solve: HarnessFunction,
    replies: Sequence[Reply] | Callable[[str, str, int], str],
    *,
    count: int = 1,
    seconds: float = 60.0,
    style: str = "markdown",
    limits: RolloutLimits = LIMITS,
    grade: Grade = grade,
    **changed: Any,
) -> tuple[list[Trajectory], ScriptedEngine, RolloutContext]:
    """A group of one task, its engine and what it shared."""
    engine = ScriptedEngine(BYTES, replies)
    context = replace(context_of(engine, style=style, limits=limits), **changed)

    async def main() -> list[Trajectory]:
        async with open_harness(solve, seconds) as harness:
            own = replace(context, harness=harness)
            return await rollout_group(TASK, own, count=count, seed=3, step=2, grade=grade)

    return asyncio.run(asyncio.wait_for(main(), 120)), engine, context


def test_the_last_message_is_graded_and_what_was_sampled_is_learnt() -> None:
    (made,), engine, _ = rolled(once, ["It is \\boxed{42}."])
    assert (made.id, made.task, made.reward, made.answer, made.stop) == ("sums/1/2/0", "sums/1", 1.0, "42", "answer")
    assert "Be brief." in made.text
    assert made.turns[-1].text.startswith("It is \\boxed{42}.")
    assert ids_of(made.prompt) == engine.seen[0][1]
    assert all(s.logprobs is not None for s in made.turns[0].generated)
    assert (made.provenance.step, made.provenance.index, made.provenance.purified) == (2, 0, False)
    assert len(engine.released) == 1  # what the engine keeps for it is let go when it is over


async def in_two_turns(task: Task, endpoint: ModelEndpoint) -> str:
    told = [user(task.question)]
    called = await ask(endpoint, told, tools=[SEARCH])
    (call,) = called["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "six sevens"}
    return f"\\boxed{{{(await ask(endpoint, [*told, called, result], tools=[SEARCH]))['content']}}}"


def test_a_harness_runs_its_own_tools_in_one_conversation() -> None:
    call = '<tool_call>\n{"name": "search", "arguments": {"query": "6 7"}}\n</tool_call>'
    (made,), *_ = rolled(in_two_turns, [call, "42"], style="hermes")
    assert [turn.stop for turn in made.turns] == ["call", "answer"]
    assert made.turns[0].observations[0].text == "six sevens"
    assert (made.reward, made.answer) == (1.0, "42")
    assert made.turns[-1].text.startswith("42")  # what was sampled, whatever the harness makes of it


@pytest.mark.parametrize(
    ("says", "reward"), [("a box: \\boxed{42}", 1.0), ("41", 0.0), (0.25, 0.25), (True, 1.0), (-2, -2.0)]
)
def test_what_the_function_returns_is_the_answer_or_the_reward(says: Any, reward: float) -> None:
    async def solve(task: Task, endpoint: ModelEndpoint) -> Any:
        await once(task, endpoint)
        return says

    (made,), *_ = rolled(solve, ["Let me think."])
    assert (made.reward, made.stop, made.returned) == (reward, "answer", says)
    assert from_dict(to_dict(made)) == made
    assert made.turns[-1].text.startswith("Let me think.")


@pytest.mark.parametrize("says", [float("nan"), ["42"], b"42"])
def test_what_can_be_neither_ends_the_run(says: Any) -> None:
    with pytest.raises(RecipeError, match=r"rollout.harness: it returned .* of task 'sums/1': an answer is text"):
        rolled(lambda task, endpoint: says, ["Never asked."])


def test_rollouts_sample_as_the_recipe_says_whatever_is_asked_for() -> None:
    async def solve(task: Task, endpoint: ModelEndpoint) -> None:
        await ask(endpoint, [user("Go.")], temperature=0, top_p=0.1, top_k=1, seed=7, max_tokens=5)

    made, engine, _ = rolled(solve, ["A long story."], count=2, sampling=SamplingParams(0.7, 0.9, max_tokens=99))
    assert {(p.temperature, p.top_p, p.top_k, p.max_tokens) for p in engine.params} == {(0.7, 0.9, 0, 5)}
    assert len({p.seed for p in engine.params}) == 2
    assert {t.stop for t in made} == {"length"}
    again = rolled(solve, ["A long story."], count=2)[1]
    assert sorted(p.seed for p in again.params) == sorted(p.seed for p in engine.params)


@pytest.mark.parametrize(
    ("solve", "why"),
    [
        (lambda task, endpoint: 1 / 0, r"the harness raised ZeroDivisionError: division by zero \(.*harness_rollouts"),
        (lambda task, endpoint: None, "the harness asked the model nothing that was answered"),
        (lambda task, endpoint: "42", "the harness asked the model nothing that was answered"),
        (lambda task, endpoint: next(iter(())), "the harness raised RuntimeError: StopIteration"),
    ],
)
def test_a_harness_that_breaks_costs_its_rollout_and_says_why(solve: HarnessFunction, why: str) -> None:
    made, _, context = rolled(solve, ["Never."], count=2)
    assert [(t.stop, t.reward, t.turns) for t in made] == [("infrastructure", None, ())] * 2
    with pytest.raises(InfrastructureFault, match=why):
        raise InfrastructureFault(context.faults.first)


def test_a_harness_that_hangs_is_given_up() -> None:
    cancelled: list[str] = []

    async def solve(task: Task, endpoint: ModelEndpoint) -> None:
        await once(task, endpoint)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(task.id)
            raise

    (made,), _, context = rolled(solve, ["Well."], seconds=2)  # in which a busy machine, too, has answered
    assert (made.stop, made.reward, len(made.turns), cancelled) == ("infrastructure", None, 1, ["sums/1"])
    assert context.faults.first == "the harness took more than 2 seconds (rollout.harness_seconds)"


@pytest.mark.parametrize("says", [None, "42", 1.0])
def test_a_model_that_could_not_be_reached_is_not_the_models_fault(says: Any) -> None:
    """Whatever the harness makes of it."""

    async def solve(task: Task, endpoint: ModelEndpoint) -> Any:
        told = [user("Go.")]
        told += [await ask(endpoint, told), user("On.")]
        with pytest.raises(httpx.HTTPStatusError):
            await ask(endpoint, told)
        return says

    (made,), _, context = rolled(solve, ["Yes.", ConnectionError("gone")])
    assert (made.stop, made.reward) == ("infrastructure", None)
    assert "gone" in context.faults.first


def test_a_url_serves_its_rollout_alone_and_no_longer() -> None:
    left: list[ModelEndpoint] = []

    async def solve(task: Task, endpoint: ModelEndpoint) -> None:
        for before in left:
            async with httpx.AsyncClient() as http:
                gone = await http.post(f"{before.url}/chat/completions", json={})
            assert (gone.status_code, gone.json()["error"]["code"]) == (404, "no_such_rollout")
        await once(task, endpoint)
        left.append(endpoint)

    async def main() -> list[Trajectory]:
        context = context_of(ScriptedEngine(BYTES, lambda *_: "\\boxed{42}"))
        async with open_harness(solve, 60.0) as harness:
            own = replace(context, harness=harness)
            return [await rollout_member(TASK, own, n, seed=3, step=2, grade=grade) for n in range(3)]

    assert [t.reward for t in asyncio.run(asyncio.wait_for(main(), 60))] == [1.0, 1.0, 1.0]


def test_without_tools_of_its_own_calls_run_here_and_are_repaired() -> None:
    replies = ["```python\nx\n```", "```python\n6 * 7\n```", "\\boxed{42}"]
    (made,), *_ = rolled(once, replies, repair=SAAR)
    assert (made.reward, made.raw_failures, made.failures) == (1.0, 1, 0)
    assert made.provenance.purified
    (plain,), *_ = rolled(once, replies)
    assert (plain.raw_failures, plain.failures, plain.provenance.purified) == (1, 1, False)
