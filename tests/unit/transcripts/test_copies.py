"""What repeats a repaired transcript beside it, and would keep what was taken out."""

from __future__ import annotations

from typing import Any

import pytest

from foreign import FAILED, FIXED, FORMATS, REPAIRED
from foreign.calls_in_text import slime
from retcon.transcripts.purifier import purify_transcript


def test_slime_s_payload_and_what_was_sampled_from_are_emptied() -> None:
    record = slime(REPAIRED)
    prompt = record["prompt"][0]["content"]
    record |= {
        "payload_text": f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n{record['response']}",
        "rollout_top_p_token_ids": [[1], [2]], "rollout_top_p_token_offsets": [0, 1], "payload_has_system": False,
    }  # fmt: skip
    clean, count = purify_transcript(record)
    assert count.shallow == 1
    assert "sqroot" not in str(clean)
    emptied = {"payload_text": "", "rollout_top_p_token_ids": [], "rollout_top_p_token_offsets": []}
    assert {key: clean[key] for key in (*emptied, "payload_has_system")} == {**emptied, "payload_has_system": False}


def test_what_inspect_s_events_point_to_goes_with_them() -> None:
    record = FORMATS["inspect"](REPAIRED)
    messages = record["messages"]
    pools = {"events_data": {"messages": messages, "calls": []}, "message_pool": messages, "call_pool": [{"a": 1}]}
    record |= {"events": [{"event": "model", "input": [], "input_refs": [[0, 1]]}], **pools}
    clean, count = purify_transcript(record)
    assert count.shallow == 1
    assert "sqroot" not in str(clean)
    assert [clean[key] for key in ("events", *pools)] == [[], None, [], []]


def litellm(*thoughts: str) -> dict[str, Any]:
    steps = FORMATS["messages"](REPAIRED)["messages"]
    said = [item for item in steps if item["role"] == "assistant"]
    for item, thought in zip(said, thoughts, strict=True):
        again = {"reasoning_content": thought, "thinking_blocks": [{"thinking": thought}]}
        item |= {**again, "provider_specific_fields": {"refusal": None, **again}}
    return {"messages": steps}


def test_what_litellm_s_fields_repeat_of_reasoning_goes_where_that_is_cut() -> None:
    record = litellm("Take the root.", "Import it.", "The NameError is fixed now. The root is plausible.")
    clean, count = purify_transcript(record)
    assert count.shallow == 1
    first, last = (item for item in clean["messages"] if item["role"] == "assistant")
    assert first["provider_specific_fields"]["reasoning_content"] == first["reasoning_content"] == "Take the root."
    assert first["provider_specific_fields"]["thinking_blocks"] == [{"thinking": "Take the root."}]
    assert last["reasoning_content"] == "The root is plausible."
    assert last["provider_specific_fields"] == {"refusal": None, "reasoning_content": None, "thinking_blocks": []}


def test_what_mini_swe_agent_repeats_of_calls_goes_with_them_and_the_replies_are_emptied() -> None:
    record = FORMATS["messages"](REPAIRED)
    for n, item in enumerate(item for item in record["messages"] if item["role"] == "assistant"):
        reply = {"choices": [{"message": dict(item)}]}
        actions = [{"command": call["function"]["arguments"]} for call in item.get("tool_calls", ())]
        item["extra"] = {"actions": actions, "response": reply, "cost": n}
    failed, fixed, last = (item for item in record["messages"] if item["role"] == "assistant")
    clean, count = purify_transcript(record)
    assert count.shallow == 1
    assert "sqroot" not in str(clean)
    first, same = (item for item in clean["messages"] if item["role"] == "assistant")
    assert first["extra"] == {**fixed["extra"], "response": None} != failed["extra"]
    assert same == last


TOKENS = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]}


@pytest.mark.parametrize("tokens", [{}, TOKENS])
def test_nemo_gym_s_rollout_is_repaired_wherever_it_stands_and_once(tokens: dict[str, Any]) -> None:
    record = FORMATS["nemo_gym"](REPAIRED)
    rollout = record["response"]["output"]
    copy, asked = [dict(item) for item in rollout], record["responses_create_params"]["input"]
    for item in rollout:
        item.update(tokens)
    before: list[dict[str, Any]] = [{"type": "code_interpreter_call", "id": "c", "code": "2", "outputs": []}] * 3
    for given, left in ([*asked, *before, *copy], 1 + 3), (copy[2:], 0), ([*before, *before], None):
        record["responses_create_params"]["input"] = given
        clean, count = purify_transcript(record)
        assert (count.shallow, count.failed) == (1, 1)
        assert "sqroot" not in str(clean["response"])
        found = clean["responses_create_params"]["input"]
        if left is None:
            assert found == given, "what was asked is no part of the rollout"
        else:
            assert "sqroot" not in str(found)
            assert found[:left] == given[:left]
            assert not any(set(TOKENS) & set(item) for item in found)
        assert purify_transcript(clean)[0] == clean


def test_lists_of_the_responses_api_that_have_the_same_items_are_repaired_alike() -> None:
    items = FORMATS["responses"](REPAIRED)["input"]
    clean, count = purify_transcript({"input": items, "output": items[1:], "kept": [{"type": "function_call"}]})
    assert count.shallow == 1
    assert "sqroot" not in str(clean)
    assert clean["output"] == clean["input"][1:]
    assert clean["kept"] == [{"type": "function_call"}]
    assert purify_transcript(clean)[0] == clean


PROMPT = "Question: the root of 16?\n"


@pytest.mark.parametrize(("name", "place"), [("retool_text", "response"), ("verl", "output")])
def test_a_text_that_has_a_repaired_one_in_it_or_is_its_end_is_repaired_too(name: str, place: str) -> None:
    text = FORMATS[name](REPAIRED)[place]
    clean, count = purify_transcript({"text": PROMPT + text, "response": text, "answer": "4"})
    assert (count.shallow, clean["text"], clean["answer"]) == (1, PROMPT + clean["response"], "4")
    assert "sqroot" not in clean["response"]
    assert clean["response"].endswith("4")
    same, _ = purify_transcript({"prompt": PROMPT, "completion": text, "response": text, "content": PROMPT + text})
    ours, whole = clean["response"], clean["text"]
    assert same == {"prompt": PROMPT, "completion": ours, "response": ours, "content": whole}


def test_each_of_several_texts_is_repaired_beside_them_and_what_only_a_failure_has_is_emptied() -> None:
    text = FORMATS["retool_text"](REPAIRED)["response"]
    record = {"completion": [text, "4"], "response": [text, "4"], "code": FAILED, "solution": FIXED, "answer": "root"}
    clean, count = purify_transcript(record)
    assert (count.shallow, clean["response"]) == (1, clean["completion"])
    assert "sqroot" not in str(clean)
    assert (clean["code"], clean["solution"], clean["answer"]) == ("", FIXED, "root")
