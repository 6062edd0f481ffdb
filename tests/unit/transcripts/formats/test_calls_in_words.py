"""Calls that agents write into their words, as rows of a table describe them, and what is not read says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from retcon.core.errors import RecordError
from retcon.purify.offline import Repairer
from retcon.transcripts.detector import Detector
from retcon.transcripts.purifier import purify_transcript
from unit.transcripts.test_detect import lines, run

FAILED, FIXED = "print(sm([2, 3]))", "print(sum([2, 3]))"
ERROR = (
    "Traceback (most recent call last):\n  File \"<stdin>\", line 1, in <module>\nNameError: name 'sm' is not defined"
)
Messages = list[dict[str, Any]]


def tags(code: str, tool: str = "python", key: str = "code") -> str:
    return f"I add.\n\n<function={tool}>\n<parameter={key}>\n{code}\n</parameter>\n</function>"


def chat(calls: tuple[str, str], outputs: tuple[str, str], last: str = "It is 5.") -> Messages:
    rounds = [("assistant", calls[0]), ("user", outputs[0]), ("assistant", calls[1]), ("user", outputs[1])]
    return [{"role": r, "content": c} for r, c in (("user", "2 and 3?"), *rounds, ("assistant", last))]


def react(code: str) -> str:
    return f"Thought: I add.\nAction: python\nAction Input: {json.dumps({'code': code})}"


REACT = (react(FAILED), react(FIXED))
WRITTEN = {
    "swe-smith": ("function-tags", chat((tags(FAILED), tags(FIXED)), (f"OBSERVATION:\n{ERROR}", "OBSERVATION:\n5"))),
    "openhands": (
        "function-tags",
        chat(
            (tags(FAILED), tags(FIXED)),
            (f"EXECUTION RESULT of [python]:\n{ERROR}", "EXECUTION RESULT of [python]:\n5"),
        ),
    ),
    "react": ("react", chat(REACT, (f"Observation: {ERROR}", "Observation: 5"))),
    "react numbered": (
        "react",
        chat(
            (f"Action 1: python[{FAILED}]", f"Action 2: python[{FIXED}]"),
            (f"Observation 1: {ERROR}", "Observation 2: 5"),
        ),
    ),
    "react object": (
        "react",
        chat(
            (
                "Action:\n" + json.dumps({"name": "python", "arguments": {"code": FAILED}}),
                "Action:\n" + json.dumps({"name": "python", "arguments": {"code": FIXED}}),
            ),
            (f"API output: {ERROR}", "API output: 5"),
        ),
    ),
}


@pytest.mark.parametrize("name", [*WRITTEN])
def test_a_failed_call_is_read_and_repaired(name: str) -> None:
    format, messages = WRITTEN[name]
    clean, count = purify_transcript({"messages": messages})
    assert dict(count.formats) == {format: 1}
    assert (count.calls, count.failed, count.shallow, count.deep) == (2, 1, 1, 0)
    assert FAILED not in json.dumps(clean)
    assert len(clean["messages"]) == 4


def test_react_in_one_text() -> None:
    text = f"{REACT[0]}\nObservation: {ERROR}\n{REACT[1]}\nObservation: 5\nThought: done\nFinal Answer: 5"
    clean, count = purify_transcript({"prompt": "2 and 3?", "completion": text})
    assert (dict(count.formats), count.calls, count.failed, count.shallow) == ({"react": 1}, 2, 1, 1)
    assert clean["completion"] == f"{REACT[1]}\nObservation: 5\nThought: done\nFinal Answer: 5"


SHELL = {
    "fence": ("```bash\n{}\n```", "<returncode>{}</returncode>\n<output>\n{}\n</output>"),
    "own fence": ("```mswea_bash_command\n{}\n```", "<returncode>{}</returncode>\n<output>\n{}\n</output>"),
    "tag": ("<bash_code>{}</bash_code>", "<returncode>{}</returncode>\n<output>\n{}\n</output>"),
    "other code before it": ("```python\nx = 1\n```\n```\n{}\n```", "<returncode>{}</returncode>\n<output>{}</output>"),
}


@pytest.mark.parametrize("name", [*SHELL])
def test_a_shells_commands_are_calls_and_left_alone(name: str) -> None:
    call, output = SHELL[name]
    done = call.format("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    messages = chat(
        (call.format("wc -l b"), call.format("wc -l a")),
        (output.format(1, "wc: b: none"), output.format(0, "3 a")),
        done,
    )
    found = Detector().format_of(messages)
    assert found is not None
    (trajectory,) = found.read(messages, "t").trajectories
    commands = [call.arguments["code"] for turn in trajectory.turns for call in turn.calls]  # type: ignore[index]
    assert commands == ["wc -l b", "wc -l a", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]
    clean, count = purify_transcript(messages)
    assert (clean, count.calls, count.failed, dict(count.left)) == (messages, 3, 1, {"effects": 1})


def test_rows_of_role_ai_and_text() -> None:
    """As the hub has SWE-agent's, whose shell ends each output with its state."""
    state = "(Open file: n/a)\n(Current directory: /w)\nbash-$"
    rows = [("system", None), ("user", "Look."), ("ai", "LOOK\n```\nls b\n```")]
    rows += [("user", f"ls: cannot access 'b': No such file or directory\n{state}"), ("ai", "LOOK\n```\nls a\n```")]
    rows += [("user", f"a\n{state}"), ("ai", "DONE\n```\nsubmit\n```")]
    items = [{"role": r, "text": t, "system_prompt": "You are." if r == "system" else None} for r, t in rows]
    found = Detector().format_of({"trajectory": items})
    assert found is not None
    reading = found.read({"trajectory": items}, "t")
    assert [[o.status for o in turn.observations] for turn in reading.trajectories[0].turns] == [
        ["error"],
        ["ok"],
        ["ok"],
    ]
    (speakers,) = reading.speakers
    assert list(speakers.before) == [("system", "You are."), ("user", "Look.")]
    clean, count = purify_transcript({"trajectory": items}, offline=Repairer(state="ignore"))
    assert count.shallow == 1
    assert clean["trajectory"] == [*items[:2], *items[4:]]


def test_a_function_call_of_sharegpt_may_be_words_and_tags() -> None:
    turns = [
        ("human", "2 and 3?"),
        ("function_call", tags(FAILED)),
        ("observation", f"EXECUTION RESULT of [x]:\n{ERROR}"),
    ]
    turns += [("function_call", tags(FIXED)), ("observation", "EXECUTION RESULT of [x]:\n5"), ("gpt", "It is 5.")]
    record = {"conversations": [{"from": f, "value": v} for f, v in turns]}
    found = Detector().format_of(record)
    assert found is not None
    (trajectory,) = found.read(record, "t").trajectories
    calls = [(call.name, call.arguments) for turn in trajectory.turns for call in turn.calls]
    assert calls == [("python", {"code": FAILED}), ("python", {"code": FIXED})]
    assert [turn.segments[0].text for turn in trajectory.turns[:2]] == ["I add.\n\n"] * 2
    assert [o.text for turn in trajectory.turns for o in turn.observations] == [ERROR, "5"]
    _, count = purify_transcript(record)
    assert (count.calls, count.failed, count.shallow) == (2, 1, 1)


@pytest.mark.parametrize("spaced", [True, False])
def test_messages_that_are_json_text_stay_so(tmp_path: Path, spaced: bool) -> None:
    separators = (", ", ": ") if spaced else (",", ":")
    written = [json.dumps(m, separators=separators) for _, m in WRITTEN.values()]
    out, count = run(tmp_path, lines([{"id": n, "messages": text} for n, text in enumerate(written)]))
    assert count.shallow == len(written)
    for before, after in zip(written, map(json.loads, out.splitlines()), strict=True):
        kept = json.loads(after["messages"])
        assert after["messages"] == json.dumps(kept, separators=separators)
        assert all(message in json.loads(before) for message in (kept[0], kept[-1]))
        assert FAILED not in after["messages"]


@pytest.mark.parametrize(
    "messages",
    [
        chat(("Thought: I look.\nAction: search[a]", "Thought: I look.\nAction: search[b]"), ("none", "found")),
        chat(
            ("Action: Operation\n```sql\nselect a\n```", "Action: Operation\n```sql\nselect 1\n```"), ("[]", "[(1,)]")
        ),
        chat((tags(FAILED), tags(FIXED)), (ERROR, "5")),
        chat(("I run it.", "Again."), (f"EXECUTION RESULT of [python]:\n{ERROR}", "EXECUTION RESULT of [python]:\n5")),
        chat(("I run it.", "Again."), ("OBSERVATION:\n1", "OBSERVATION:\n2")),
    ],
)
def test_what_is_not_read_is_an_error(tmp_path: Path, messages: Messages) -> None:
    with pytest.raises(RecordError, match="no call can be read, though 1 of 1 record"):
        run(tmp_path, lines([{"messages": messages}]))
    _, count = run(tmp_path, lines([{"messages": messages}]), skip_bad=True)
    assert count.unread == 1
