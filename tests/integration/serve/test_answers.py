"""What the agent endpoint answers: programs run and repaired here, the client's own tools, streams."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("starlette", reason="serving needs the [serve] extra")

from conversing import bytes_of
from playing import call
from retcon.core.types import Trajectory
from servers.agent import MODEL, SAAR, SEARCH, Asking, asked, said, user

FAILS, WORKS = call("print(x, 6)", "Let me see. "), call("print(7, 6)", "x is not there. ")


def events(text: str) -> list[Any]:
    parts = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    assert parts.pop() == "[DONE]"
    return [json.loads(part) for part in parts]


def search(query: object, name: str = "search") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(query)}}}\n</tool_call>'


def test_a_failed_program_is_repaired_and_the_answer_says_how() -> None:
    async def play(client: Asking) -> None:
        answer = await client.chat([user("What is 6 times 7?")])
        assert said(answer) == {"role": "assistant", "content": "It is 42."}
        assert answer["choices"][0]["finish_reason"] == "stop"
        about = answer["retcon"]
        (repair,) = about["repairs"]
        assert (about["turns"], about["calls"], about["failed"]) == (2, 2, 1)
        assert (repair["decision"], repair["failed"][0]["error_type"]) == ("shallow", "NameError")
        assert repair["failed"][0]["arguments"] == {"code": "print(x, 6)"}
        assert repair["replaced_by"][0] == {
            "name": "python", "arguments": {"code": "print(7, 6)"},
            "status": "ok", "error_type": None, "output": "<print(7, 6)>",
        }  # fmt: skip
        (kept,) = client.trajectories(about["session"])
        assert (kept.failures, kept.raw_failures) == (0, 1)
        shown = client.engine.tokenizer.decode(client.engine.seen[-1][1])
        assert "print(x" not in shown
        assert answer["usage"]["completion_tokens"] == kept.sampled_tokens

    asked(play, [FAILS, WORKS, "It is 42."], repair=SAAR)


def test_the_clients_own_tools_are_the_clients_to_run() -> None:
    async def play(client: Asking) -> None:
        told: list[Any] = [user("Who?")]
        first = await client.chat(told, tools=[SEARCH])
        assert first["choices"][0]["finish_reason"] == "tool_calls"
        message = said(first)
        assert message["content"] == "I look."
        (made,) = first["choices"][0]["message"]["tool_calls"]
        assert made["function"] == {"name": "search", "arguments": '{"query": "Ada"}'}
        told += [message, {"role": "tool", "tool_call_id": made["id"], "content": "Lovelace"}]
        second = await client.chat(told, tools=[SEARCH])
        assert said(second)["content"] == "Ada Lovelace."
        assert second["retcon"]["session"] == first["retcon"]["session"]
        assert second["retcon"]["known_tokens"] == first["usage"]["total_tokens"]
        (kept,) = client.trajectories(second["retcon"]["session"])
        assert [o.text for turn in kept.turns for o in turn.observations] == ["Lovelace"]
        assert exact(kept, client)

    asked(play, ["I look.\n" + search({"query": "Ada"}), "Ada Lovelace."], style="hermes", repair=SAAR)


def exact(kept: Trajectory, client: Asking) -> bool:
    """Whether the trajectory's ids are what the engine was given last, and gave."""
    ids = [i for s in kept.segments for i in s.ids or ()]
    _, seen = client.engine.seen[-1]
    return tuple(ids[: len(seen)]) == seen


def test_blocks_of_python_are_for_the_clients_one_tool_that_takes_code() -> None:
    run = {"type": "function", "function": {"name": "run", "parameters": {
        "type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}}}  # fmt: skip

    async def play(client: Asking) -> None:
        answer = await client.chat([user("6 times 7?")], tools=[SEARCH, run])
        (made,) = answer["choices"][0]["message"]["tool_calls"]
        assert made["function"] == {"name": "run", "arguments": '{"code": "print(42)"}'}
        told = [user("6 times 7?"), said(answer), {"role": "tool", "tool_call_id": made["id"], "content": "42"}]
        assert said(await client.chat(told, tools=[SEARCH, run]))["content"] == "It is 42."
        refused = await client.post([user("?")], tools=[SEARCH])
        assert refused.status_code == 400
        assert "name no tool" in refused.json()["error"]["message"]

    asked(play, [call("print(42)"), "It is 42."])


def test_a_stop_string_is_left_out_and_may_be_put_back() -> None:
    async def play(client: Asking) -> None:
        about = {"model": f"{MODEL}:chat", "stop": ["</code>"]}
        first = await client.chat([user("Go.")], **about)
        assert said(first)["content"] == "<code>1"
        for text in ("<code>1", "<code>1</code>"):
            again = await client.chat([user("Go."), {"role": "assistant", "content": text}, user("On.")], **about)
            assert again["retcon"]["known_tokens"] == first["usage"]["total_tokens"]

    asked(play, ["<code>1</code> and more", "two", "three"])


def test_what_is_asked_for_is_how_it_is_sampled() -> None:
    async def play(client: Asking) -> None:
        about: dict[str, Any] = {
            "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3, "n": 1, "user": "me",
            "logprobs": False, "stop": "END", "parallel_tool_calls": True, "tool_choice": "auto",
            "reasoning_effort": "high",
        }  # fmt: skip
        await client.chat([user("Go.")], **about)
        await client.chat([user("Go.")], **about)
        await client.chat([user("Go.")], **(about | {"seed": 4}))
        one, again, other = client.engine.params
        assert (one.temperature, one.top_p, one.top_k, one.min_p, one.stop) == (0.5, 0.9, 5, 0.1, ("END",))
        assert one.seed == again.seed != other.seed

    asked(play, lambda *_: "Yes.")


def test_of_messages_on_channels_a_client_is_given_the_final_one() -> None:
    """And what it sends back is known by it: gpt-oss's turns hold what it thought, too."""
    thought, call_ = "<|channel|>analysis<|message|>Hm.", "<|channel|>commentary to=functions.search<|message|>"
    final = "<|start|>assistant<|channel|>final<|message|>"
    replies = [
        f'{thought}<|end|><|start|>assistant{call_}{{"query": "it"}}<|call|>',
        f"{thought}<|end|>{final}Ada.<|return|>",
        f"{thought}<|end|>{final}In 1815, STOP",
    ]

    async def play(client: Asking) -> None:
        told = [user("Who?")]
        first = await client.chat(told, tools=[SEARCH])
        message = said(first)
        assert message["content"] is None
        (made,) = first["choices"][0]["message"]["tool_calls"]
        told += [message, {"role": "tool", "tool_call_id": made["id"], "content": "Ada"}]
        second = await client.chat(told, tools=[SEARCH])
        assert said(second) == {"role": "assistant", "content": "Ada."}
        third = await client.chat([*told, said(second), user("When?")], tools=[SEARCH], stop=["STOP"])
        assert said(third) == {"role": "assistant", "content": "In 1815, "}
        assert third["retcon"]["known_tokens"] == second["usage"]["total_tokens"]
        (kept,) = client.trajectories(third["retcon"]["session"])
        assert [turn.text for turn in kept.turns] == replies

    asked(play, replies, style="chat_templates:GPT_OSS", tokenizer=bytes_of("harmony"))


def test_a_stream_says_the_same_in_pieces() -> None:
    long = "word " * 180

    async def play(client: Asking) -> None:
        answer = await client.post([user("Go.")], stream=True, stream_options={"include_usage": True})
        assert answer.headers["content-type"].startswith("text/event-stream")
        *parts, last, usage = events(answer.text)
        deltas = [part["choices"][0]["delta"] for part in parts]
        assert deltas[0]["role"] == "assistant"
        assert "".join(delta["content"] for delta in deltas) == long
        assert len(parts) > 2
        assert last["choices"][0]["finish_reason"] == "stop"
        assert last["retcon"]["turns"] == 1
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == len(long) + 1
        called = events((await client.post([user("RUN")], stream=True, tools=[RUN])).text)
        (delta,) = (part["choices"][0]["delta"] for part in called if "tool_calls" in part["choices"][0]["delta"])
        assert delta["tool_calls"][0]["index"] == 0
        assert called[-1]["choices"][0]["finish_reason"] == "tool_calls"

    asked(play, lambda _, text, n: call("print(1)") if "RUN" in text else long)


RUN = {"type": "function", "function": {"name": "run", "parameters": {
    "type": "object", "properties": {"code": {"type": "string"}}}}}  # fmt: skip
