"""A transcript at hand, purified without files."""

import json
from dataclasses import replace

import pytest

from foreign import REPAIRED, answer, fails, ours, user, works
from retcon.core.codec import from_dict, to_dict
from retcon.core.errors import RecordError
from retcon.purify.offline import Offline
from retcon.transcripts.formats.retcon import Ours
from retcon.transcripts.purifying.one import purify_transcript
from retcon.transcripts.registry import named


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
    (format,) = named("messages")
    (turn,) = format.read(record, "one").trajectories[0].turns
    assert len({c.id for c in turn.calls}) == 2
    assert [o.call_id for o in turn.observations] == [turn.calls[0].id]


def test_of_several_outputs_of_one_id_the_last_call_has_the_last() -> None:
    def outputs(*told: str, calls: int) -> list[str]:
        call = {"id": "same", "function": {"name": "python", "arguments": '{"code": "f()"}'}}
        said = {"role": "assistant", "content": None, "tool_calls": [call] * calls}
        results = [{"role": "tool", "tool_call_id": "same", "content": text} for text in told]
        (format,) = named("messages")
        record = {"messages": [{"role": "user", "content": "q"}, said, *results]}
        return [o.text for o in format.read(record, "one").trajectories[0].turns[0].observations]

    assert outputs("working on it", "4", calls=1) == ["4"]
    assert outputs("1", "working on it", "4", calls=2) == ["1", "4"]


def test_pairs_are_of_the_turns_that_splices_have_become() -> None:
    steps = (fails("x = print(root"), fails("x = print(root))"), works("x = print(root)"), works("1 + 1"))
    last = ours((user("?"), *steps, *REPAIRED[1:]))
    reading = Ours().read(last, "one")
    results = [Offline()(one) for one in reading.trajectories]
    assert [(splice.failure, splice.fix) for splice in results[0].splices] == [(0, 2), (4, 5)]
    assert [pair.id.rpartition("/")[0].rpartition("/")[2] for pair in reading.pairs(results)] == ["0", "2"]


def test_what_was_repaired_as_a_rollout_was_made_gives_no_pair_beside_what_is_repaired_now() -> None:
    lived = from_dict(ours(REPAIRED))
    again = from_dict(ours((user("?"), fails("print(side"), works("print(side)"), answer("4"))))
    once = Offline()(lived).trajectory
    both = replace(once, turns=(once.turns[0], *again.turns))
    reading = Ours().read(to_dict(both), "both")
    results = [Offline()(one) for one in reading.trajectories]
    assert [splice.failure for splice in results[0].splices] == [1]
    assert [pair.id for pair in reading.pairs(results)] == [f"{lived.id}/1/0"]
