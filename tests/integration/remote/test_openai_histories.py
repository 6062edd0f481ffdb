"""Histories whose calls and answers do not match are told as the API takes them: every call answered, and no other."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.types import Trajectory, ids_of
from retcon.engine.openai.engine import OpenAIEngine, OpenAISettings
from retcon.engine.openai.messages import StandIn, request_of
from retcon.engine.types import Generation, SamplingParams
from retcon.purify.kinds.describe import Describe
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.rollout.loop import run_rollout
from retcon.tasks.types import Task
from retcon.tools.schema import python_spec
from retcon.tools.scripted import ScriptedTool
from servers.answering import Answer, Asked, python, said, serving

TOKENIZER = StandIn(ByteTokenizer(), "bytes")
SPEC = python_spec(keeps_state=False)
CHAT = Chat(TOKENIZER, style="retcon.engine.openai.messages:NATIVE", tools=[SPEC])
LIMITS = RolloutLimits(max_tokens=8000, max_turns=6, lookahead_tokens=8000)


def refused(messages: list[dict[str, Any]]) -> str:
    """Why OpenAI's own API would refuse them."""
    left: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in left:
                return "a message with role 'tool' must be a response to a preceding message with 'tool_calls'"
            left.remove(message["tool_call_id"])
        elif left:
            return f"'tool_calls' must be followed by a message with role 'tool' for each: {left}"
        else:
            left = [call["id"] for call in message.get("tool_calls", ())]
    return f"not answered: {left}" if left else ""


def strict(*answers: Answer) -> Any:
    left = list(answers)

    def reply(asked: Asked) -> Answer:
        why = refused(asked.body["messages"])
        return Answer({"error": {"message": why}}, 400) if why else left.pop(0)

    return reply


def described(*answers: Answer) -> tuple[Trajectory, list[dict[str, Any]]]:
    """The rollout, and what the server was told last, after the question."""

    def run(code: str) -> tuple[str, Any, str | None]:
        return ("NameError: x", "error", "NameError") if "x" in code else (f"<{code}>", "ok", None)

    async def main(url: str) -> Trajectory:
        engine = OpenAIEngine(OpenAISettings(url, wait=0.001, attempts=1), TOKENIZER)
        tools = {"python": ScriptedTool(run, spec=SPEC)}
        context = RolloutContext(engine, CHAT, tools, LIMITS, SamplingParams(max_tokens=2000), Describe())
        async with engine.connected():
            return await run_rollout(Task("t", "6 times 7?", "42"), context, id="t/0/0", seed=1)

    with serving(strict(*answers)) as server:
        made = asyncio.run(asyncio.wait_for(main(server.url), 60))
        return made, server.asked[-1].body["messages"][1:]


@pytest.mark.parametrize("words", ["I compute.", None])
def test_what_a_described_call_said_is_told_by_the_user(words: str | None) -> None:
    made, told = described(said(words, python("x", "a")), said("42"))
    assert made.stop == "answer"
    assert told == [
        {"role": "assistant", "content": "I compute.\n" if words else ""},
        {"role": "user", "content": "[python failed: NameError: x]"},
    ]


def test_calls_before_a_described_one_are_told_with_their_answers() -> None:
    made, told = described(said("Both.", python("6*7", "a"), python("x", "b")), said("42"))
    assert made.stop == "answer"
    assistant, first, second = told
    assert [call["id"] for call in assistant["tool_calls"]] == ["a"]
    assert first == {"role": "tool", "tool_call_id": "a", "content": "<6*7>"}
    assert second == {"role": "user", "content": "[python failed: NameError: x]"}


def test_a_call_that_was_cut_off_is_told_as_words_where_the_conversation_goes_on() -> None:
    cut = python("", "a") | {"arguments": '{"code": "x = 1\\ny ='}

    async def main(url: str) -> Generation:
        engine = OpenAIEngine(OpenAISettings(url, wait=0.001, attempts=1), TOKENIZER)
        async with engine.connected():
            ids = list(ids_of(CHAT.prompt("6 times 7?")))
            made = await engine.generate("a", ids, SamplingParams(max_tokens=2000))
            assert made.stop == "length"
            ids += made.ids
            ids += ids_of(CHAT.answered([("user", "Go on.")], last_id=made.ids[-1]))
            return await engine.generate("a", ids, SamplingParams(max_tokens=2000))

    with serving(strict(said("I compute.", cut, finish="length"), said("42"))) as server:
        asyncio.run(asyncio.wait_for(main(server.url), 60))
        _, assistant, user = server.asked[-1].body["messages"]
    assert user == {"role": "user", "content": "Go on."}
    assert set(assistant) == {"role", "content"}
    assert assistant["content"].startswith("I compute.\n<tool_call>")
    assert "x = 1" in assistant["content"]


def test_of_words_that_hold_a_call_and_a_call_the_call_is_told_as_such() -> None:
    """As a client tells it, who brings a conversation of its own: only the call has an answer."""
    words = 'It writes <tool_call>\n{"name": "python", "arguments": {"code": "1"}, "id": "w"}\n</tool_call>'
    wrote = CHAT.wrote(words, [("python", {"code": "6*7"})])
    part = TOKENIZER.encode("<|im_start|>tool w\n42<|im_end|><|im_start|>assistant\n", special=True)
    ids = [*ids_of(CHAT.prompt("6 times 7?")), *ids_of([wrote]), *part]
    assistant, answer = request_of(TOKENIZER, ids, "native")["messages"][1:]
    assert assistant["content"] == words
    (call,) = assistant["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"code": "6*7"}
    assert answer == {"role": "tool", "tool_call_id": call["id"], "content": "42"}
