"""Messages that are calls, as ShareGPT has them: with a thought before them, or several in a list (LLaMA-Factory)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from retcon.transcripts.purifier import purify_transcript
from retcon.transcripts.registry import find_formats

FAILED = "squares = [n * n for n in range(10)]\nprint(sqrt(sum(squares)))"
WORKS = "from math import sqrt\nsquares = [n * n for n in range(10)]\nprint(sqrt(sum(squares)))"
ERROR = "Traceback (most recent call last):\n  File \"<x>\", line 2, in <module>\nNameError: name 'sqrt' is not defined"


def one(code: str) -> dict[str, Any]:
    return {"name": "python", "arguments": {"code": code}}


def transcript(*steps: tuple[Any, Any], thoughts: tuple[str, ...] = ()) -> dict[str, Any]:
    said: list[dict[str, str]] = [{"from": "human", "value": "The root of the sum of squares?"}]
    for n, (calls, output) in enumerate(steps):
        thought = f"<think>\n{thoughts[n]}\n</think>\n" if thoughts else ""
        said.append({"from": "function_call", "value": thought + json.dumps(calls)})
        said.append({"from": "observation", "value": output if isinstance(output, str) else json.dumps(output)})
    return {"conversations": [*said, {"from": "gpt", "value": "It is 16.88."}]}


def read(record: dict[str, Any]) -> list[list[tuple[str, str, str]]]:
    """Of each turn with calls its programs, and the text and status of what they gave."""
    (sharegpt,) = find_formats("sharegpt")
    turns = sharegpt.read(record, "t").trajectories[0].turns
    both = [zip(turn.calls, turn.observations, strict=True) for turn in turns if turn.calls]
    return [[(call.code, seen.text, seen.status) for call, seen in pairs] for pairs in both]


def test_each_call_of_a_list_has_its_own_output() -> None:
    record = transcript(([one("print(1)"), one("print(2)")], ["1", {"temp": 2}]), ([one("print(3)")], [3]))
    assert read(record) == [
        [("print(1)", "1", "ok"), ("print(2)", '{"temp": 2}', "ok")], [("print(3)", "[3]", "ok")]
    ]  # fmt: skip
    assert purify_transcript(record)[1].calls == 3


def test_a_list_whose_output_is_no_list_of_as_many_shares_it() -> None:
    assert read(transcript(([one("print(1)"), one("print(2)")], "12"))) == [
        [("print(1)", "12", "ok"), ("print(2)", "", "ok")]
    ]
    assert read(transcript(([one("print(1)"), one("print(x)")], ERROR))) == [
        [("print(1)", ERROR, "error"), ("print(x)", "", "error")]
    ]


@pytest.mark.parametrize("calls", [[1, 2], {"arguments": 3}, ["x"], []])
def test_json_that_is_in_order_is_not_malformed(calls: Any) -> None:
    assert purify_transcript(transcript((calls, "1683"), (one("print(735)"), "735")))[1].failed == 0


def test_lists_are_repaired_as_single_calls_are() -> None:
    record = transcript(([one(FAILED)], ERROR), ([one(WORKS)], "16.88"))
    clean, count = purify_transcript(record)
    assert (count.calls, count.shallow) == (2, 1)
    assert clean["conversations"] == [record["conversations"][0], *record["conversations"][3:]]


def test_a_thought_before_the_call_is_words_and_stays_with_the_failure_s() -> None:
    thoughts = ("Sum the squares, then the root.", "sqrt is not imported.", "The last call failed. Now the fourth.")
    steps = ((one(FAILED), ERROR), (one(WORKS), "16.88"), (one("print(squares[3])"), "9"))
    record = transcript(*steps, thoughts=thoughts)
    clean, count = purify_transcript(record)
    assert (count.failed, count.shallow) == (1, 1)
    assert [item["value"] for item in clean["conversations"][1:5]] == [
        f"<think>\n{thoughts[0]}\n</think>\n{json.dumps(one(WORKS))}",
        "16.88",
        f"<think>\nNow the fourth.\n</think>\n{json.dumps(one('print(squares[3])'))}",
        "9",
    ]
