"""What a tool's output says about its call, where the transcript has no typed status: parsed, never a word searched.

A live rollout has a status from the tool. A stored transcript often has only what was printed, so that each verdict
here names the rule that it comes from, and what could also be a program's own words is `unclear` rather than judged.
"""

from __future__ import annotations

import builtins
import re
from dataclasses import dataclass

import msgspec

from retcon.core.types import Status


@dataclass(frozen=True, slots=True)
class Verdict:
    """status: `ok` where it is `unclear` (neither a failure nor a fix). line: 1-based, where a traceback enters the
    program; None where that is unknown; 0 where nothing of it ran."""

    status: Status
    rule: str
    error_type: str | None = None
    line: int | None = None


RULES = {
    "status": "the format's own field",
    "traceback": "a Python traceback with at least one frame",
    "jupyter": "the heading of a Jupyter traceback, which names the exception",
    "syntax": "the place and caret of a program that does not compile, then the SyntaxError",
    "exception-line": "the whole output is one line, a built-in exception and its message",
    "exit-code": "a whole first or last line, or a JSON field, that gives an exit code other than 0",
    "timeout": "a whole first or last line that says that the call ran out of time",
    "malformed": "the arguments are JSON that cannot be read",
}
UNCLEAR = "own-words"
"""The rule of an output that looks like a failure, of a program that itself writes such text."""

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_HEADING = r"Traceback \(most recent call last\)"
_JUPYTER = re.compile(rf"^(?:-{{20,}}\s+)?(?P<type>[A-Za-z_][\w.]*(?: [a-z]+)*)[ \t]{{2,}}{_HEADING}", re.MULTILINE)
_PLAIN = re.compile(rf"{_HEADING}:?[ \t]*\r?\n\s*(?:File |Cell In|\^|\[|\.\.\.)|^[ \t]*{_HEADING}:?\s*\Z", re.MULTILINE)
_EXCEPTION = re.compile(r"^ ?(?P<type>[A-Za-z_][\w.]*)(?:: |:?[ \t]*$)", re.MULTILINE)
_SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")
_SYNTAX = re.compile(
    r"^\s*(?:File [^\n]*, line \d+|Cell In ?\[\d+\], line \d+)[^\n]*\n"
    r"(?:[^\n]*\n){0,3}?(?P<type>SyntaxError|IndentationError|TabError): ",
    re.MULTILINE,
)
_ENTRY = re.compile(
    r"Cell In ?\[\d+\], line (?P<cell>\d+)"
    r"|<ipython-input[^>]*>[^\n]*\n(?:[^\n]*\n)*?-+> ?(?P<arrow>\d+)"
    r'|File "[^"\n]*", line (?P<file>\d+), in <(?:module|cell line)'
)
_EXIT = re.compile(
    r"\W*(?:(?:command|process|script|program|shell)\s+)?(?:(?:exited|failed|finished|terminated|completed)\s+)?"
    r"(?:with\s+)?(?:non-?zero\s+)?(?:exit|return)[ _-]?(?:code|status|value)?\W{0,4}(?P<code>-?\d+)\W*"
    r"|<(?P<tag>returncode|exit_code)>\s*(?P<tagged>-?\d+)\s*</(?P=tag)>",
    re.IGNORECASE,
)
_EXIT_FIELDS = ("exit_code", "returncode", "return_code", "exit_status", "exitcode")
_TIMEOUT = re.compile(
    r"\W*(?:error:\s*)?(?:the\s+)?(?:(?:code|command|script|program|process|cell|tool|execution|call)\s+)*"
    r"(?:has\s+)?(?:timed\s+out(?:\s+(?:after|waiting)\s[^\n]*)?|timeout\s+(?:after|exceeded|of)\s[^\n]*|timeout!?)\W*",
    re.IGNORECASE,
)
_OWN_TRACEBACK = re.compile(r"print_exc|format_exc|exc_info|excepthook|showtraceback|\.exception\(|Traceback|print_tb")
_BUILTIN = frozenset(
    name for name, item in vars(builtins).items() if isinstance(item, type) and issubclass(item, BaseException)
)
_TIMEOUTS = frozenset({"TimeoutError", "TimeoutExpired", "TimeoutException", "CellTimeoutError"})


def may_fail(output: str) -> bool:
    """Whether a rule could hold for this output: a cheap look, True more often than `judge` finds something.

    A single character is looked for first where a word has a rare one, as that is many times as fast.
    """
    if "\x1b" in output or ("T" in output and "Traceback" in output):
        return True
    if "E" in output and "Error: " in output and any(name in output for name in _SYNTAX_ERRORS):
        return True
    # The other rules are about whole first and last lines, or whole outputs that are one line or one JSON object.
    stripped = output.strip()
    end = stripped.find("\n")
    edges = (stripped if end < 0 else stripped[:end] + stripped[stripped.rfind("\n") :]).lower()
    if "e" in edges and ("exit" in edges or "return" in edges or "imed" in edges or "timeout" in edges):
        return True
    if stripped[:1] == "{" and ("exit" in output or "return" in output):
        return True
    return end < 0 and _EXCEPTION.match(stripped) is not None


def looks_clean(output: str) -> bool:
    """Whether no rule holds for this output, whatever its program is."""
    return not may_fail(output) or judge(output) is None


def judge(output: str, code: str = "") -> Verdict | None:
    """What the output of a call says about it; None: nothing but success. code: the program of the call, if known."""
    if not may_fail(output):
        return None
    text = _ANSI.sub("", output)
    return (
        _traceback(text, code)
        or _does_not_compile(text, code)
        or _exit_code(text, code)
        or _timed_out(text, code)
        or _exception_line(text, code)
    )


def _traceback(text: str, code: str) -> Verdict | None:
    if "Traceback" not in text:
        return None
    headings = list(_JUPYTER.finditer(text))
    if headings:
        rule, named = "jupyter", headings[-1]["type"]
    elif _PLAIN.search(text):
        rule, named = "traceback", None
    else:
        return None
    if _OWN_TRACEBACK.search(code):
        return Verdict("ok", UNCLEAR)
    start = text.rindex("Traceback (most recent call last)") + len("Traceback (most recent call last)")
    error_type = named or _last_exception(text[start:])
    if error_type is not None and error_type.lower().startswith("timeout") and " " in error_type:
        return Verdict("timeout", rule, "Timeout")  # a kernel that no longer answers has no exception of its own
    status: Status = "timeout" if error_type in _TIMEOUTS else "error"
    return Verdict(status, rule, error_type, _entry(text))


def _last_exception(text: str) -> str | None:
    """The type in the first unindented line after the frames; None where that was cut off."""
    found = _EXCEPTION.search(text)
    return found["type"].rpartition(".")[2] if found else None


def _entry(text: str) -> int | None:
    found = _ENTRY.search(text)
    return int(found[found.lastgroup or 0]) if found else None


def _does_not_compile(text: str, code: str) -> Verdict | None:
    found = _SYNTAX.search(text) if any(name in text for name in _SYNTAX_ERRORS) else None
    if found is None:
        return None
    if found["type"] in code:
        return Verdict("ok", UNCLEAR)
    return Verdict("error", "syntax", found["type"], 0)


def _exit_code(text: str, code: str) -> Verdict | None:
    stripped = text.strip()
    if stripped.startswith("{") and stripped.endswith("}"):
        try:
            fields = msgspec.json.decode(stripped.encode("utf-8", "replace"))
        except msgspec.DecodeError:
            fields = {}
        for name in _EXIT_FIELDS:
            if type(value := fields.get(name)) is int:
                return Verdict("error", "exit-code", f"exit {value}") if value else None
    for line in _ends(stripped):
        found = _EXIT.fullmatch(line)
        value = int(found["code"] or found["tagged"]) if found else 0
        if value:
            return Verdict("ok", UNCLEAR) if line in code else Verdict("error", "exit-code", f"exit {value}")
    return None


def _timed_out(text: str, code: str) -> Verdict | None:
    if not any(_TIMEOUT.fullmatch(line) for line in _ends(text.strip())):
        return None
    written = code.lower()
    if "timed out" in written or "timeout" in written:
        return Verdict("ok", UNCLEAR)
    return Verdict("timeout", "timeout", "Timeout")


def _exception_line(text: str, code: str) -> Verdict | None:
    stripped = text.strip()
    found = None if "\n" in stripped else _EXCEPTION.match(stripped)
    if found is None:
        return None
    package, _, name = found["type"].rpartition(".")
    if name not in _BUILTIN and not (package and name.endswith(("Error", "Exception"))):
        return None
    if "except" in code or name in code:
        return Verdict("ok", UNCLEAR)
    line = 0 if name in _SYNTAX_ERRORS else None
    return Verdict("timeout" if name in _TIMEOUTS else "error", "exception-line", name, line)


def _ends(text: str) -> tuple[str, ...]:
    """First and last line of a text that is stripped."""
    return (text.partition("\n")[0].strip(), text.rpartition("\n")[2].strip()) if text else ()
