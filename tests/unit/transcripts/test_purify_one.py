"""A transcript at hand, purified without files."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from foreign import REPAIRED, answer, fails, markdown, ours, user, works
from foreign.calls_in_text import sharegpt, sharegpt_functions
from retcon.core.codec import from_dict, to_dict
from retcon.core.errors import RecordError
from retcon.purify.offline import Repairer
from retcon.transcripts.detector import Detector, tool_use
from retcon.transcripts.formats.retcon import Ours
from retcon.transcripts.purifier import purify_transcript
from retcon.transcripts.registry import find_formats


def transcript(*steps: tuple[str, str]) -> dict:
    turns = [
        message
        for code, output in steps
        for message in (
            {"role": "assistant", "content": f"```python\n{code}\n```"},
            {"role": "user", "content": f"```output\n{output}\n```"},
        )
    ]
    return {"messages": [{"role": "user", "content": "q"}, *turns, {"role": "assistant", "content": "It is 2."}]}


def test_what_has_nothing_to_repair_comes_back_as_it_is() -> None:
    value = transcript(("print(2)", "2"))
    clean, count = purify_transcript(value)
    assert clean is value
    assert (count.calls, count.failed) == (1, 0)


@pytest.mark.parametrize("written", [str.capitalize, str.upper, {"gpt": "ChatGPT", "user": "Human"}.get])
@pytest.mark.parametrize("shape", [sharegpt, sharegpt_functions, markdown])
def test_roles_may_have_capitals(shape: Callable[..., dict[str, Any]], written: Callable[[str], str | None]) -> None:
    value = shape(REPAIRED)
    for item in value.get("conversations") or value["messages"]:
        key = "from" if "from" in item else "role"
        item[key] = written(item[key]) or item[key]
    assert purify_transcript(value)[1].shallow == 1
    assert tool_use({"messages": [{"role": written("tool") or "tool"}]})


def test_what_is_no_number_of_json_is_refused() -> None:
    with pytest.raises(RecordError):
        purify_transcript("no transcript")


@pytest.mark.parametrize(
    "ids", [("a", "b"), ("", ""), ("call_0", "call_0"), ("", "b")], ids=["apart", "empty", "same", "one empty"]
)
@pytest.mark.parametrize("failing", [0, 1])
def test_calls_of_one_id_have_each_its_own_output(ids: tuple[str, str], failing: int) -> None:
    def called(*programs: str) -> dict:
        calls = [
            {"id": id, "function": {"name": "python", "arguments": json.dumps({"code": code})}}
            for id, code in zip(ids, programs, strict=True)
        ]
        return {"role": "assistant", "content": "I compute both of them.", "tool_calls": calls}

    def told(*outputs: str) -> list[dict]:
        return [{"role": "tool", "tool_call_id": id, "content": out} for id, out in zip(ids, outputs, strict=True)]

    right, error = ["print(6 * 7)", "print(6 * 8)"], "NameError: name 'x' is not defined"
    wrong, outputs = right.copy(), ["42", "48"]
    wrong[failing] = right[failing].replace("6", "x")
    failed = ["42", "48"]
    failed[failing] = error
    end = {"role": "assistant", "content": "They are 42 and 48."}
    fixed = [called(*right), *told(*outputs), end]
    clean, count = purify_transcript(
        {"messages": [{"role": "user", "content": "q"}, called(*wrong), *told(*failed), *fixed]}
    )
    assert (count.calls, count.failed, count.shallow) == (4, 1, 1)
    assert isinstance(clean, dict)
    assert clean["messages"][1:] == fixed


def test_calls_of_one_id_are_apart_in_the_trajectory_even_if_one_is_not_answered() -> None:
    call = {"id": "same", "function": {"name": "python", "arguments": '{"code": "f()"}'}}
    said = {"role": "assistant", "content": None, "tool_calls": [call, call]}
    record = {
        "messages": [{"role": "user", "content": "q"}, said, {"role": "tool", "tool_call_id": "same", "content": "1"}]
    }
    (format,) = find_formats("messages")
    (turn,) = format.read(record, "one").trajectories[0].turns
    assert len({c.id for c in turn.calls}) == 2
    assert [o.call_id for o in turn.observations] == [turn.calls[0].id]


def test_of_several_outputs_of_one_id_the_last_call_has_the_last() -> None:
    def outputs(*told: str, calls: int) -> list[str]:
        call = {"id": "same", "function": {"name": "python", "arguments": '{"code": "f()"}'}}
        said = {"role": "assistant", "content": None, "tool_calls": [call] * calls}
        results = [{"role": "tool", "tool_call_id": "same", "content": text} for text in told]
        (format,) = find_formats("messages")
        record = {"messages": [{"role": "user", "content": "q"}, said, *results]}
        return [o.text for o in format.read(record, "one").trajectories[0].turns[0].observations]

    assert outputs("working on it", "4", calls=1) == ["4"]
    assert outputs("1", "working on it", "4", calls=2) == ["1", "4"]


def test_pairs_are_of_the_turns_that_splices_have_become() -> None:
    steps = (fails("x = print(root"), fails("x = print(root))"), works("x = print(root)"), works("1 + 1"))
    last = ours((user("?"), *steps, *REPAIRED[1:]))
    reading = Ours().read(last, "one")
    results = [Repairer()(one) for one in reading.trajectories]
    assert [(splice.failure, splice.fix) for splice in results[0].splices] == [(0, 2), (4, 5)]
    assert [pair.id.rpartition("/")[0].rpartition("/")[2] for pair in reading.pairs(results)] == ["0", "2"]


def test_what_was_repaired_as_a_rollout_was_made_gives_no_pair_beside_what_is_repaired_now() -> None:
    lived = from_dict(ours(REPAIRED))
    again = from_dict(ours((user("?"), fails("print(side"), works("print(side)"), answer("4"))))
    once = Repairer()(lived).trajectory
    both = replace(once, turns=(once.turns[0], *again.turns))
    reading = Ours().read(to_dict(both), "both")
    results = [Repairer()(one) for one in reading.trajectories]
    assert [splice.failure for splice in results[0].splices] == [1]
    assert [pair.id for pair in reading.pairs(results)] == [f"{lived.id}/1/0"]


TRACEBACK = "Traceback (most recent call last):\n  File \"<string>\", line 2, in <module>\nAttributeError: no 'sqroot'"
POWER, FAILING, FIXED = "print(2**10)", "import math\nprint(math.sqroot(16))", "import math\nprint(math.sqrt(16))"
Round = tuple[dict[str, str], dict[str, str]]
"""Programs, and what they gave, each by its id and in an order of its own."""


def in_blocks(*rounds: Round) -> dict:
    messages: list = [{"role": "user", "content": "q"}]
    for calls, outputs in rounds:
        said = [
            block
            for id, code in calls.items()
            for block in (
                {"type": "text", "text": f"Now {id}."},
                {"type": "tool_use", "id": id, "name": "python", "input": {"code": code}},
            )
        ]
        told = [{"type": "tool_result", "tool_use_id": id, "content": text} for id, text in outputs.items()]
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": told}]
    return {"messages": [*messages, {"role": "assistant", "content": "4 and 1024"}]}


def in_items(*rounds: Round) -> dict:
    items: list = [{"role": "user", "content": "q"}]
    for calls, outputs in rounds:
        for id, code in calls.items():
            thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": f"Now {id}."}]}
            call = {"type": "function_call", "call_id": id, "name": "python", "arguments": json.dumps({"code": code})}
            items += [thought, call]
        items += [{"type": "function_call_output", "call_id": id, "output": text} for id, text in outputs.items()]
    return {"input": [*items, {"type": "message", "role": "assistant", "content": "4 and 1024"}]}


def in_messages(*rounds: Round) -> dict:
    messages: list = [{"role": "user", "content": "q"}]
    for calls, outputs in rounds:
        for id, code in calls.items():
            function = {"name": "python", "arguments": json.dumps({"code": code})}
            called = [{"id": id, "type": "function", "function": function}]
            messages.append({"role": "assistant", "content": f"Now {id}.", "tool_calls": called})
        messages += [{"role": "tool", "tool_call_id": id, "content": text} for id, text in outputs.items()]
    return {"messages": [*messages, {"role": "assistant", "content": "4 and 1024"}]}


def without_ids(*rounds: Round) -> dict:
    record = in_messages(*rounds)
    for message in record["messages"]:
        message.pop("tool_call_id", None)
        for call in message.get("tool_calls", ()):
            del call["id"]
    return record


def of_langchain(*rounds: Round) -> dict:
    messages: list = [{"type": "human", "content": "q"}]
    for calls, outputs in rounds:
        for id, code in calls.items():
            called = [{"name": "python", "args": {"code": code}, "id": id, "type": "tool_call"}]
            messages.append({"type": "ai", "content": f"Now {id}.", "tool_calls": called})
        messages += [{"type": "tool", "tool_call_id": id, "content": text} for id, text in outputs.items()]
    return {"messages": [*messages, {"type": "ai", "content": "4 and 1024", "tool_calls": []}]}


def in_tags(*rounds: Round) -> dict:
    record = in_messages(*rounds)
    for message in record["messages"]:
        for call in message.pop("tool_calls", ()):
            inner = json.dumps({"name": "python", "arguments": json.loads(call["function"]["arguments"])})
            message["content"] += f"\n<tool_call>\n{inner}\n</tool_call>"
    return record


apart_in = pytest.mark.parametrize("write", [in_blocks, in_items, in_messages, without_ids, of_langchain, in_tags])
FIX: Round = ({"c": FIXED}, {"c": "4.0"})


@apart_in
def test_calls_between_which_the_model_speaks_keep_their_results(write: Callable[..., dict]) -> None:
    value = write(({"b": POWER, "a": FAILING}, {"b": "1024", "a": TRACEBACK}), FIX)
    clean, count = purify_transcript(value)
    assert clean is value
    assert (count.calls, count.failed, count.left) == (3, 1, {"sibling": 1})


@apart_in
def test_calls_between_which_the_model_speaks_are_repaired_together(write: Callable[..., dict]) -> None:
    failed = ({"b": POWER, "a": FAILING}, {"b": "1024", "a": TRACEBACK})
    clean, count = purify_transcript(write(failed, ({"d": POWER, "c": FIXED}, {"d": "1024", "c": "4.0"})))
    assert (count.calls, count.failed, count.shallow + count.deep) == (4, 1, 1)
    (trajectory,) = Detector().format_of(clean).read(clean, "t").trajectories
    kept = [(c.code, o.text) for t in trajectory.turns for c, o in zip(t.calls, t.observations, strict=True)]
    assert kept == [(POWER, "1024"), (FIXED, "4.0")]
    assert purify_transcript(clean)[0] is clean


@apart_in
def test_what_fails_before_the_model_speaks_and_calls_again_is_counted(write: Callable[..., dict]) -> None:
    _, count = purify_transcript(write(({"a": FAILING, "b": POWER}, {"a": TRACEBACK, "b": "1024"})))
    assert (count.calls, count.failed, count.left) == (2, 1, {"answered": 1})


def test_a_call_that_waits_for_its_result_while_the_model_speaks() -> None:
    value = in_messages(({"a": FAILING}, {"a": TRACEBACK}), FIX)
    value["messages"].insert(2, {"role": "assistant", "content": "I wait."})
    _, count = purify_transcript(value)
    assert (count.calls, count.failed, count.shallow) == (2, 1, 1)


@pytest.mark.parametrize("notes", [("note: restarted",), ("note: one", "note: two")])
def test_a_call_that_is_answered_more_than_once_failed_where_one_answer_says_so(notes: tuple[str, ...]) -> None:
    value = in_messages(({"a": FAILING}, {"a": TRACEBACK}))
    value["messages"][3:3] = [{"role": "tool", "tool_call_id": "a", "content": note} for note in notes]
    _, count = purify_transcript(value)
    assert (count.calls, count.failed) == (1, 1)


def test_numbers_may_be_ids() -> None:
    calls = [
        {"id": n, "function": {"name": "python", "arguments": json.dumps({"code": code})}}
        for n, code in enumerate((FAILING, POWER), 1)
    ]
    told = [{"role": "tool", "tool_call_id": n, "content": text} for n, text in ((2, "1024"), (1, TRACEBACK))]
    value = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": calls}, *told]}
    (trajectory,) = find_formats("messages")[0].read(value, "t").trajectories
    assert [o.status for o in trajectory.turns[0].observations] == ["error", "ok"]


def test_a_failure_beside_a_call_without_a_result_is_left_by_name() -> None:
    value = in_messages(({"b": POWER, "a": FAILING}, {"a": TRACEBACK}), FIX)
    first, second = value["messages"][1:3]
    first["tool_calls"] += second["tool_calls"]
    del value["messages"][2]
    clean, count = purify_transcript(value)
    assert clean is value
    assert (count.calls, count.failed, count.left) == (2, 1, {"unanswered": 1})


WORDS = "Please use numpy instead."
ANSWERS = {
    "hermes": (
        '<tool_call>\n{"name": "python", "arguments": %s}\n</tool_call>',
        "<tool_response>\n%s\n</tool_response>",
    ),
    "qwen3_coder": (
        "<tool_call>\n<function=python>\n<parameter=code>\n%s\n</parameter>\n</function>\n</tool_call>",
        "<tool_response>\n%s\n</tool_response>",
    ),
    "markdown": ("```python\n%s\n```", "```output\n%s\n```"),
    "markdown, labelled": ("```python\n%s\n```", "Output:\n```\n%s\n```"),
    "markdown, tagged": ("```python\n%s\n```", "<output>\n%s\n</output>"),
    "retool": ("<code>\n%s\n</code>", "<interpreter>\n%s\n</interpreter>"),
    "arpo": ("<python>\n%s\n</python>", "<result>\n%s\n</result>"),
    "mint": ("<execute>\n%s\n</execute>", "Observation:\n%s\nYou have 3 steps left."),
    "mint, before the steps": ("<execute>\n%s\n</execute>", "Observation:\n%s"),
}
"""How calls and outputs are written where the user's role has the outputs."""


def answered_by_a_user(name: str, words: str = "") -> dict:
    call, output = ANSWERS[name]
    before_steps = name.startswith("mint,") and words
    said = f"\nExpert feedback: {words}\nYou have 3 steps left." if before_steps else f"\n{words}" if words else ""
    messages = [{"role": "user", "content": "q"}]
    for code, told, more in ((FAILING, TRACEBACK, said), (FIXED, "4.0", "")):
        program = json.dumps({"code": code}) if name == "hermes" else code
        messages += [
            {"role": "assistant", "content": f"I take the root.\n{call % program}"},
            {"role": "user", "content": output % told + more},
        ]
    return {"messages": [*messages, {"role": "assistant", "content": "It is 4."}]}


@pytest.mark.parametrize("shared", [False, True], ids=["messages", "sharegpt"])
@pytest.mark.parametrize("name", ANSWERS)
def test_what_a_user_says_beside_an_output_is_not_dropped(name: str, shared: bool) -> None:
    def record(words: str) -> dict:
        value = answered_by_a_user(name, words)
        if not shared:
            return value
        roles = {"user": "human", "assistant": "gpt"}
        return {"conversations": [{"from": roles[m["role"]], "value": m["content"]} for m in value["messages"]]}

    assert purify_transcript(record(""))[1].shallow == 1
    value = record(WORDS)
    clean, count = purify_transcript(value)
    assert clean is value
    assert (count.calls, count.failed, count.left) == (2, 1, {"user": 1})
    (trajectory,) = Detector().format_of(value).read(value, "t").trajectories
    assert WORDS in "".join(s.text for s in trajectory.segments if s.kind == "prompt")
    assert not any(WORDS in o.text for t in trajectory.turns for o in t.observations)


def test_what_a_user_says_between_two_outputs_is_not_dropped() -> None:
    call, output = ANSWERS["hermes"]
    said = "\n".join(call % json.dumps({"code": code}) for code in (FAILING, POWER))
    told = f"{output % TRACEBACK}\n{WORDS}\n{output % '1024'}"
    value = {"messages": [{"role": role, "content": text} for role, text in
                          (("user", "q"), ("assistant", said), ("user", told), ("assistant", "1024"))]}  # fmt: skip
    (trajectory,) = find_formats("hermes")[0].read(value, "t").trajectories
    assert [o.text for o in trajectory.turns[0].observations] == [TRACEBACK, "1024"]
    assert purify_transcript(value)[1].left == {"user": 1}


@pytest.mark.parametrize("start", ["<|im_end|>\n<|im_start|>user\n", "\nuser\n"], ids=["template", "without markers"])
def test_what_a_user_says_beside_an_output_in_one_text_is_not_the_model_s(start: str) -> None:
    call, output = ANSWERS["hermes"]
    end = "<|im_end|>\n<|im_start|>assistant\n" if "im_start" in start else "\nassistant\n"

    def record(words: str) -> dict:
        first, second = (call % json.dumps({"code": code}) for code in (FAILING, FIXED))
        told = f"{start}{output % TRACEBACK}{words}{end}"
        return {"input": "q", "output": f"I take it.\n{first}{told}So.\n{second}{start}{output % '4.0'}{end}4"}

    assert purify_transcript(record(""))[1].shallow == 1
    value = record(f"\n{WORDS}")
    clean, count = purify_transcript(value)
    assert clean is value
    assert (count.calls, count.failed, count.left) == (2, 1, {"user": 1})
    (trajectory,) = Detector().format_of(value).read(value, "t").trajectories
    assert WORDS in "".join(s.text for s in trajectory.segments if s.kind == "prompt")


def test_what_stands_beside_the_messages_is_in_the_prompt_of_a_pair() -> None:
    system, asked = {"role": "system", "content": "S"}, {"role": "user", "content": "q"}
    whole = transcript(("print(", "SyntaxError: '(' was never closed"), ("print(2)", "2"))["messages"]

    def prompt(record: dict[str, Any]) -> tuple[Any, ...]:
        reading = Detector().format_of(record).read(record, "x")
        (pair,) = reading.pairs([Repairer()(t) for t in reading.trajectories])
        return pair.prompt

    assert prompt({"messages": whole}) == (asked,)
    assert prompt({"messages": whole, "system": "S"}) == (system, asked)
    assert prompt({"messages": [system, *whole], "system": "S"}) == (system, asked)
    assert prompt({"prompt": [system, asked], "completion": whole[1:]}) == (system, asked)
    assert prompt({"prompt": "q", "completion": whole[1:], "system_prompt": "S"}) == (system, asked)
