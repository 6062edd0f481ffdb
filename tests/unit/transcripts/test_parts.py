"""Messages of several parts, and what a model thinks beside its words: cut where they stand, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from retcon.transcripts.purifier import purify_transcript

FAILED, WORKS = "print(math.sqrt(3))", "import math\nprint(math.sqrt(3))"
ERROR = (
    "Traceback (most recent call last):\n  File \"<cell>\", line 1, in <module>\nNameError: name 'math' is not defined"
)
ASK = {"role": "user", "content": "What is the root of 3?"}
SAID = "The earlier code failed with a NameError."
IMAGES = [{"type": "image_url", "image_url": {"url": url}} for url in "ab"]


def call(id: str, code: str, content: Any, **beside: Any) -> dict[str, Any]:
    function = {"name": "python", "arguments": json.dumps({"code": code})}
    called = [{"id": id, "type": "function", "function": function}]
    return {"role": "assistant", "content": content, "tool_calls": called, **beside}


def messages(last: Any, **beside: Any) -> dict[str, Any]:
    return {
        "messages": [
            ASK,
            call("a", FAILED, "I compute the root of three."),
            {"role": "tool", "tool_call_id": "a", "content": ERROR},
            call("b", WORKS, "Now with math."),
            {"role": "tool", "tool_call_id": "b", "content": "1.732"},
            {"role": "assistant", "content": last, **beside},
        ]
    }


def anthropic(last: Any) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [ASK]
    for id, code, output in (("a", FAILED, ERROR), ("b", WORKS, "1.732")):
        used = {"type": "tool_use", "id": id, "name": "python", "input": {"code": code}}
        result = {"type": "tool_result", "tool_use_id": id, "content": output, "is_error": id == "a"}
        steps.append({"role": "assistant", "content": [{"type": "text", "text": "We compute the root."}, used]})
        steps.append({"role": "user", "content": [result]})
    return {"messages": [*steps, {"role": "assistant", "content": last}]}


def langchain(last: Any, *thoughts: str) -> dict[str, Any]:
    def ai(content: Any, thought: str, calls: list[Any]) -> dict[str, Any]:
        kwargs = {"additional_kwargs": {"reasoning_content": thought, "refusal": None}} if thought else {}
        return {"type": "ai", "data": {"content": content, "type": "ai", "tool_calls": calls, **kwargs}}

    first, second, third = thoughts or ("", "", "")
    steps: list[dict[str, Any]] = [{"type": "human", "data": {"content": ASK["content"], "type": "human"}}]
    for id, code, output, said, thought in (
        ("a", FAILED, ERROR, "I compute the root of three.", first), ("b", WORKS, "1.732", "Importing math.", second),
    ):  # fmt: skip
        steps.append(ai(said, thought, [{"name": "python", "args": {"code": code}, "id": id}]))
        steps.append({"type": "tool", "data": {"content": output, "type": "tool", "tool_call_id": id}})
    return {"messages": [*steps, ai(last, third, [])]}


def text(words: str, **beside: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **beside}


@pytest.mark.parametrize("shape", [messages, anthropic, langchain])
def test_a_sentence_is_cut_from_its_part_and_all_others_stay_as_and_where_they_are(shape: Any) -> None:
    two, three = text("Figure two has its square.", annotations=[1]), text("Both agree well.", citations=[2])
    content = [text(f"{SAID} Figure one has the root."), IMAGES[0], two, IMAGES[1], three]
    clean, count = purify_transcript(shape(content))
    last = clean["messages"][-1]
    assert count.shallow == 1
    assert last.get("data", last)["content"] == [
        text("Figure one has the root."), IMAGES[0], two, IMAGES[1], three
    ]  # fmt: skip


@pytest.mark.parametrize("shape", [messages, anthropic, langchain])
def test_a_part_of_which_nothing_is_left_goes(shape: Any) -> None:
    clean, _ = purify_transcript(shape([text(f"{SAID} ", n=1), IMAGES[0], text("The root of three is 1.732.", n=2)]))
    last = clean["messages"][-1]
    assert last.get("data", last)["content"] == [IMAGES[0], text("The root of three is 1.732.", n=2)]


@pytest.mark.parametrize("kind", ["reasoning", "thinking"])
@pytest.mark.parametrize("shape", [messages, anthropic, langchain])
def test_reasoning_in_parts_is_read_and_cut_as_words_are(shape: Any, kind: str) -> None:
    thought = {"type": kind, kind: f"{SAID} The second attempt gave 1.732.", "n": 1}
    clean, count = purify_transcript(shape([thought, text("It is 1.732.")]))
    last = clean["messages"][-1]
    assert count.shallow == 1
    assert last.get("data", last)["content"] == [
        {**thought, kind: "The second attempt gave 1.732."}, text("It is 1.732.")
    ]  # fmt: skip


@pytest.mark.parametrize("sealed", [{"signature": "c2ln"}, {"redacted": True}])
def test_reasoning_that_is_signed_or_redacted_stays(sealed: dict[str, Any]) -> None:
    thought = {"type": "reasoning", "reasoning": f"{SAID} The second attempt gave 1.732.", **sealed}
    clean, count = purify_transcript(messages([thought, text("It is 1.732.")]))
    assert count.shallow == 1
    assert clean["messages"][-1]["content"] == [thought, text("It is 1.732.")]


@pytest.mark.parametrize("again", ["reasoning_details", "thinking_blocks"])
def test_what_repeats_reasoning_that_was_cut_is_emptied_and_else_stays(again: str) -> None:
    rest = "The root is about 1.732, which is plausible for three."
    for thought, left in ((f"{SAID} {rest}", []), (rest, [{"text": rest, "signature": "c2ln"}])):
        beside = {"reasoning": thought, again: [{"text": thought, "signature": "c2ln"}]}
        clean, count = purify_transcript(messages("It is 1.732.", **beside))
        assert count.shallow == 1
        assert clean["messages"][-1] == {"role": "assistant", "content": "It is 1.732.", "reasoning": rest, again: left}


def test_langchain_s_reasoning_stays_with_its_words_and_is_cut() -> None:
    thoughts = ("A plain root.", "The previous call failed: I forgot the import.", f"{SAID} The root is plausible.")
    clean, count = purify_transcript(langchain("It is 1.732.", *thoughts))
    assert count.shallow == 1
    first, last = clean["messages"][1]["data"], clean["messages"][-1]["data"]
    assert first["content"] == "I compute the root of three."
    assert first["tool_calls"][0]["args"] == {"code": WORKS}
    assert first["additional_kwargs"] == {"reasoning_content": "A plain root.", "refusal": None}
    assert last["additional_kwargs"] == {"reasoning_content": "The root is plausible.", "refusal": None}


def test_parts_around_a_call_in_text_stay() -> None:
    def said(code: str, output: str, words: str) -> list[dict[str, Any]]:
        parts = [text(f"{words} ", n=1), IMAGES[0], text(f"And so:\n```python\n{code}\n```", n=2), IMAGES[1]]
        return [{"role": "assistant", "content": parts}, {"role": "user", "content": f"```output\n{output}\n```"}]

    answer = {"role": "assistant", "content": "It is 1.732."}
    steps = [*said(FAILED, ERROR, "We compute the root."), *said(WORKS, "1.732", "Now with math.")]
    clean, count = purify_transcript({"messages": [ASK, *steps, answer]})
    assert (count.shallow, clean["messages"][2:]) == (1, [steps[3], answer])
    assert clean["messages"][1] == said(WORKS, "", "We compute the root.")[0]


def test_openhands_reasoning_is_cut_too_and_what_repeats_it_goes() -> None:
    def action(id: str, code: str, thought: str) -> dict[str, Any]:
        blocks = [{"type": "thinking", "thinking": thought, "signature": "c2ln"}]
        return {
            "kind": "ActionEvent", "source": "agent", "thought": [text("We compute the root.")], "tool_call_id": id,
            "reasoning_content": thought, "thinking_blocks": blocks, "responses_reasoning_item": None,
            "action": {"kind": "PythonAction", "code": code}, "tool_name": "python", "llm_response_id": f"r{id}",
        }  # fmt: skip

    def seen(id: str, output: str) -> dict[str, Any]:
        return {"kind": "ObservationEvent", "tool_call_id": id, "observation": {"content": [text(output)]}}

    rest = "The root of three is plausible."
    message = {"role": "assistant", "content": [text("It is 1.732.")], "reasoning_content": f"{SAID} {rest}"}
    events = [
        {"kind": "MessageEvent", "source": "user", "llm_message": {"role": "user", "content": [text("?")]}},
        action("a", FAILED, "A plain root."), seen("a", ERROR),
        action("b", WORKS, "The import is missing."), seen("b", "1.732"),
        action("c", "print(math.sqrt(4))", f"{SAID} {rest}"), seen("c", "2.0"),
        {"kind": "MessageEvent", "source": "agent", "llm_message": {**message, "thinking_blocks": ["x"]}},
    ]  # fmt: skip
    clean, count = purify_transcript({"events": events})
    first, third, last = clean["events"][1], clean["events"][3], clean["events"][5]["llm_message"]
    assert (count.shallow, first["action"]["code"]) == (1, WORKS)
    assert first["reasoning_content"] == "A plain root."
    assert first["thinking_blocks"][0]["thinking"] == "A plain root."
    assert third == {**events[5], "reasoning_content": rest, "thinking_blocks": []}
    assert last == {**message, "reasoning_content": rest, "thinking_blocks": []}
