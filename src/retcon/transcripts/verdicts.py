"""Verdicts on calls by their outputs, in records without typed status.

Outputs are parsed, in this order: an outcome that the execution reports in its output (a flag, an exit code); else the
whole output, if it is one error form of the table FORMS, from any tool; else, of tools that run programs only, the end
of the output. Text that a program may have printed itself is `unclear` rather than judged. tests/outputs has every
wording that a rule is for, those that only look like one, and who prints them.
"""

from __future__ import annotations

import ast
import builtins
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from retcon.core.errors import RecordError
from retcon.core.texts import FILENAME
from retcon.core.types import Status, ToolCall, Trajectory
from retcon.purify.failing import has_program, is_lookup, only_shows, runs_program


class Verdict(NamedTuple):
    """status: `ok` where it is `unclear` (neither a failure nor a fix). line: 1-based, where a traceback enters the
    program; None where that is unknown; 0 where nothing of it ran."""

    status: Status
    rule: str
    error_type: str | None = None
    line: int | None = None


class Report(NamedTuple):
    """Report of a call in a record of its execution.

    typed: whether a flag or code decides; verdict: what it decides, None for success. text: what is to be judged as
    text where nothing decides. names: the fields that report it. ran: whether the record is that of a program's run."""

    typed: bool
    verdict: Verdict | None = None
    text: str = ""
    names: tuple[str, ...] = ()
    ran: bool = False

    def is_own(self, code: str) -> bool:
        """Whether the program may have made this record itself: it has one of the names as a string."""
        return any(f"{quote}{name}{quote}" in code for name in self.names for quote in "'\"")


EXIT_CODES = ("exit_code", "returncode", "return_code", "exit_status", "exitcode", "exitCode", "returnCode")
_FLAGS = {"is_error": True, "isError": True, "error": True, "timed_out": True, "run_success": False}
"""Flags of transports and services, and which value of theirs is a failure."""
_OUTCOMES: dict[str, Status] = {
    "timeout": "timeout", "timed_out": "timeout", "timelimitexceeded": "timeout", "fail": "error", "failed": "error",
    "runtimeerror": "error", "compile_error": "error", "memorylimitexceeded": "limit", "oom": "limit",
}  # fmt: skip
_ERRORS = ("traceback", "stderr", "error", "exception", "error_message")
_PRINTED = ("output", "result", "stdout")
_RUN = frozenset({"stdout", "stderr", "run_result", "traceback", "process_status", *EXIT_CODES})
_ABOUT = frozenset(
    {"error", "errors", "exception", "error_message", "message", "msg", "detail", "details", "reason", "code", "hint"}
    | {"error_code", "errorCode", "status", "status_code", "statusCode", "type", "error_type", "errorType", "trace"}
    | {"suggestion", "timestamp", "request_id", "requestId", "traceback", "stack", "stderr", "success", "ok", "data"}
)
"""Fields of a record that is nothing but an error and details of it."""
_NOTHING = frozenset({"", "none", "null", "no error", "no errors", "n/a", "ok"})
_WRAPPED = frozenset({"tool_call_id", "name", "content"})
_LARGEST = 200_000
_CUT = ("Traceback (most recent call last):\\n", "Traceback (most recent call last)\\n")


def exit_verdict(code: int, error_type: str | None = None, rule: str = "exit-code") -> Verdict | None:
    """Judge an exit code: 124 is of `timeout(1)`, 137 of a kill for memory."""
    if code == 0:
        return None
    status: Status = "timeout" if code == 124 else "limit" if code in (137, -9) else "error"
    return Verdict(status, rule, error_type or f"exit {code}")


def outcome_of(fields: Mapping[str, object], rule: str, error_type: str | None = None) -> tuple[bool, Verdict | None]:
    """Read an outcome from fields: whether typed, and the failure.

    An exit code counts before a flag. What a tool reports of its domain (`success`, `status`, counts) does not
    count."""
    for name in EXIT_CODES:
        if type(code := fields.get(name)) is int:
            return True, exit_verdict(code, error_type, "exit-code" if rule == "field" else rule)
    found = [(name, value) for name in _FLAGS if isinstance(value := fields.get(name), bool)]
    for name, value in found:
        if value is _FLAGS[name]:
            late = name == "timed_out" or "timeout" in str(fields.get("reason", "")).lower()
            return True, Verdict("timeout" if late else "error", rule, error_type)
    return bool(found), None


def report_of(text: str, tools: Collection[str] | None = None) -> Report | None:
    """Read the outcome of an output that is a record: JSON or a Python dict; None for plain text.

    SandboxFusion (`run_result` with `return_code`), code-judge (`run_success`), shells behind an API (`exit_code`,
    `stderr`; Codex has it under `metadata`), NeMo-Gym's tools (`process_status`), MCP's results and blocks. What only
    wraps an output, alone or with the name of its tool (Hermes), counts by that; tools: the names of what may have
    given it, None for any. A record that was cut in the middle of a traceback counts by that."""
    if text.startswith("[{") and text.endswith("}]"):
        blocks = _texts(_value(text, python="[{'"))
        return Report(False, text=blocks) if blocks else None
    record = _decoded(text)
    if record is None:
        return _cut_in_traceback(text)
    content = record.get("content")
    if "name" in record and "content" in record and record.keys() <= _WRAPPED:
        if tools is not None and "tool_call_id" not in record and record["name"] not in tools:
            return None
        if not isinstance(content, dict):
            inner = content if isinstance(content, str) else _texts(content)
            return Report(False, text=inner) if inner else None
        record = content
    return _of_record(record)


def _of_record(record: Mapping[str, object]) -> Report | None:
    """Judge a record by its innermost typed outcome, error fields, or text."""
    inside = [part for name in ("run_result", "content") if isinstance(part := record.get(name), dict)]
    beside = record.get("metadata")
    codes = {name: beside[name] for name in EXIT_CODES if name in beside} if isinstance(beside, dict) else {}
    parts: list[Mapping[str, object]] = [*inside, codes, record]
    ran = any(_RUN & part.keys() for part in parts)
    names = tuple(name for part in parts for name in part if name in _RUN or name in _FLAGS or name == "status")
    errors = [v for part in parts for n in _ERRORS if isinstance(v := part.get(n), str) and v.strip()]
    error_type = error_type_of(errors[0]) if errors else None
    ended = [_OUTCOMES.get(str(part.get("process_status", part.get("status"))).lower()) for part in parts if ran]
    for part in parts:
        typed, verdict = outcome_of(part, "field", error_type)
        if verdict is not None and "timeout" in ended:
            verdict = Verdict("timeout", "timeout", error_type)
        if typed:
            return Report(True, verdict, names=names, ran=ran)
    # Of the record itself a status is the domain's, unless it says that the time ran out.
    telling = ended if "process_status" in record else [*ended[:-1], *(s for s in ended[-1:] if s == "timeout")]
    known: Status | None = next((status for status in telling if status is not None), None)
    if known is not None:
        rule = "timeout" if known == "timeout" else "field"
        return Report(True, Verdict(known, rule, error_type), names=names, ran=ran)
    if (error := _nothing_but_error(record)) is not None:
        return Report(True, Verdict("error", "record", error_type_of(error)), names=names)
    if "process_status" in record:  # which says error of mere warnings too
        printed = [text for name in ("stdout", "stderr") if isinstance(text := record.get(name), str)]
        return Report(False, text="\n".join(printed), names=names, ran=True)
    filled = [name for name, value in record.items() if value not in (None, "", [], {})]
    if len(filled) == 1 and filled[0] in _PRINTED and isinstance(printed_text := record[filled[0]], str):
        return Report(False, text=printed_text, names=(filled[0],), ran=ran)
    return Report(False, text=errors[0] if ran and errors else "", names=names, ran=True)


def _nothing_but_error(record: Mapping[str, object]) -> str | None:
    """Return the error of a record that holds nothing else."""
    filled = {n: v for n, v in record.items() if v not in (None, "", [], {}, False)}
    if not filled.keys() <= _ABOUT or record.get("success") is True or record.get("ok") is True:
        return None
    wanted = ["error", "exception", "error_message", "errors"]
    if str(record.get("status")).lower() == "error":
        wanted += ["message", "msg", "detail", "reason"]
    for name in wanted:
        value = filled.get(name)
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, dict):
            value = next(
                (value[n] for n in ("message", "msg", "detail", "type") if isinstance(value.get(n), str)), None
            )
        if isinstance(value, str) and value.strip().lower() not in _NOTHING:
            return value
    return None


def error_type_of(error: str) -> str | None:
    """Return the exception that an error's last line names."""
    name = error.strip().rpartition("\n")[2].partition(":")[0].strip().rpartition(".")[2]
    return name if name.isidentifier() and name[:1].isupper() else None


def _texts(content: object) -> str:
    """Join the texts of typed blocks; "" for anything else."""
    blocks = [one for one in content if isinstance(one, dict)] if isinstance(content, list) else []
    if not isinstance(content, list) or len(blocks) < len(content) or not all("type" in one for one in blocks):
        return ""
    return "\n".join(one["text"] for one in blocks if one["type"] == "text" and isinstance(one.get("text"), str))


def _decoded(text: str) -> Mapping[str, object] | None:
    """Decode a record from JSON or Python's notation."""
    if not text.startswith("{") or not text.endswith("}"):
        return None
    value = _value(text, python="{'")
    return value if isinstance(value, dict) and all(isinstance(k, str) for k in value) else None


def _value(text: str, python: str) -> object:
    """Decode JSON, else Python's notation; None for neither."""
    try:
        return msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        if len(text) > _LARGEST or not text.startswith(python):
            return None
    try:
        return ast.literal_eval(ast.parse(text, FILENAME, mode="eval"))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # of `{[]: 1}` a TypeError
        return None


def _cut_in_traceback(text: str) -> Report | None:
    """Read a record that was cut off within a traceback."""
    at = next((text.find(heading) for heading in _CUT if heading in text), -1)
    named = at > 0 and text.startswith("{") and any(f"{q}{name}{q}:" in text[:at] for name in _ERRORS for q in "'\"")
    if not named:
        return None
    return Report(False, text=text[at:].replace("\\n", "\n").replace('\\"', '"'), names=_ERRORS, ran=True)


class Form(NamedTuple):
    """An error form. hints: what a line has one of, in small letters, that may be of the form.

    own: words by which a program may have written such a line itself. programs: counts for tools that run programs
    alone, whose last line it may be as well. details: whether any lines may follow its line; else these have to be
    indented, or one paragraph after a heading, so that a log that begins with an error is no error."""

    rule: str
    pattern: re.Pattern[str]
    status: Status = "error"
    own: tuple[str, ...] = ()
    programs: bool = False
    details: bool = True
    error_type: str | None = None
    hints: tuple[str, ...] = ()


_SECONDS = r"\d+(?:\.\d+)?\s*(?:s|sec|secs|seconds?|ms|minutes?|m)?"
_WHAT = r"(?:the\s+)?(?:(?:code|python|cell|command|script|program|process|tool|execution|kernel|call|request)\s+)"

EXIT = re.compile(
    rf"(?:error:\s*)?{_WHAT}*(?:(?:exited|failed|finished|terminated|completed|ended|died)\s+)?"
    r"(?:with\s+)?(?:\(?non-?zero\s+)?(?:(?:exit|return)[ _-]?(?:code|status)|(?<=exited with )code)"
    r"(?:\W{0,4}|\s+was\s+|\s+is\s+)(?P<code>-?\d+)\b"
    r"(?:\W*(?:\((?:execution (?:failed|succeeded)|error|failed|failure|[A-Z]+)\)?|\(?SIG[A-Z]+\)?)?\W*)"
    r"|<(?P<tag>returncode|exit_code|exitcode)>\s*(?P<tagged>-?\d+)\s*</(?P=tag)>.*",
    re.IGNORECASE,
)
"""Process runners, AutoGen ("exitcode: 1 (execution failed)"), OpenHands ("The command completed with exit code 1."),
mini-swe-agent's tags. A word is needed before the number, so that `Return: 12` does not match."""

_TIMEOUT = (
    rf"(?:error:\s*)?(?:tool error:\s*)?(?:{_WHAT})*(?:has\s+)?(?:been\s+)?"
    r"(?:time[d-]?\s*-?out(?:\s+error)?(?:\s+(?:after|before|waiting|of|exceeded|reached|limit exceeded)\b.*"
    r"|\s*\([^)]*\))?"
    r"|timeout:\s*(?:code|command|execution|process|exceeded|the |no |\d).*"
    rf"|(?:killed|terminated|stopped|interrupted|aborted)\s+(?:after|due to)\s+(?:{_SECONDS}|(?:a\s+)?timeout).*)"
    r"|(?:error:\s*)?(?:maximum\s+|max\s+)?(?:execution\s+|cpu\s+|wall\s+)?time(?:\s+limit)?\s+(?:limit\s+)?exceeded\b.*"
    r"|(?:error:\s*)?(?:the\s+)?(?:code\s+)?execution\s+(?:time\s+)?(?:exceeded|took longer than|took more than)\s+.*"
    r"|(?:error:\s*)?command\s+['\"`].*['\"`]\s+timed out(?:\s+after\s.*)?"
    r"|tool '[^'\n]{1,100}' timed out after [\d.]+ seconds\.?"
    r"|the last command <command>.*|the command (?:timed out after|has no new output after) .*"
    r"|TLE|TimeLimitExceeded"
)
"""`timeout(1)` wrappers, smolagents ("Code execution exceeded the maximum execution time of …"), Qwen-Agent, ToRA's
executor ("Timeout Error"), `subprocess.TimeoutExpired`, judges, OpenHands' soft timeouts."""

_MEMORY = (
    r"(?:error:\s*)?(?:(?:the\s+)?(?:process|program|code|container|kernel|sandbox)\s+(?:was\s+|has been\s+)?)?"
    r"(?:(?:oom[- ]?)?killed(?:\s+\(?(?:out of memory|oom)\)?)?(?:\s+by (?:the )?oom.*)?"
    r"|(?:ran\s+)?out of memory|memory limit exceeded\b.*|exceeded (?:the )?memory limit\b.*|MLE|MemoryLimitExceeded)"
)
"""The kernel's OOM killer as a shell reports it, judges, containers."""

_CRASH = (
    r"(?:.*\bline \d+:\s+\d+\s+)?segmentation fault(?:\s+\(core dumped\))?\b.{0,200}|bus error(?:\s+\(core dumped\))?"
    r"|aborted(?:\s+\(core dumped\))?|illegal instruction(?:\s+\(core dumped\))?"
    r"|floating point exception(?:\s+\(core dumped\))?"
    r"|fatal python error: .*|(?:the\s+)?kernel (?:appears to have )?died\b.*|dead ?kernel(?:error)?\b.*"
    r"|(?:process|program) (?:was )?(?:killed|terminated) by signal \d+.*|killed by signal \d+.*"
)
"""Shells on signals, CPython's own last words, Jupyter's kernel manager."""

_EDITOR = (
    r"no replacement was performed\b.*|string to replace not found in file\b.*"
    r"|file has not been (?:read|modified) (?:yet|since)\b.*|<tool_use_error>.*"
    r"|invalid `\w+` parameter\b.*|(?:[\w-]+ )?verification failed: .*"
    r"|(?:the )?patch (?:failed|could not be applied)\b.*"
    r"|your proposed edit has introduced new syntax error.*|your command failed syntax check.*"
)
"""Anthropic's editor, Claude Code, Codex' patch tool, SWE-agent's linter."""

_HARNESS = (
    r"(?:(?:an )?(?:error|exception|failure) (?:(?:occurred )?(?:while|when|in|during) |trying to )?"
    r"(?:executing|running|execution(?: of)?|evaluating|calling|invoking|code execution)\b[^:\n]{0,120}:.*"
    r"|code parsing failed on line \d+ due to:.*|code execution failed at line '.*"
    r"|an error occurred while trying to execute this code:.*"
    r"|an error occurred during execution|error validating tool '[^'\n]{1,100}':.*"
    r"|tool '[^'\n]{1,100}' not found\. available: .*"
    r"|an error occurred while (?:running the tool|parsing tool arguments)\. please try again.*"
    r"|error: \S{1,100} is not a valid tool, try one of \[.*"
    r"|mcp error -?\d+: .*|error code: \d{3} - .*|(?:error: )?unknown tool:? .{1,100}|node:internal/.*)"
)
"""LangChain's, LangGraph's and smolagents' wrappers, the SDKs of OpenHands, of OpenAI's agents and of MCP; node."""

_RAN = (
    r"(?:code |python |cell |program )?(?:execution|runtime|compilation|compile) (?:error|failed|failure)"
    r"(?:\s*[:.!].*)?"
    r"|(?:code|tool|script|python code) (?:execution )?(?:failed|errored)(?: to execute| to run)?\s*[:.!].*"
    r"|failed to (?:execute|run)\b[^:\n]{0,80}:.*"
)
"""What other tools print that run programs."""

_LABEL = (
    r"(?:[\w./+-]{1,40}: )?(?:(?:an?|tool|mcp|api|http|sql|db|database|python|script|command|runtime|syntax|parse|type"
    r"|value|validation|internal|server|client|network|connection|request|input|argument|parameter|unexpected|critical"
    r"|fatal|system|operational|programming|permission|unknown|uncaught|unhandled) ){0,2}(?:error|exception|failure"
    r"|fatal)(?: (?:\d{1,5}|code|\[[^\]\n]{0,60}\]|\([^)\n]{0,60}\)))*\s*:"
    r"(?!\s*(?:none|null|no errors?|n/a|\(none\)|0)\s*$|\s*[-+]?\d+\.\d)(?=.*[^\W\d_]{2}|\s*$).*"
)
"""`Error: …`, `ERROR:` above its message, `fatal: …` (git), `x.py: error: …`, `ERROR 1064 (42000): …` (MySQL), `ERROR:
relation … does not exist` (PostgreSQL), `Runtime Error: near …` (SQLite)."""

_SHELL = (
    r"(?:/(?:usr/)?bin/)?(?:ba|z|da|k)?sh: (?:line )?(?:\d+: )?.{1,300}: "
    r"(?:command not found|not found|permission denied|no such file or directory|syntax error.*)"
    r"|(?:/\S*/)?python[\d.]*: (?:can't open file .*|no module named .*)"
    r"|[\w./-]{1,40}: (?:cannot |can't |unable to |unrecognized option |invalid option |missing operand)\S.*"
    r"|[\w./-]{1,40}: .{1,300}: (?:no such file(?: or directory)?|permission denied|is a directory|not a directory)"
    r"|git: '.*' is not a git command\b.*|npm (?:err!|error)(?: .*)?|e: (?:unable to|could not|package) .*"
    r"|make(?:\[\d+\])?: \*\*\* .*|curl: \(\d+\) .*|parse error near line \d+: .*"
)
"""ls, cat, git, npm, apt, make, curl, sqlite3; with `Error: …` and `fatal: …` also pip, git and SQL."""

_COMPILED = r".{1,200}\((?:<string>|<unknown>|<stdin>|<cell>|<code>|<ipython-input[^>]*>), line \d+\)?"
"""`str(exception)` of a SyntaxError, as tools print that catch and do not name it."""


def _form(rule: str, pattern: str, hints: str, own: str = "", **other: Any) -> Form:
    """Return a form whose hints and own words are divided by `|`."""
    words = tuple(own.split("|")) if own else ()
    return Form(rule, re.compile(pattern, re.IGNORECASE), own=words, hints=tuple(hints.split("|")), **other)


_CAUGHT = "except|error|fail"
_STOPPED = "time|tle|killed|terminated|stopped|interrupted|aborted|no new output|execution"
_SIGNALS = "fault|bus error|abort|illegal|floating point|fatal|kernel|signal"
_LABELS = "error:|exception:|failure:|fatal:|error |exception |failure |fatal "
_EDITORS = "replac|has not been|tool_use_error|parameter|verification failed|patch|your "
_LATE = "timed out|timeout|time out|time limit"
FORMS = (
    _form("timeout", _TIMEOUT, _STOPPED, _LATE, status="timeout", error_type="Timeout"),
    _form("killed", _MEMORY, "kill|memory|mle", "kill|memory", status="limit", programs=True, error_type="MemoryError"),
    _form("killed", _CRASH, _SIGNALS, "fault|signal", programs=True),
    _form("shell", _SHELL, ": |npm err", "not found|permission denied", details=False),
    _form("editor", _EDITOR, _EDITORS),
    _form("harness", _HARNESS, "error|exception|fail|not found|unknown|node:", _CAUGHT),
    _form("harness", _RAN, "error|fail", _CAUGHT, details=False),
    _form("syntax", _COMPILED, "(<", _CAUGHT, programs=True),
    _form("error", _LABEL, _LABELS, _CAUGHT, details=False),
)
"""In the order in which they are tried."""

DETAIL = re.compile(r"[ \t]+\S.*|at .*|caused by: .*|(?:line \d+|hint|detail|context): .*|\^.*", re.IGNORECASE)
"""A line that goes on with the message of the line before it."""

TESTS = re.compile(
    r"^=* ?(?:\d+ \w+, )*\d+ (?:failed|passed)(?:, \d+ \w+)* in [\d.]+ ?s\b.*"
    r"|^Ran \d+ tests? in [\d.]+s\s*\n\s*FAILED \(.*"
    r"|^(?:Tests|Test Suites): +(?:\d+ \w+, )*\d+ (?:failed|total)\b.*|^ *\d+ (?:passing|failing)\b.*"
    r"|^(?:--- FAIL: .*|FAIL\t\S+.*)|^test result: FAILED\..*|.*\bTests run: \d+, +Failures: \d+.*"
    r"|^Failed! +- +Failed: +\d+.*|^Tests: \d+, Assertions: \d+.*",
    re.MULTILINE,
)
"""The report of a test runner: pytest, unittest, Jest and Vitest, Mocha, Go, Cargo, JUnit, .NET, PHPUnit."""


HEADING = r"Traceback \(most recent call last\)"
# Numbers of lines are short here, as Python makes no number of very many digits.
_CELL = re.compile(r"Cell In ?\[\d+\], line (?P<line>\d{1,9})(?!\d)(?P<inside>, in (?!<module|<cell line))?")
"""A frame in a cell: at its top, or inside a function that this one or an earlier one defines."""
_OLD_CELL = re.compile(
    r"<ipython-input[^>\n]*>(?: in <(?:module|cell line)[^\n]*|:\d+[ \t]*)\n(?:[^\n]*\n){0,9}?-+> ?(\d{1,9})"
)
"""A frame at the top of a cell, as IPython wrote it before; its line has the arrow."""
_FILE = re.compile(r'File "[^"\n]*", line (\d{1,9}), in <(?:module|cell line)')
_HEADED = re.compile(rf"^[^|\n]*{HEADING}", re.MULTILINE)
"""A traceback that is no part of a group's."""
_OWN_FRAME = re.compile(r'File "<[^"\n]*>", line (\d{1,9}), in <(?:module|cell line)')
"""A frame at the top of a program that stands in no file; a harness that runs it may have one too."""
_ARROW = re.compile(r"^-+> ?(\d{1,9})", re.MULTILINE)


def entry(text: str) -> int | None:
    """Return the program's line at which a traceback enters it.

    1-based; of exceptions that caused each other, the furthest, so that nothing that ran counts as if it had not."""
    old = text.find("<ipython-input")
    if old >= 0 and (found := _ARROW.search(text, old)):
        return max(map(int, _OLD_CELL.findall(text)), default=int(found[1]))
    if lines := _OWN_FRAME.findall(text) if 'File "<' in text else ():
        return max(map(int, lines))
    if cells := list(_CELL.finditer(text)) if "Cell In" in text else ():
        own = [cell for cell in cells if not cell["inside"]]
        return max(int(cell["line"]) for cell in own or cells)
    if "|" in text:
        last = max((heading.end() for heading in _HEADED.finditer(text)), default=0)
    else:  # no group's, so that any heading counts
        last = max(0, text.rfind("Traceback (most recent call last)"))
    found = _FILE.search(text, last) or (_FILE.search(text) if last else None)
    return int(found[1]) if found else None


RULES = {
    "status": "the format's own field",
    "exit-code": "an exit code other than 0: a line of what a harness puts around an output, or a field of a record",
    "field": "a flag of a record, such as `isError`",
    "record": 'the whole output is a record of an error, `{"error": "…"}`',
    "traceback": "a Python traceback that ends the output: its heading, and a frame or the exception after it",
    "jupyter": "the heading of a Jupyter traceback, which names the exception",
    "frames": "a traceback whose heading was cut off: a frame, then the exception",
    "syntax": "the place and caret of a program that does not compile, then the SyntaxError",
    "exception-line": "the whole output is one line, a built-in exception and its message",
    "last-line": "the last line is a built-in exception and its message, and the program never names it",
    "exception-repr": "the whole output is the repr of a built-in exception",
    "error": "the whole output is an error after a label, such as `Error: …`",
    "editor": "an editor or patch tool that changed nothing, `<tool_use_error>`",
    "harness": "a sentence of a harness that the call failed",
    "timeout": "a sentence, or a field of a record, that the call ran out of time",
    "killed": "memory or a signal ended the program",
    "shell": "the whole output is the message of a shell or of its commands",
    "named": "a form that the user named for the tool",
    "malformed": "the arguments are JSON that cannot be read",
}
UNCLEAR = "own-words"
"""The rule of an output that looks like a failure, of a program that itself writes such text."""

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_JUPYTER = re.compile(rf"^(?:-{{20,}}\s+)?(?P<type>[A-Za-z_][\w.]*(?: [a-z]+)*)[ \t]{{2,}}{HEADING}", re.MULTILINE)
_PLAIN = re.compile(
    rf"{HEADING}:?[ \t]*\r?\n[\s|+-]*(?:File |Cell In|\^|\[|\.\.\.|<)|^[ \t]*{HEADING}:?\s*\Z", re.MULTILINE
)
_TRIMMED = re.compile(rf"^[ \t]*(?:[\w ]{{1,20}}: ?)?{HEADING}:?[ \t]*$", re.MULTILINE)
_EXCEPTION = re.compile(r"^ ?(?P<type>[A-Za-z_][\w.]*)(?:: |:?[ \t]*$)", re.MULTILINE)
_FRAME = re.compile(r'^[ \t]*File "[^"\n]{1,300}", line \d+, in \S', re.MULTILINE)
_ERROR_TYPE = re.compile(r"\b[A-Z]\w*(?:Error|Exception)\b")
_REPR = re.compile(r"(?P<type>[A-Za-z_][\w.]*)\((?:['\"].*|-?\d+(?:,? .*)?)?\)", re.DOTALL)
_SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")
_SYNTAX = re.compile(
    r"^[ \t]*(?:File [^\n]{0,300}(?:, line \d+|>:\d+)|Cell In ?\[\d+\], line \d+|<[\w-]{1,40}>:\d+)[^\n]*\n"
    r"(?:[^\n]*\n){0,3}?(?P<type>SyntaxError|IndentationError|TabError): ",
    re.MULTILINE,
)
_OWN_TRACEBACK = re.compile(r"print_exc|format_exc|exc_info|excepthook|showtraceback|\.exception\(|Traceback|print_tb")
_LEFT = re.compile(r"\bSystemExit(?:: ?(?:0|None)?|\((?:0|None)?\))?\s*\Z")
"""A program that ended itself without an exit code, as `sys.exit()` does: that is no failure."""
_ENDED = "An exception has occurred, use %tb to see the full traceback."
"""IPython's words above the exception of a program that ended itself."""
_BUILTIN = frozenset(
    name
    for name, item in vars(builtins).items()
    if isinstance(item, type) and issubclass(item, BaseException) and not issubclass(item, Warning)
)
_TIMEOUTS = frozenset({"TimeoutError", "TimeoutExpired", "TimeoutException", "CellTimeoutError", "FunctionTimedOut"})
_NOTES = ("[Jupyter current working directory", "[Jupyter Python interpreter", "[Current working directory",
          "[Python interpreter", "Now let's retry: take care")  # fmt: skip
_BRACKETS = "[]()#*`=_-~\"' \t❌⚠️.!"
_LABELLED = re.compile(r"\W*[A-Z][\w ()/-]{0,40}:(?: .*)?|[\[<=(#*-].*")
"""A line that a harness puts around an output."""
_AROUND = 12
"""Lines at the end of an output that may be such lines."""
_MESSAGE = 12
"""Lines that a message may go on for after the exception that ends a traceback."""
_EDGE = 600
"""Characters of a first or last line beyond which it is no harness's sentence, and of an output's edges."""
_SHORT = 400
"""Characters that may follow the line of an error, of a tool that looks nothing up."""

_DIGITS = frozenset("0123456789")
_HINTS = tuple(dict.fromkeys([*(hint for form in FORMS for hint in form.hints), "exit", "return", "interrupt"]))
_EXCEPTIONS = frozenset(name.lower() for name in _BUILTIN | _TIMEOUTS)
_FIRST = frozenset({
    "aborted", "an", "been", "bus", "call", "cell", "code", "command", "compilation", "compile", "completed",
    "container", "cpu", "dead", "deadkernel", "died", "ended", "error", "exceeded", "exception", "execution",
    "exit", "exitcode", "exited", "failed", "failure", "fatal", "file", "finished", "floating", "has",
    "illegal", "interrupted", "invalid", "kernel", "killed", "max", "maximum", "memory", "memorylimitexceeded",
    "mle", "no", "non-zero", "nonzero", "npm", "oom", "oom-killed", "out", "patch", "process", "program",
    "python", "python3", "ran", "request", "return", "returncode", "runtime", "sandbox", "script",
    "segmentation", "stopped", "string", "terminated", "time", "time-out", "timed", "timelimitexceeded",
    "timeout", "tle", "tool", "unknown", "wall", "with", "your",
})  # fmt: skip
_ERROR_WORDS = frozenset({
    "a", "api", "argument", "client", "connection", "critical", "database", "db", "http", "input", "internal",
    "mcp", "network", "operational", "parameter", "parse", "permission", "programming", "server", "sql",
    "syntax", "system", "type", "uncaught", "unexpected", "unhandled", "validation", "value", "verification",
})  # fmt: skip
"""How a line of FORMS begins, if not with one word and a colon; those of `_ERROR_WORDS` have a colon further on."""
_REPORTED = ("passed", "failed", "Failed", "FAIL", "passing", "failing", "Failures", "Assertions", "total")
"""Words of a test runner's report."""
_EXITED = ("xit", "eturn", "EXIT")


def may_fail(output: str) -> bool:
    """Whether a rule could hold for this output: a cheap look, rarest signs first."""
    if "\x1b" in output or ("(" in output and "Traceback (" in output):
        return True
    colon = ":" in output
    if colon and "Error: " in output and any(name in output for name in _SYNTAX_ERRORS):
        return True
    if '"' in output and 'File "' in output:
        return True
    # The other rules are about whole first and last lines, or whole outputs that are JSON of objects.
    stripped = output.strip()
    first = stripped[:1]
    if first == "{" or stripped.startswith("[{"):
        return True
    end = stripped.find("\n")
    if end < 0:
        return first not in _DIGITS and _has_hint(stripped)
    if first not in _DIGITS and _has_hint(stripped[:end]):
        return True
    last = stripped.rfind("\n") + 1
    if stripped[last] not in _DIGITS and _has_hint(stripped[last:]):
        return True
    if not colon:
        return False
    edges = stripped[:_EDGE] + stripped[-_EDGE:]
    return any(word in edges for word in _EXITED)


def _has_hint(line: str) -> bool:
    """Whether a line may be of a form, or an exception: most are not by their first word."""
    bare = line[:_EDGE]
    if _begins_plainly(bare.partition(" ")[0]):
        return "(<" in bare or "ation fa" in bare
    bare = bare.lstrip(_BRACKETS)
    bare = bare[4:] if bare[:4] in ("The ", "the ") else bare
    kind = _kind_of(bare.partition(" ")[0])
    if kind is None or (kind == "colon" and ":" not in bare):
        return "(<" in bare or "ation fa" in bare  # a segmentation fault, a verification that failed
    lower = bare.lower()
    return kind == "exception" or any(hint in lower for hint in _HINTS)


@lru_cache(maxsize=8192)
def _begins_plainly(word: str) -> bool:
    return word[:1].isalpha() and word not in ("The", "the") and _kind_of(word) is None


@lru_cache(maxsize=8192)
def _kind_of(word: str) -> Literal["exception", "form", "colon"] | None:
    """Return the kind of a line with this first word; `colon`: a form, if it has a colon."""
    plain = word.partition("(")[0].rstrip(_BRACKETS + ":").lower()
    if word[:1] == "<" or "rror" in plain or "xception" in plain or plain in _EXCEPTIONS:
        return "exception"
    return "form" if ":" in word or plain in _FIRST else "colon" if plain in _ERROR_WORDS else None


def looks_clean(output: str) -> bool:
    """Whether no rule holds for this output, whatever its call is."""
    return not may_fail(output) or judge(output) is None


def judge(output: str, calls: Sequence[ToolCall] = ()) -> Verdict | None:
    """Judge a call by its output; None: success. calls: those that may have given the output; none: any tool."""
    if not may_fail(output):
        return None
    return _Output(calls).judged((_ANSI.sub("", output) if "\x1b" in output else output).strip())


def is_negative_result(verdict: Verdict | None, text: str, calls: Sequence[ToolCall]) -> bool:
    """Whether exit code 1 means failed tests or an empty search."""
    if verdict is None or verdict.status != "error" or verdict.rule not in ("status", "exit-code"):
        return False
    if verdict.error_type not in (None, "exit 1", text) or next((code for code, _ in _exit_codes(text)), 1) != 1:
        return False
    if TESTS.search(text[-_EDGE * 4 :]) is not None:
        return True
    lines = re.sub(r"<(\w+)>-?\d+</\1>|</?\w+>", "", text[: _EDGE * 2]).split("\n")
    printed = any(line.strip() and _exit_code(line.strip()) is None for line in lines)
    return verdict.error_type == "exit 1" and not printed and bool(calls) and all(map(only_shows, calls))


def read_named_failures(words: Sequence[str]) -> dict[str, str]:
    """Read a user's forms of failures, `tool=regex` or a TOML file; raises RecordError."""
    forms: dict[str, list[str]] = {}
    for word in words:
        tool, sign, form = word.partition("=")
        given: Mapping[str, object] = {tool: form}
        if not sign and word.endswith(".toml"):
            try:
                table = tomllib.loads(Path(word).read_text("utf-8")).get("failures")
            except (OSError, ValueError) as error:
                raise RecordError(f"{word}: cannot be read as TOML: {error}") from error
            if not isinstance(table, dict):
                raise RecordError(f"{word}: no table [failures]; write one with a line such as tool = 'regex'")
            given = table
        elif not sign or not tool or not form:
            raise RecordError(f"--failure {word}: expected tool=regex, or a .toml with a table [failures]")
        for name, own in given.items():
            for one in map(str, own if isinstance(own, list) else [own]):
                try:
                    re.compile(one)
                except re.error as error:
                    raise RecordError(f"--failure {word}: {name}: {one!r} is no regular expression: {error}") from error
                forms.setdefault(name, []).append(f"(?:{one})")
    return {tool: "|".join(own) for tool, own in forms.items()}


def with_named_failures(trajectory: Trajectory, named: Mapping[str, re.Pattern[str]]) -> Trajectory:
    """Mark calls as failed whose output matches the user's form."""
    if not named:
        return trajectory
    turns = []
    for turn in trajectory.turns:
        names = {call.id: call.name for call in turn.calls}
        seen = list(turn.observations)
        for n, one in enumerate(seen):
            form = named.get(names.get(one.call_id, ""), named.get("*"))
            if form is not None and one.status == "ok" and form.search(one.text):
                seen[n] = replace(one, status="error", rule="named")
        turns.append(replace(turn, observations=tuple(seen)))
    return replace(trajectory, turns=tuple(turns))


class _Output:
    """The output of calls: what they run, and what of it they may have written themselves."""

    def __init__(self, calls: Sequence[ToolCall]) -> None:
        self.code = "\n".join([call.code for call in calls if call.malformed or has_program(call)])
        self.calls = calls
        self.runs = not calls or any(map(runs_program, calls))
        self.shows = bool(calls) and all(map(only_shows, calls))

    def judged(self, text: str) -> Verdict | None:
        if text[:1] in ("{", "[") and (report := report_of(text, [c.name for c in self.calls] or None)) is not None:
            self.runs = self.runs or report.ran
            verdict = report.verdict if report.typed or not report.text else self.judged(report.text.strip())
            return self._unless(report.is_own(self.code), verdict)
        if self.runs:
            edges = text[:_EDGE] + text[-_EDGE:]
            for code, line in _exit_codes(text) if any(word in edges for word in _EXITED) else ():
                if not self.writes("exit", "return code", "returncode", line.lower()):
                    failed = exit_verdict(code)
                    worked = is_negative_result(failed, text, self.calls)
                    return failed and (None if worked else self._ended(text) or failed)
                if code:
                    return Verdict("ok", UNCLEAR)
            if any(word in text for word in _REPORTED) and TESTS.search(text[-_EDGE * 4 :]):
                return None
            verdict = self._ended(text) or self._exception(text) or self._form(text)
        else:
            verdict = self._exception(text) or self._form(text)
        left = verdict is not None and verdict.error_type == "SystemExit" and _LEFT.search(text) is not None
        return None if left else verdict

    def writes(self, *words: str) -> bool:
        lower = self.code.lower()
        return bool(lower) and any(word in lower for word in words)

    def _unless(self, own: bool, verdict: Verdict | None) -> Verdict | None:
        return Verdict("ok", UNCLEAR) if own and verdict is not None else verdict

    def _form(self, text: str) -> Verdict | None:
        """Match error forms to the first line, or a program's last."""
        first, _, rest = text.partition("\n")
        lines = [first.strip(), *(_last(rest) if self.runs and not self.shows else ())]
        bares = [line.strip(_BRACKETS) if line[:1] not in _DIGITS and len(line) <= _EDGE else "" for line in lines]
        lowers = [bare.lower() for bare in bares]
        for form in FORMS:
            for at, (bare, lower) in enumerate(zip(bares, lowers, strict=True)):
                if (form.programs and not self.runs) or not any(hint in lower for hint in form.hints):
                    continue
                if not form.pattern.fullmatch(bare):
                    continue
                if at == 0 and not (form.details or self._goes_on(form, bare, rest)):
                    continue
                own = self.writes(*form.own, lower)
                error_type = form.error_type or next(iter(_ERROR_TYPE.findall(text[:4000])), None)
                return self._unless(own, Verdict(form.status, form.rule, error_type, 0 if "(<" in bare else None))
        return None

    def _goes_on(self, form: Form, line: str, rest: str) -> bool:
        """Whether the lines after an error belong to its message."""
        rest = rest.strip("\n")
        lines = [one for one in rest.split("\n") if one.strip()]
        if line.endswith(":") or not lines:
            return "\n\n" not in rest
        if all(DETAIL.match(one) or form.pattern.fullmatch(one.strip()) for one in lines):
            return True
        looks_up = bool(self.calls) and all(map(is_lookup, self.calls))
        return not (self.runs or looks_up) and len(rest) <= _SHORT and not any(map(_LABELLED.fullmatch, lines))

    def _ended(self, text: str) -> Verdict | None:
        """Judge a traceback or compile error that ends the output."""
        return None if self.shows else self._traceback(text) or self._does_not_compile(text)

    def _traceback(self, text: str) -> Verdict | None:
        if (" Traceback" in text or "\tTraceback" in text) and (headings := list(_JUPYTER.finditer(text))):
            rule, named, start = "jupyter", headings[-1]["type"], headings[-1].end()
        elif "Traceback" in text and (_PLAIN.search(text) or _trimmed(text)):
            rule, named = "traceback", None
            start = text.rindex("Traceback (most recent call last)") + len("Traceback (most recent call last)")
        elif (frame := _cut_off(text)) is not None:
            rule, named, start = "frames", None, frame
        else:
            return None
        last = _EXCEPTION.search(text, start)
        if _writes_traceback(self.code) or (last and not named and _goes_on_after(text, last.end())):
            return Verdict("ok", UNCLEAR)
        error_type = named or (last["type"].rpartition(".")[2] if last else None)
        if error_type is not None and error_type.lower().startswith("timeout") and " " in error_type:
            return Verdict("timeout", rule, "Timeout")  # a kernel that no longer answers has no exception of its own
        status: Status = "timeout" if error_type in _TIMEOUTS else "error"
        return Verdict(status, rule, error_type, entry(text))

    def _does_not_compile(self, text: str) -> Verdict | None:
        found = _SYNTAX.search(text) if any(name in text for name in _SYNTAX_ERRORS) else None
        if found is None or _goes_on_after(text, found.end()):
            return None
        return self._unless(found["type"] in self.code, Verdict("error", "syntax", found["type"], 0))

    def _exception(self, text: str) -> Verdict | None:
        """Judge an exception without a traceback: the whole output, or what a program printed last."""
        whole = "\n" not in text
        if found := _REPR.fullmatch(text) if len(text) < 10_000 else None:
            rule = "exception-repr"
        elif whole or (self.runs and not self.shows):
            found = _EXCEPTION.match(text if whole else next(iter(_last(text)), ""))
            rule = "exception-line" if whole else "last-line"
        if found is None or not _named(found["type"]):
            return None
        name = found["type"].rpartition(".")[2]
        if rule == "last-line" and name not in _BUILTIN:
            return None
        own = ("except" in self.code or name in self.code) and (_ENDED not in text or _ENDED in self.code)
        line = 0 if name in _SYNTAX_ERRORS else None
        return self._unless(own, Verdict("timeout" if name in _TIMEOUTS else "error", rule, name, line))


def _writes_traceback(code: str) -> bool:
    """Whether a program may print a traceback by itself."""
    may = "exc" in code or "raceback" in code or "print_tb" in code
    return may and _OWN_TRACEBACK.search(code) is not None


def _exit_codes(text: str) -> Iterator[tuple[int, str]]:
    """Yield exit codes in a harness's lines around an output."""
    lines = text.split("\n", 4)[:4]
    for line in lines:
        if (code := _exit_code(line.strip())) is not None:
            yield code, line
        if not _LABELLED.fullmatch(line):
            break
    for n, line in enumerate(reversed(text[-_EDGE:].split("\n"))):
        if (code := _exit_code(line.strip())) is not None:
            yield code, line
        if n == _AROUND or (line.strip() and not _LABELLED.fullmatch(line)):
            break


def _exit_code(line: str) -> int | None:
    """Return the exit code in a line, if any."""
    found = EXIT.fullmatch(line if line.startswith("<") else line.strip(_BRACKETS)) if len(line) <= _EDGE else None
    return int(found["code"] or found["tagged"]) if found else None


def _goes_on_after(text: str, at: int) -> bool:
    """Whether more lines follow an exception than its message has."""
    return sum(1 for line in text[at:].split("\n")[1:] if line.strip() and not _LABELLED.fullmatch(line)) > _MESSAGE


def _trimmed(text: str) -> bool:
    """Whether a heading without frames precedes the exception."""
    found = _TRIMMED.search(text)
    after = found and _EXCEPTION.search(text, found.end())
    return bool(after and _named(after["type"]))


def _cut_off(text: str) -> int | None:
    """Find where headless frames that end in an exception begin."""
    found = _FRAME.search(text) if "File " in text and "Traceback" not in text else None
    after = found and _EXCEPTION.search(text, found.end())
    return found.end() if found and after and _named(after["type"]) else None


def _named(dotted: str) -> bool:
    """Whether this names an exception: a built-in one, or one of a package by its convention."""
    package, _, name = dotted.rpartition(".")
    return name in _BUILTIN or name in _TIMEOUTS or (bool(package) and name.endswith(("Error", "Exception")))


def _last(text: str) -> Iterator[str]:
    """Yield the last line, without a harness's notes."""
    while text:
        text, _, last = text.rpartition("\n")
        if (last := last.strip()) and not last.startswith(_NOTES):
            yield last
            return
