"""What Gemini, Bedrock and Pydantic AI say beside words: how a call ended, what was thought, and what is signed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from foreign import FAILED, FIXED, FORMATS, REPAIRED, Step, answer, fails, user, works
from retcon.transcripts.detector import Detector
from retcon.transcripts.purifier import purify_transcript

SAID = "The earlier code failed with an error."
LEFT = "The root of 16 is plausible."


def outputs(record: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """What the calls gave, as each format has it."""
    if name == "gemini":
        return [p["functionResponse"]["response"] for c in record["contents"] for p in c["parts"] if len(p) == 1 and
                "functionResponse" in p]  # fmt: skip
    if name == "adk":
        parts = [p for e in record["events"] for p in e.get("content", {}).get("parts", ())]
        return [p["codeExecutionResult"] for p in parts if "codeExecutionResult" in p]
    if name == "bedrock":
        return [b["toolResult"] for m in record["messages"] for b in m["content"] if "toolResult" in b]
    return [p for m in record["messages"] for p in m["parts"] if p["part_kind"] in ("tool-return", "retry-prompt")]


def given(name: str, changes: dict[str, Any], steps: tuple[Step, ...] = REPAIRED, *, at: int = 0) -> dict[str, Any]:
    """Some steps, of which one call gave something else."""
    record = copy.deepcopy(FORMATS[name](steps))
    output = outputs(record, name)[at]
    if name == "gemini":
        output.clear()
    output.update(changes)
    return record


FINE = (user("?"), works("f()", "4.0"), works("g()", "5.0"), answer("9"))
ODD = "NameError: name 'x' is not defined"


@pytest.mark.parametrize(
    ("name", "changes", "failed"),
    [
        ("gemini", {"error": "no such function"}, {"error": 1}),
        ("gemini", {"error": {"code": 5}}, {"error": 1}),
        ("gemini", {"error": 0.5, "result": "4"}, {}),
        ("gemini", {"error": None, "output": ODD}, {"error": 1}),
        ("gemini", {"content": [{"type": "text", "text": "oops"}], "isError": True}, {"error": 1}),
        ("gemini", {"result": {"content": [{"type": "text", "text": "oops"}], "isError": True}}, {"error": 1}),
        ("gemini", {"content": [{"type": "text", "text": ODD}], "isError": False}, {}),
        ("gemini", {"result": 4}, {}),
        ("gemini", {"status": "error", "error_message": "division by zero"}, {"error": 1}),
        ("gemini", {}, {}),
        ("adk", {"outcome": "OUTCOME_OK", "output": ODD}, {}),
        ("adk", {"outcome": "OUTCOME_FAILED", "output": "a warning"}, {"error": 1}),
        ("adk", {"outcome": "OUTCOME_DEADLINE_EXCEEDED", "output": None}, {"timeout": 1}),
        ("adk", {"outcome": "OUTCOME_UNSPECIFIED", "output": ODD}, {"error": 1}),
        ("bedrock", {"status": "error", "content": [{"text": "oops"}]}, {"error": 1}),
        ("bedrock", {"content": [{"json": {"exit_code": 2, "stderr": "oops"}}]}, {"error": 1}),
        ("bedrock", {"content": [{"text": ODD}]}, {"error": 1}),
        ("pydantic_ai", {"outcome": "failed", "content": "oops"}, {"error": 1}),
        ("pydantic_ai", {"outcome": "retried", "content": [{"type": "missing", "loc": ["code"]}]}, {"malformed": 1}),
        ("pydantic_ai", {"part_kind": "retry-prompt", "content": [{"type": "missing"}]}, {"malformed": 1}),
        ("pydantic_ai", {"outcome": "success", "content": ODD}, {"error": 1}),
        ("pydantic_ai", {"outcome": "success", "content": {"stdout": "", "return_code": 1}}, {"error": 1}),
        ("pydantic_ai", {"outcome": "denied", "content": ODD}, {}),
    ],
)  # fmt: skip
def test_what_a_format_says_of_a_call_decides_and_else_its_output(name: str, changes: Any, failed: Any) -> None:
    record = given(name, changes, FINE)
    found = Detector().format_of(record)
    assert found is not None
    (read,) = found.read(record, "t").trajectories
    statuses = [o.status for turn in read.turns for o in turn.observations]
    assert statuses == [*failed, *["ok"] * (2 - len(failed))]
    assert purify_transcript(record)[1].calls == 2


@pytest.mark.parametrize("outcome", ["denied", "interrupted"])
def test_a_call_that_was_not_run_is_no_fix(outcome: str) -> None:
    record = given("pydantic_ai", {"outcome": outcome, "content": "The call was not made."}, at=1)
    clean, count = purify_transcript(record)
    assert (clean, count.failed, count.shallow) == (record, 1, 0)


THOUGHTS: dict[str, Callable[[str, Any], dict[str, Any]]] = {
    "gemini": lambda text, seal: {"text": text, "thought": True, **({"thoughtSignature": seal} if seal else {})},
    "adk": lambda text, seal: {"text": text, "thought": True, "thought_signature": seal},
    "bedrock": lambda text, seal: {"reasoningContent": {"reasoningText": {"text": text, "signature": seal}}},
    "pydantic_ai": lambda text, seal: {"part_kind": "thinking", "content": text, "signature": seal},
}


def last_parts(record: dict[str, Any], name: str) -> list[Any]:
    items = record[{"gemini": "contents", "adk": "events"}.get(name, "messages")]
    holder = items[-1]["content"] if name == "adk" else items[-1]
    found: list[Any] = holder["content" if name == "bedrock" else "parts"]
    return found


@pytest.mark.parametrize("name", THOUGHTS)
@pytest.mark.parametrize("seal", [None, "c2ln"])
def test_thoughts_are_words_unless_they_are_signed(name: str, seal: Any) -> None:
    record = copy.deepcopy(FORMATS[name](REPAIRED))
    last_parts(record, name).insert(0, THOUGHTS[name](f"{SAID} {LEFT}", seal))
    clean, count = purify_transcript(record)
    assert count.shallow == 1
    assert last_parts(clean, name)[0] == THOUGHTS[name](f"{SAID} {LEFT}" if seal else LEFT, seal)
    assert last_parts(clean, name)[1:] == last_parts(record, name)[1:]


@pytest.mark.parametrize(
    ("name", "sealed", "emptied"),
    [
        ("gemini", {"thoughtSignature": "c2ln", "x-kept": "y"}, {"thoughtSignature": "", "x-kept": "y"}),
        ("pydantic_ai", {"id": "msg_1", "citations": [{"sources": []}]}, {"id": None, "citations": None}),
    ],
)
def test_what_holds_words_to_their_wording_is_emptied_where_they_were_cut(name: str, sealed: Any, emptied: Any) -> None:
    for words, beside in ((f"{SAID} {LEFT}", emptied), (LEFT, sealed)):
        record = copy.deepcopy(FORMATS[name]((*REPAIRED[:-1], answer(words))))
        last_parts(record, name)[0].update(sealed)
        clean, count = purify_transcript(record)
        assert count.shallow == 1
        assert last_parts(clean, name)[0] == {**last_parts(record, name)[0], **beside,
                                              "content" if name == "pydantic_ai" else "text": LEFT}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "beside", "emptied"),
    [
        ("adk", {"avgLogprobs": -0.5, "logprobsResult": {"a": 1}}, {"avgLogprobs": None, "logprobsResult": None}),
        (
            "pydantic_ai",
            {"provider_details": {"logprobs": [1], "b": 2}},
            {"provider_details": {"logprobs": None, "b": 2}},
        ),
    ],
)
def test_log_probs_from_a_repair_on_are_emptied(name: str, beside: Any, emptied: Any) -> None:
    record = copy.deepcopy(FORMATS[name]((user("?"), works("f()"), *REPAIRED)))
    key = "events" if name == "adk" else "messages"
    for item in record[key]:
        item.update(beside)
    clean, count = purify_transcript(record)
    assert count.shallow == 1
    same = [new for new, old in zip(clean[key], record[key], strict=False) if new == old]
    assert len(same) == (5 if name == "adk" else 4)
    assert all(item | emptied == item for item in clean[key][len(same) :])


def test_programs_that_ran_on_the_server_stand_in_one_candidate() -> None:
    parts = [*ran(fails(FAILED, "AttributeError", 2)), *ran(works(FIXED, "4.0", "sqrt it is")), {"text": "4"}]
    asked = {"role": "user", "parts": [{"text": "the root of 16?"}]}
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}
    record = {"request": {"contents": [asked]}, "response": {"candidates": [candidate]}}
    clean, count = purify_transcript(record)
    assert (count.calls, count.shallow) == (2, 1)
    assert clean["response"]["candidates"][0]["content"]["parts"] == [parts[0], *parts[4:]]
    found = Detector().format_of(record)
    assert found is not None
    assert found.read(record, "t").speakers[0].before == [("user", "the root of 16?")]


def ran(step: Step) -> list[dict[str, Any]]:
    """A program that ran on the server, as parts of one content."""
    outcome = "OUTCOME_FAILED" if "Traceback" in step.output else "OUTCOME_OK"
    code = {"language": "PYTHON", "code": step.code}
    result = {"outcome": outcome, "output": step.output}
    return [{"text": step.text}, {"executableCode": code}, {"codeExecutionResult": result}]


def said(*parts: Any, **beside: Any) -> dict[str, Any]:
    """A candidate of a response."""
    return {"content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP", **beside}


def test_each_of_several_candidates_is_an_answer_of_its_own() -> None:
    _, failed, fix, told = REPAIRED
    parts = [*ran(failed), *ran(fix), {"text": told.text}]
    blocked = {"finishReason": "SAFETY"}
    candidates = [said({"text": "no idea"}), said(*parts), blocked, said(*ran(fix)), said(*parts)]
    record = {"contents": [{"role": "user", "parts": [{"text": "?"}]}], "response": {"candidates": candidates}}
    clean, count = purify_transcript(record)
    assert (count.transcripts, count.calls, count.failed, count.shallow) == (1, 5, 2, 2)
    mended = said(parts[0], *parts[4:])
    assert clean == {**record, "response": {"candidates": [candidates[0], mended, *candidates[2:4], mended]}}
    found = Detector().format_of(record)
    assert found is not None
    reading = found.read(record, "t")
    assert [one.id for one in reading.trajectories] == ["t.0", "t.1", "t.2", "t.3", "t.4"]
    assert [one.before for one in reading.speakers[:2]] == [[("user", "?")]] * 2


def test_a_history_that_several_candidates_answer_is_read_and_not_repaired() -> None:
    contents = FORMATS["gemini"]((*REPAIRED[:-1],))["contents"]
    candidates = [said({"text": text}) for text in ("Sorry for that error. It is 4.", "four")]
    for answers, shallow in ((candidates, 0), (candidates[1:], 1)):
        record = {"contents": contents, "candidates": answers}
        clean, count = purify_transcript(record)
        assert (count.calls, count.failed, count.shallow) == (2, 1, shallow)
        assert "candidates" not in count.rules, "it failed whatever follows"
        assert dict(count.left) == {"unclear": 1} if not shallow else not count.left
        assert (clean == record) is not shallow
    _, count = purify_transcript({"contents": [*contents[:1], *contents[3:]], "candidates": candidates})
    assert (count.calls, count.failed, count.unread) == (1, 0, 0)


@pytest.mark.parametrize("name", ["gemini", "bedrock", "pydantic_ai"])
def test_several_calls_of_a_message_have_each_its_output(name: str) -> None:
    record = copy.deepcopy(FORMATS[name]((user("?"), works("f()", "1"), fails("g()"), answer("9"))))
    key, inside = (
        ("contents", "parts") if name == "gemini" else ("messages", "content" if name == "bedrock" else "parts")
    )
    asked, one, first, two, second, end = record[key]
    calls = {**one, inside: [*one[inside], two[inside][-1]]}
    results = {**first, inside: [*second[inside], *first[inside]][:: 1 if name != "gemini" else -1]}
    found = Detector().format_of({key: [asked, calls, results, end]})
    assert found is not None
    (read,) = found.read({key: [asked, calls, results, end]}, "t").trajectories
    assert [[o.status for o in turn.observations] for turn in read.turns] == [["ok", "error"], []]
