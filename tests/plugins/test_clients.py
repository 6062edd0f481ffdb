"""OpenAI's own client, and harnesses with loops of their own, through `retcon serve-agent`: `make integration`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents", reason="the clients, which `make integration` installs")

import httpx
import openai
import torch
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from agents.exceptions import MaxTurnsExceeded
from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool

from playing import call
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer, load_tokenizer
from retcon.config.load import load_recipe
from retcon.core.types import Trajectory
from retcon.engine.local.engine import LocalEngine
from retcon.engine.scripted import ScriptedEngine
from retcon.engine.types import SamplingParams
from retcon.models.loading import load_model
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.serve.recording import FILE
from retcon.store import jsonl
from retcon.train.update import to_samples, update
from servers.agent import MODEL, SAAR, SEARCH, context_of, serving_beside
from training import make_base

pytestmark = pytest.mark.filterwarnings("default")  # the clients' own
set_tracing_disabled(True)
LONG = 16_384
"""Tokens; smolagents tells a model some 6,000 of these before its first."""
ROOMY = RolloutLimits(max_tokens=60_000, max_turns=6, lookahead_tokens=4000)


def written(query: str, name: str = "search") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"query": "{query}"}}}}\n</tool_call>'


def replying(_: str, text: str, n: int) -> str:
    """To `number 7`: a program that fails, its fix, and an answer; or a call of the client's own tool."""
    number = text.rpartition("number ")[2].split("<", maxsplit=1)[0]
    return [call(f"print(x, {number})"), call(f"print(7, {number})"), f"It was {number}."][min(n, 2)]


def searching(_: str, text: str, n: int) -> str:
    return "Found it." if "<tool_response>" in text or "Observation" in text else written("it")


@contextmanager
def endpoint(
    replies: Any, record: Path | None = None, *, style: str = "markdown", **settings: Any
) -> Iterator[tuple[str, ScriptedEngine]]:
    engine = ScriptedEngine(ByteTokenizer(), replies)
    context = context_of(engine, style=style, repair=SAAR, limits=ROOMY)
    with serving_beside(context, record, **settings) as url:
        yield f"{url}/v1", engine


def test_openais_client_chats_with_64_at_once() -> None:
    async def main(url: str) -> list[Any]:
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            assert [model.id async for model in client.models.list()] == [MODEL, f"{MODEL}:chat"]
            ask = client.chat.completions.create
            return await asyncio.gather(
                *(ask(model=MODEL, messages=[{"role": "user", "content": f"number {n}"}]) for n in range(64))
            )

    with endpoint(replying) as (url, _):
        answers = asyncio.run(main(url))
    assert [answer.choices[0].message.content for answer in answers] == [f"It was {n}." for n in range(64)]
    assert [len(answer.retcon["repairs"]) for answer in answers] == [1] * 64
    assert all(answer.usage.total_tokens > 0 and answer.choices[0].finish_reason == "stop" for answer in answers)


def test_openais_client_streams_64_at_once() -> None:
    async def one(client: openai.AsyncOpenAI, n: int) -> tuple[str, int]:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": f"number {n}"}], stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        text, tokens = "", 0
        async for chunk in stream:
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            tokens = chunk.usage.completion_tokens if chunk.usage else tokens
        return text, tokens

    async def main(url: str) -> list[tuple[str, int]]:
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            return await asyncio.gather(*(one(client, n) for n in range(64)))

    with endpoint(replying) as (url, _):
        found = asyncio.run(main(url))
    assert [text for text, _ in found] == [f"It was {n}." for n in range(64)]
    assert all(tokens > 10 for _, tokens in found)


@pytest.mark.parametrize("stream", [False, True])
def test_openais_client_runs_tools_of_its_own(stream: bool) -> None:
    with endpoint(searching, style="hermes") as (url, _), openai.OpenAI(base_url=url, api_key="none") as client:
        told: list[Any] = [{"role": "user", "content": "Who?"}]
        about: dict[str, Any] = {"model": MODEL, "tools": [SEARCH], "tool_choice": "auto"}
        if stream:
            with client.chat.completions.stream(messages=told, **about) as events:
                message = events.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(messages=told, **about).choices[0].message
        (made,) = message.tool_calls or ()
        assert json.loads(made.function.arguments) == {"query": "it"}
        told += [message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": made.id, "content": "Ada"}]
        answer = client.chat.completions.create(messages=told, **about)
    assert answer.choices[0].message.content == "Found it."
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens


def test_openais_client_knows_the_errors() -> None:
    replies = [ConnectionError("gone"), "Yes."]
    with endpoint(replies, token="secret") as (url, _):
        ask: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Go."}]}
        with openai.OpenAI(base_url=url, api_key="other") as client, pytest.raises(openai.AuthenticationError):
            client.chat.completions.create(**ask)
        with openai.OpenAI(base_url=url, api_key="secret", max_retries=0) as client:
            with pytest.raises(openai.BadRequestError) as wrong:
                client.chat.completions.create(**ask, n=3)
            assert (wrong.value.param, wrong.value.type) == ("n", "invalid_request_error")
            with pytest.raises(openai.NotFoundError) as unknown:
                client.chat.completions.create(**{**ask, "model": "smal"})
            assert unknown.value.code == "model_not_found"
            with pytest.raises(openai.InternalServerError) as lost:
                client.chat.completions.create(**ask)
            assert (lost.value.status_code, lost.value.code) == (503, "unavailable")


@tool
def look_up(query: str) -> str:
    """Looks a word up.

    Args:
        query: the word
    """
    return f"<{query}>"


def sessions(url: str, session: str, reward: float) -> None:
    httpx.post(f"{url}/sessions/{session}/reward", json={"reward": reward}).raise_for_status()


@contextmanager
def smol(url: str, session: str, model: str = MODEL) -> Iterator[OpenAIServerModel]:
    headers = {"X-Retcon-Session": session, "X-Retcon-Task": "asked"}
    made = OpenAIServerModel(model, api_base=url, api_key="none", client_kwargs={"default_headers": headers})
    yield made
    made.client.close()


def exact(kept: Trajectory, engine: ScriptedEngine) -> bool:
    """Whether the trajectory begins with what the engine was given last."""
    ids = tuple(i for s in kept.segments for i in s.ids or ())
    return ids[: len(engine.seen[-1][1])] == engine.seen[-1][1]


def test_a_code_agent_of_smolagents_is_one_conversation(tmp_path: Path) -> None:
    replies = [
        "I compute.\n<code>\ny = 6 * 7\nprint(y)\n</code> never said",
        "A slip.\n<code>\nprint(z)\n</code>",
        "<code>\nfinal_answer(look_up(str(y)))\n</code>",
    ]
    with endpoint(replies, tmp_path) as (url, engine):
        with smol(url, "code", f"{MODEL}:chat") as model:
            agent = CodeAgent([look_up], model, max_steps=5, verbosity_level=0)
            assert agent.run("6 times 7?") == "<42>"
        sessions(url, "code", 1.0)
    (kept,) = jsonl.read(tmp_path / FILE)
    assert (kept.id, kept.task, kept.reward, len(kept.turns)) == ("code/0", "asked", 1.0, 3)
    assert exact(kept, engine)
    learnt = [s.text for s in kept.segments if s.kind == "sampled"]
    assert learnt[0].endswith("</code>")
    assert "Calling tools" not in "".join(learnt)
    assert "NameError" in kept.text or "not defined" in kept.text


def test_a_tool_calling_agent_of_smolagents_is_one_conversation(tmp_path: Path) -> None:
    replies = [
        written("Ada", "look_up"),
        'So.\n<tool_call>\n{"name": "final_answer", "arguments": {"answer": "Ada"}}\n</tool_call>',
    ]
    with endpoint(replies, tmp_path, style="qwen") as (url, engine):
        with smol(url, "tools") as model:
            assert ToolCallingAgent([look_up], model, max_steps=5, verbosity_level=0).run("Who?") == "Ada"
        sessions(url, "tools", 1.0)
    (kept,) = jsonl.read(tmp_path / FILE)
    assert [turn.calls[0].name for turn in kept.turns] == ["look_up", "final_answer"]
    assert exact(kept, engine)
    assert "&lt;Ada&gt;" in kept.text or "<Ada>" in kept.text


@function_tool
def find(query: str) -> str:
    """Looks a word up."""
    if query == "nothing":
        raise ValueError("no such page")
    return f"<{query}>"


def run_agent(url: str, session: str, *, turns: int = 6) -> str | None:
    """The SDK's own loop; None where it did not come to an end within its turns."""

    async def main() -> str | None:
        headers = {"X-Retcon-Session": session, "X-Retcon-Task": "asked"}
        async with openai.AsyncOpenAI(base_url=url, api_key="none", default_headers=headers) as client:
            model = OpenAIChatCompletionsModel(MODEL, client)
            agent = Agent("finder", instructions="Find it.", tools=[find], model=model)
            try:
                return str((await Runner.run(agent, "Who?", max_turns=turns)).final_output)
            except MaxTurnsExceeded:
                return None

    return asyncio.run(main())


def test_an_agent_of_openais_sdk_is_one_conversation(tmp_path: Path) -> None:
    replies = ["I look.\n" + written("nothing", "find"), written("Ada", "find"), "It is Ada."]
    with endpoint(replies, tmp_path, style="qwen") as (url, engine):
        assert run_agent(url, "sdk") == "It is Ada."
        sessions(url, "sdk", 1.0)
    (kept,) = jsonl.read(tmp_path / FILE)
    assert [[o.status for o in turn.observations] for turn in kept.turns][1:] == [["ok"], []]
    assert "error occurred" in kept.turns[0].observations[0].text
    assert exact(kept, engine)


@pytest.mark.parametrize("harness", ["smolagents", "openai-agents"])
def test_what_a_harness_did_trains(harness: str, tmp_path: Path) -> None:
    """A GRPO update of a tiny model on conversations that these loops had with it: on-policy, so that nothing is
    clipped, and the log-probs on the record are the model's own."""
    folder = make_base(tmp_path / "base", positions=LONG)
    model = load_model(folder)
    chat = Chat(load_tokenizer(folder), style="markdown" if harness == "smolagents" else "hermes")
    engine = LocalEngine(model, max_len=LONG, max_requests=8, tokenizer=chat.tokenizer)
    limits = RolloutLimits(max_tokens=LONG - 500, max_turns=3, lookahead_tokens=500)
    context = RolloutContext(engine, chat, {}, limits, SamplingParams(max_tokens=24), SAAR, model="tiny")
    with serving_beside(context, tmp_path, answer_tokens=24) as base:
        url = f"{base}/v1"
        for n in range(4):
            if harness == "smolagents":
                with smol(url, f"s{n}", f"{MODEL}:chat") as served:
                    CodeAgent([], served, max_steps=2, verbosity_level=0).run("Go.")
            else:
                run_agent(url, f"s{n}", turns=2)
            sessions(url, f"s{n}", float(n % 2))
    group = list(jsonl.read(tmp_path / FILE))
    assert {t.task for t in group} == {"asked"}
    assert all(t.sampled_tokens for t in group)
    section = load_recipe(None, ["rl.algorithm=grpo", "rl.minibatches=1"]).rl
    rewards = [t.reward or 0.0 for t in group]
    samples = to_samples(group, section.advantages(rewards), section)
    before = [parameter.clone() for parameter in model.parameters()]
    metrics = update(model, torch.optim.AdamW(model.parameters()), samples, section, seed=0, step=1)
    assert metrics["clip_fraction"] == 0
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-8)
    assert metrics["grad_norm"] > 0  # type: ignore[operator]
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
