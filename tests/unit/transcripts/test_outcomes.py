"""What an execution reports of itself decides whether its call failed; what its output is about never does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from retcon.core.errors import RecordError
from retcon.core.types import ToolCall
from retcon.transcripts.purifier import purify_transcript
from retcon.transcripts.verdicts import judge, read_named_failures

RAISED = 'Traceback (most recent call last):\n  File "job.py", line 4, in <module>\nKeyError: "rows"'
REPORT = "FAILED test_a.py::test_one - assert 3 == 4\n===== 1 failed, 4 passed in 0.31s ====="
PYTHON = ("python", {"code": "rows = load()\nprint(rows[0])"})
SHELL = ("bash", {"command": "python job.py"})


def record(tool: str, arguments: dict[str, Any], **message: Any) -> dict[str, Any]:
    """A transcript of one call, whose tool's message has these fields."""
    call = {"id": "a", "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
    steps = [
        {"role": "user", "content": "Please."},
        {"role": "assistant", "content": "I call it.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", **message},
        {"role": "assistant", "content": "Well."},
    ]
    return {"messages": steps}


def failed(tool: str, arguments: dict[str, Any], **message: Any) -> int:
    return purify_transcript(record(tool, arguments, **message))[1].failed


@pytest.mark.parametrize("typed", [{"is_error": False}, {"isError": False}, {"exit_code": 0}, {"status": "success"}])
@pytest.mark.parametrize("content", [RAISED, "Error: no such row", '{"error": "no such row"}', "Exit code: 1"])
def test_a_typed_success_decides_whatever_the_output_is_about(typed: dict[str, Any], content: str) -> None:
    assert failed(*PYTHON, content=content, **typed) == 0


@pytest.mark.parametrize(
    "typed", [{"is_error": True}, {"isError": True}, {"error": True}, {"exitCode": 3}, {"error": "no such tool"}]
)
def test_a_typed_failure_decides_whatever_the_output_is_about(typed: dict[str, Any]) -> None:
    assert failed("get_order", {"id": "W5"}, content="All is well.", **typed) == 1


@pytest.mark.parametrize(
    ("tool", "arguments", "content", "fails"),
    [
        (*PYTHON, RAISED, 1), (*SHELL, RAISED, 1),
        ("bash", {"command": "tail -n 40 job.log | grep -v INFO"}, RAISED, 0),
        ("bash", {"command": "cat job.log && python job.py"}, RAISED, 1),
        ("read_file", {"path": "job.log"}, RAISED, 0),
        ("get_ticket", {"number": 7}, f"Title: it stops\n\n{RAISED}", 0),
        ("search_code", {"code": "KeyError"}, RAISED, 0), ("get_airport", {"code": "LHR"}, RAISED, 0),
        ("get_state", {"job": "j1"}, "job j1\nKilled", 0), (*SHELL, "loading\nKilled", 1),
        ("get_state", {"job": "j1"}, "Exit code: 1\nthe last run", 0),
        (*SHELL, f"{RAISED}\n" + "\n".join(f"row {n} done" for n in range(40)), 0),
        (*SHELL, "Return code: 0\nTime: 0.2 s\nTimeout limit: 30 seconds", 0),
        (*SHELL, "Output: none\nReturn code: 2\nTimeout limit: 30 seconds", 1),
        (*SHELL, f"{REPORT}\nExit code: 1", 0), (*SHELL, f"{REPORT}\nExit code: 2", 1), (*SHELL, REPORT, 0),
        ("run_tests", {"target": "b"}, '{"success": false, "failed": 2, "passed": 1, "output": "2 failed"}', 0),
        ("pay", {"order": "W5"}, '{"order": "W5", "status": "failed", "reason": "card declined"}', 0),
        ("read_file", {"path": "job.log"}, "ERROR: disk full\nINFO: retried\nINFO: done", 0),
        ("read_file", {"path": "jb.log"}, "Error: no file jb.log", 1),
        ("pay", {"order": "W5"}, "Error: order W5 is paid already", 1),
        ("pay", {"order": "W5"}, '{"error": "order W5 is paid already"}', 1),
        ("pay", {"order": "W5"}, '{"content": [{"type": "text", "text": "no"}], "isError": true}', 1),
        ("pay", {"order": "W5"}, "Mean error: 0.25", 0), ("pay", {"order": "W5"}, "Error: 0.25", 0),
        (*SHELL, "cat: rows.csv: No such file or directory", 1),
        (*SHELL, "cat: rows.csv: No such file or directory\n12 rows read", 0),
        (*SHELL, "fatal: not a git repository (or any of the parent directories): .git", 1),
    ],
)  # fmt: skip
def test_an_output_without_a_type_fails_by_its_form_or_by_what_ends_it(
    tool: str, arguments: dict[str, Any], content: str, fails: int
) -> None:
    assert failed(tool, arguments, content=content) == fails


@pytest.mark.parametrize("says", [{"is_error": True}, {"exit_code": 1}])
def test_a_test_runner_that_ends_with_1_and_its_report_has_worked(says: dict[str, Any]) -> None:
    assert failed(*SHELL, content=f"Exit code 1\n{REPORT}", **says) == 0
    assert failed(*SHELL, content="Exit code 1\nno tests ran", **says) == 1


@pytest.mark.parametrize("content", ["", "Exit Code: 1", "<returncode>1</returncode>\n<output>\n</output>"])
def test_a_search_that_ends_with_1_and_prints_nothing_found_nothing(content: str) -> None:
    says = {} if content else {"exit_code": 1}
    assert failed("bash", {"command": "cd src && grep -rn isotope ."}, content=content, **says) == 0
    assert failed("bash", {"command": "cd src && make"}, content=content, **says) == 1
    assert failed("bash", {"command": "grep -n iso a.c"}, content="grep: a.c: no such file", exit_code=1) == 1


def test_a_command_that_looks_for_errors_has_not_failed_for_finding_some() -> None:
    grep = ToolCall("a", "bash", {"code": "grep -rn 'error' src"}, 0, language="shell")
    verdict = judge("Error: seen once", (grep,))
    assert verdict is not None
    assert (verdict.status, verdict.rule) == ("ok", "own-words")


OWN = {"check_stock": r"^NOSTOCK\b"}


@pytest.mark.parametrize(("output", "fails"), [("NOSTOCK 4 left", 1), ("12 left, no NOSTOCK", 0)])
def test_a_user_names_the_form_in_which_a_tool_of_theirs_fails(output: str, fails: int) -> None:
    one = record("check_stock", {"item": "bolt"}, content=output)
    assert purify_transcript(one)[1].failed == 0
    count = purify_transcript(one, failures=OWN)[1]
    assert (count.failed, count.rules["named"]) == (fails, fails)
    other = record("check_order", {"item": "bolt"}, content=output)
    assert purify_transcript(other, failures=OWN)[1].failed == 0
    assert purify_transcript(other, failures={"*": OWN["check_stock"]})[1].failed == fails


def test_forms_are_read_from_words_and_from_a_table(tmp_path: Path) -> None:
    table = tmp_path / "mine.toml"
    table.write_text("[failures]\ncheck_stock = '^NOSTOCK'\npay = ['declined', 'no card']\n")
    read = read_named_failures([str(table), "pay=a=b"])
    assert read == {"check_stock": "(?:^NOSTOCK)", "pay": "(?:declined)|(?:no card)|(?:a=b)"}
    (tmp_path / "none.toml").write_text("failures = 3\n")
    for word, said in (("pay", "tool=regex"), ("pay=(", "regular expression"), (str(tmp_path / "none.toml"), "table")):
        with pytest.raises(RecordError, match=said):
            read_named_failures([word])
