"""What an output says about its call: every rule by an example, and what only looks like a failure."""

from __future__ import annotations

import json
import re

import pytest

from retcon.core.types import ToolCall
from retcon.transcripts.verdicts import RULES, judge, looks_clean


def ran(code: str) -> list[ToolCall]:
    """The call of a tool that runs this program."""
    return [ToolCall("a", "python", {"code": code}, 0)]


JUPYTER = """---------------------------------------------------------------------------
NameError                                 Traceback (most recent call last)
Cell In[3], line 2
      1 a = 1
----> 2 y_value = \x1b[38;5;241my

NameError: name 'y' is not defined"""
ONE_LINE_HEADING = JUPYTER.replace("-\nNameError", "- NameError").replace("\nCell", " Cell").replace("\n\n", "\n ")
CUT = JUPYTER[: JUPYTER.index("----> 2")] + "...\n[Output Truncated]"
PLAIN = 'before\nTraceback (most recent call last):\n  File "<string>", line 4, in <module>\nmod.OwnError: a\nb'
CHAINED = """Traceback (most recent call last):
  File "t.py", line 1, in <module>
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "t.py", line 3, in <module>
ValueError: bad"""
GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "t.py", line 9, in <module>
  | ExceptionGroup: two (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "t.py", line 3, in <module>
    | ValueError: no
    +------------------------------------"""
HELPER = """ValueError                                Traceback (most recent call last)
Cell In[1], line 13, in parse_all(s)
     12     try:
---> 13         return int(s)

ValueError: invalid literal

The above exception was the direct cause of the following exception:

RuntimeError                              Traceback (most recent call last)
Cell In[2], line 5
      4 scale = 7
----> 5 parsed = parse_all("x")

Cell In[1], line 15, in parse_all(s)
---> 15         raise RuntimeError("bad") from e

RuntimeError: bad"""
OLD_HELPER = re.sub(r"Cell In\[(\d)\], line \d+(?:, in (.*))?", r"<ipython-input-\1-a> in \2", HELPER).replace(
    "in \n", "in <module>\n"
)
HANDLED = JUPYTER + "\n\nDuring handling\n\n" + JUPYTER.replace("line 2", "line 4").replace("-> 2", "-> 4")
INSIDE = HELPER[: HELPER.index("\n\nThe above")]
HARNESS = """Traceback (most recent call last):
  File "{name}", line {outer}, in <module>
  File "<string>", line 4, in <module>
  File "/usr/lib/python3/table.py", line 9, in <module>
NameError: name 'math' is not defined"""
EXECUTED = """Traceback (most recent call last):
  File "<string>", line 4, in <module>
  File "<string>", line 1, in <module>
NameError: name 'math' is not defined"""
SYNTAX = "Cell In[1], line 3\n    yield = 0.09\n          ^\nSyntaxError: invalid syntax"
OLD_SYNTAX = '  File "<ipython-input-2>", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax'
COLOURED_SYNTAX = (
    "  Cell \x1b[0;32mIn[1], line 2\x1b[0m\n    f(\n      ^\n"
    "\x1b[0;31mSyntaxError\x1b[0m\x1b[0;31m:\x1b[0m incomplete input\n"
)
COLOURED = (
    '\x1b[31mTraceback (most recent call last)\x1b[0m:\n  File "a.py", line 7, in <module>\n\x1b[1mKeyError\x1b[0m: 1'
)
RUN_TIME = """Traceback (most recent call last):
   File /a/b.py:35 in run
    exec(c)
   Cell In[1], line 26
    f()
SyntaxError: no"""
DEAD = "-" * 75 + " Timeout waiting for reply                                Traceback (most recent call last) "


@pytest.mark.parametrize(
    ("output", "rule", "error_type", "line"),
    [
        (JUPYTER, "jupyter", "NameError", 2), (ONE_LINE_HEADING, "jupyter", "NameError", 2),
        (CUT, "jupyter", "NameError", 2), (PLAIN, "traceback", "OwnError", 4),
        (CHAINED, "traceback", "ValueError", 3), (GROUP, "traceback", None, 9),
        (HELPER, "jupyter", "RuntimeError", 5), (OLD_HELPER, "jupyter", "RuntimeError", 5),
        (HANDLED, "jupyter", "NameError", 4), (INSIDE, "jupyter", "ValueError", 13),
        (PLAIN.replace("line 4", "line 14"), "traceback", "OwnError", 14),
        (HARNESS.format(name="<string>", outer=1), "traceback", "NameError", 4),
        (HARNESS.format(name="/srv/run.py", outer=1), "traceback", "NameError", 4),
        (HARNESS.format(name="/srv/run.py", outer=57), "traceback", "NameError", 4),
        (EXECUTED, "traceback", "NameError", 4), (COLOURED, "traceback", "KeyError", 7),
        (RUN_TIME, "traceback", "SyntaxError", 26), (SYNTAX, "syntax", "SyntaxError", 0),
        (COLOURED_SYNTAX, "syntax", "SyntaxError", 0), (OLD_SYNTAX, "syntax", "SyntaxError", 0),
        ("IndexError: list index out of range\n", "exception-line", "IndexError", None),
        ("json.decoder.JSONDecodeError: Expecting value", "exception-line", "JSONDecodeError", None),
        ("An exception has occurred\n\nSystemExit: 1", "last-line", "SystemExit", None),
        ("make: stopped\nExit code: 2", "exit-code", "exit 2", None),
        ("[exit code 127]\nbash: foo: not found", "exit-code", "exit 127", None),
        ("Process finished with exit code 1", "exit-code", "exit 1", None),
        ("<returncode>1</returncode>\n<output>x</output>", "exit-code", "exit 1", None),
        ('{"output": "x", "exit_code": 3}', "exit-code", "exit 3", None),
        (json.dumps({"output": PLAIN}), "traceback", "OwnError", 4),
        (json.dumps({"result": "IndexError: no", "error": None}), "exception-line", "IndexError", None),
        (str({"stdout": PLAIN, "stderr": ""}), "traceback", "OwnError", 4),
    ],
)  # fmt: skip
def test_a_failure_is_found_by_its_rule(output: str, rule: str, error_type: str | None, line: int | None) -> None:
    verdict = judge(output, ran("some(code)"))
    assert verdict is not None
    assert (verdict.status, verdict.rule, verdict.error_type, verdict.line) == ("error", rule, error_type, line)
    assert rule in RULES
    assert not looks_clean(output)


@pytest.mark.parametrize(
    ("output", "rule"),
    [
        ("Execution timed out after 10 seconds", "timeout"), ("1\n2\nError: timed out", "timeout"),
        ("[TIMEOUT]", "timeout"), (DEAD, "jupyter"), (JUPYTER.replace("NameError", "TimeoutError"), "jupyter"),
    ],
)  # fmt: skip
def test_a_timeout_is_told_from_an_error(output: str, rule: str) -> None:
    verdict = judge(output)
    assert verdict is not None
    assert (verdict.status, verdict.rule) == ("timeout", rule)


@pytest.mark.parametrize(
    "output",
    [
        "", "4.0", "0 errors, 3 warnings", "mean absolute Error: 0.25\nstandard Error: 0.1",
        "the lesson on NameError: names that are not defined\nand more",
        "found 2 lines with 'Traceback (most recent call last)' in the log", "Exit code: 0",
        '{"stdout": "", "exit_code": 0}', '{"output": "IndexError: no", "exit_code": 0}', '{"result": "4.0"}',
        '{"result": "KeyError: x", "source": "a page on errors"}', '{"error": "none"}',
        "He timed out the player after 3 minutes\nthen went on", "Answer: 12", "x: 3",
    ],
)  # fmt: skip
def test_a_success_that_speaks_of_failures_is_one(output: str) -> None:
    assert judge(output, ran("print(answer)")) is None
    assert looks_clean(output)


@pytest.mark.parametrize(
    ("output", "code"),
    [
        (PLAIN, "import traceback\ntry:\n    f()\nexcept OwnError:\n    traceback.print_exc()"),
        ("ValueError: no", "try:\n    f()\nexcept ValueError as e:\n    print(f'ValueError: {e}')"),
        ("SyntaxError: no", "print('SyntaxError: no')"),
        ("Exit code: 3", "print('Exit code: 3')"),
        ("timed out", "print('timed out')"),
        ("{'result': 'timeout'}", "print({'result': state_of(job)})"),
    ],
)
def test_what_a_program_may_have_written_itself_is_neither(output: str, code: str) -> None:
    verdict = judge(output, ran(code))
    assert verdict is not None
    assert (verdict.status, verdict.rule) == ("ok", "own-words")


def test_a_record_that_a_program_wrote_without_words_of_failures_is_a_success() -> None:
    assert judge("{'result': '4.0'}", ran("print({'result': str(answer)})")) is None
