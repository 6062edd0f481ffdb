"""The forms in which harnesses, tools and shells report an error: one table.

Each pattern is matched against a whole line without the brackets around it (`fullmatch`), never searched for in running
text. Who prints which stands beside it, and in tests/outputs, which has an output of each.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from retcon.core.types import Status


class Form(NamedTuple):
    """An error form. hints: what a line has one of, in small letters, that may be of the form.

    own: words by which a program may have written such a line itself. programs: counts for tools that run programs
    alone, whose last line it may be as well. details: whether any lines may follow its line; else these have to be
    indented, or one paragraph after a heading, so that a log that begins with an error is no error.
    """

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
    """A form whose hints and own words are divided by `|`."""
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
