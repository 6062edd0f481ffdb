"""What a tool's output says about its call, where the transcript has no typed status: parsed, never a word searched.

A live rollout has a status from the tool. A stored transcript often has only what was printed, so that each verdict
here names the rule that it comes from, and what could also be a program's own words is `unclear` rather than judged.
Every wording that a rule is for, and what only looks like one, stands in tests/outputs, with who prints it.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from retcon.core.types import Status
from retcon.transcripts.failures import wordings
from retcon.transcripts.failures.fields import blocks_of, fields_of
from retcon.transcripts.failures.frames import HEADING, entry


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
    "traceback": "a Python traceback: its heading, and a frame or the exception after it",
    "jupyter": "the heading of a Jupyter traceback, which names the exception",
    "frames": "a traceback whose heading was cut off: a frame, then the exception",
    "syntax": "the place and caret of a program that does not compile, then the SyntaxError",
    "exception-line": "the whole output is one line, a built-in exception and its message",
    "last-line": "the last line is a built-in exception and its message, and the program never names it",
    "exception-repr": "the whole output is the repr of a built-in exception",
    "message": "Python's own message of an exception, after a label such as `Error:`",
    "harness": "a sentence of a harness that the call failed",
    "exit-code": "a whole first or last line, or a JSON field, that gives an exit code other than 0",
    "field": "a field of a JSON output that says that the call failed",
    "timeout": "a whole first or last line, or a JSON field, that says that the call ran out of time",
    "killed": "a whole first or last line that says that memory or a signal ended the call",
    "shell": "a shell's line that it cannot run the command",
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
_BRACKETS = "[]()<>*#`=_-~\"' \t❌⚠️.!"
_EDGE = 600
"""Characters of a first or last line beyond which it is no harness's sentence."""

_WORD = 40
"""Characters of a line within which its first word ends, if it is one."""
_START = re.compile(r"[^\w<{]*([\w.]+|<)")
_SECOND = re.compile(r"[ \t]+(\w+)")
_DIGITS = frozenset("0123456789")
_FIRST = frozenset(
    {"error", "exception", "failure", "failed", "stderr", "an", "the", "code", "python", "python3", "cell", "command"}
    | {"script", "program", "process", "tool", "execution", "kernel", "call", "request", "container", "sandbox", "exit"}
    | {"exitcode", "return", "returncode", "exited", "finished", "terminated", "completed", "ended", "died", "with"}
    | {"has", "been", "time", "timed", "timeout", "timelimitexceeded", "killed", "stopped", "interrupted", "aborted"}
    | {"maximum", "max", "cpu", "wall", "tle", "oom", "ran", "out", "memory", "exceeded", "mle", "memorylimitexceeded"}
    | {"bus", "illegal", "floating", "fatal", "dead", "deadkernel", "your", "runtime", "compilation", "compile"}
    | {"bash", "sh", "zsh", "dash", "ksh", "bin", "usr", "jupyter", "current", "now", "nonzero", "non", "exit_code"}
    | {"return_code", "exit_status", "<"}
)
"""How a line of `wordings` begins, or one of _NOTES."""
_HINTS: tuple[str, ...] = (
    "exit",
    "code",
    "time",
    "tle",
    "kill",
    "memory",
    "error",
    "exception",
    "fault",
    "kernel",
    "found",
    "fail",
)
_HINTS += ("limit", "interrupt", "signal", "abort", "such file", "module", "denied", "syntax", "died", "illegal", "mle")
_HINTS += ("directory", "interpreter", "retry", "terminated", "stopped", "output", "oom", "open file")
_EXCEPTIONS = frozenset(name.lower() for name in _BUILTIN | _TIMEOUTS)


def may_fail(output: str) -> bool:
    """Whether a rule could hold for this output: a cheap look, True more often than `judge` finds something.

    Of each wording a character that is rare in outputs is looked for first, as that is many times as fast.
    """
    if "\x1b" in output or ("(" in output and "Traceback (" in output):
        return True
    if ":" in output and "Error: " in output and any(name in output for name in _SYNTAX_ERRORS):
        return True
    if ('"' in output and 'File "' in output) or ("'" in output and "Code execution failed" in output):
        return True
    # The other rules are about whole first and last lines, or whole outputs that are one line or JSON of objects.
    stripped = output.strip()
    first = stripped[:1]
    if first == "{" or stripped.startswith("[{"):
        return True
    end = stripped.find("\n")
    if end < 0:
        return first not in _DIGITS and _suspect(stripped)
    if first not in _DIGITS and _suspect(stripped[:end]):
        return True
    last = stripped.rfind("\n") + 1
    return stripped[last] not in _DIGITS and _suspect(stripped[last:])


def _suspect(line: str) -> bool:
    """Whether a first or last line could be a harness's sentence or an exception: most are told by their first word."""
    token = line.partition(" ")[0]
    kind = _kind(token) if len(token) < _WORD else None
    if kind is None:
        return _suspect_in_full(line)
    # "(<", "sh: " and a fault's name may stand anywhere in a line.
    return kind or "(<" in line or "sh: " in line or "egmentation" in line


@lru_cache(maxsize=8192)
def _kind(token: str) -> bool | None:
    """What the first word of a line says about it; None where the rest of the line has to be looked at as well."""
    if token[:1] in _DIGITS:
        return None
    found = _START.match(token)
    word = found[1].lower() if found else ""
    return None if not word.strip(".") or word in _FIRST else _is_exception(word) or "python" in word


def _is_exception(word: str) -> bool:
    return "rror" in word or "xception" in word or word in _EXCEPTIONS or word.rpartition(".")[2] in _EXCEPTIONS


def _suspect_in_full(line: str) -> bool:
    if line[:1] in _DIGITS:
        return False
    found = _START.match(line)
    if found is None:
        return False
    word = found[1].lower()
    if word in _FIRST:
        if word == "the" and (second := _SECOND.match(line, found.end())) and second[1].lower() not in _FIRST:
            return False
        lower = line[:_EDGE].lower()
        return any(hint in lower for hint in _HINTS)
    return _is_exception(word) or "(<" in line or "sh: " in line or "egmentation" in line or "python" in word


def looks_clean(output: str) -> bool:
    """Whether no rule holds for this output, whatever its program and its tool are."""
    return not may_fail(output) or judge(output) is None


def judge(output: str, code: str = "", tools: Collection[str] | None = None) -> Verdict | None:
    """What the output of a call says about it; None: nothing but success. code: the program of the call, if known.
    tools: the names of what may have given the output; None: of any tool."""
    if not may_fail(output):
        return None
    text = _ANSI.sub("", output)
    stripped = text.strip()
    if (inner := blocks_of(stripped)) is not None:
        return judge(inner, code, tools)
    if stripped[:1] in "{[" and (found := fields_of(stripped, tools)) is not None:
        own = found.own(code)
        if own and not found.wraps:
            return Verdict("ok", UNCLEAR)
        if found.status is not None:
            return Verdict(found.status, found.rule, found.error_type)
        # What ended well may still have words of a failure on the way: only what is said to be an error is judged.
        said = judge(found.text, code, tools) if found.text else None
        return said and _unless(own, said)
    verdict = (
        _traceback(text, code)
        or _does_not_compile(text, code)
        or _smolagents(text, code)
        or _sentence(text, code)
        or _exception_line(text, code)
    )
    left = verdict is not None and verdict.error_type == "SystemExit" and _LEFT.search(text) is not None
    return None if left else verdict


def _traceback(text: str, code: str) -> Verdict | None:
    if "Traceback" in text and (headings := list(_JUPYTER.finditer(text))):
        rule, named, start = "jupyter", headings[-1]["type"], headings[-1].end()
    elif "Traceback" in text and (_PLAIN.search(text) or _trimmed(text)):
        rule, named = "traceback", None
        start = text.rindex("Traceback (most recent call last)") + len("Traceback (most recent call last)")
    elif (frame := _cut_off(text)) is not None:
        rule, named, start = "frames", None, frame
    else:
        return None
    if _OWN_TRACEBACK.search(code):
        return Verdict("ok", UNCLEAR)
    error_type = named or _last_exception(text[start:])
    if error_type is not None and error_type.lower().startswith("timeout") and " " in error_type:
        return Verdict("timeout", rule, "Timeout")  # a kernel that no longer answers has no exception of its own
    status: Status = "timeout" if error_type in _TIMEOUTS else "error"
    return Verdict(status, rule, error_type, entry(text))


def _trimmed(text: str) -> bool:
    """Whether a heading stands on a line of its own, its frames left out, and the exception after it."""
    found = _TRIMMED.search(text)
    after = found and _EXCEPTION.search(text, found.end())
    return bool(after and _named(after["type"]))


def _cut_off(text: str) -> int | None:
    """Where frames begin that end in an exception though no heading is before them; None where there are none."""
    found = _FRAME.search(text) if "File " in text and "Traceback" not in text else None
    after = found and _EXCEPTION.search(text, found.end())
    return found.end() if found and after and _named(after["type"]) else None


def _last_exception(text: str) -> str | None:
    """The type in the first unindented line after the frames; None where that was cut off."""
    found = _EXCEPTION.search(text)
    return found["type"].rpartition(".")[2] if found else None


def _does_not_compile(text: str, code: str) -> Verdict | None:
    found = _SYNTAX.search(text) if any(name in text for name in _SYNTAX_ERRORS) else None
    if found is None:
        return None
    if found["type"] in code:
        return Verdict("ok", UNCLEAR)
    return Verdict("error", "syntax", found["type"], 0)


def _smolagents(text: str, code: str) -> Verdict | None:
    found = wordings.SMOLAGENTS.search(text)
    if found is None:
        return None
    if "execution failed" in code.lower():
        return Verdict("ok", UNCLEAR)
    cause = wordings.SMOLAGENTS_CAUSE.search(text, found.end())
    return Verdict("error", "harness", cause["type"].rpartition(".")[2] if cause else None)


def _sentence(text: str, code: str) -> Verdict | None:
    """What a harness wrote before or after what the program printed."""
    written = code.lower()
    for line in _ends(text):
        if not _suspect(line):
            continue
        bare = line.strip(_BRACKETS)
        exit_code = _exit_code(line, bare)
        if exit_code is not None:
            if exit_code and not _writes(written, "exit", "return code", "returncode", line.lower()):
                return _exited(exit_code)
            if exit_code:
                return Verdict("ok", UNCLEAR)
            continue
        if wordings.TIMEOUT.fullmatch(bare):
            return _unless(_writes(written, "timed out", "timeout", "time out", "time limit", bare.lower()),
                           Verdict("timeout", "timeout", "Timeout"))  # fmt: skip
        if wordings.MEMORY.fullmatch(bare):
            return _unless(_writes(written, "kill", "memory"), Verdict("limit", "killed", "MemoryError"))
        if wordings.CRASH.fullmatch(bare):
            return _unless(_writes(written, "fault", "signal", bare.lower()), Verdict("error", "killed"))
        if wordings.SHELL.fullmatch(bare):
            return _unless(_writes(written, "not found", "permission denied"), Verdict("error", "shell"))
        if wordings.HARNESS.fullmatch(bare):
            return _unless(_writes(written, "except", "error", "fail"), Verdict("error", "harness", _type_in(text)))
        if wordings.MESSAGE.fullmatch(bare) and not _names_exception(bare):
            compiled = "(<" in bare or "syntax" in bare or "indent" in bare
            return _unless(_writes(written, "except", "error:"),
                           Verdict("error", "message", line=0 if compiled else None))  # fmt: skip
    return None


def _names_exception(line: str) -> bool:
    found = _EXCEPTION.match(line)
    return found is not None and found["type"] != "Exception" and _named(found["type"])


def _exit_code(line: str, bare: str) -> int | None:
    """The exit code that a line gives; None where it gives none."""
    found = wordings.EXIT.fullmatch(line if line.startswith("<") else bare)
    if found is None or not (found["tagged"] or wordings.EXIT_REST.fullmatch(found["rest"] or "")):
        return None
    return int(found["code"] or found["tagged"])


def _exited(code: int) -> Verdict:
    """124 is that of `timeout(1)`, 137 what is left of a process that was killed: most often for its memory."""
    status: Status = "timeout" if code == 124 else "limit" if code in (137, -9) else "error"
    return Verdict(status, "exit-code", f"exit {code}")


def _writes(code: str, *words: str) -> bool:
    return bool(code) and any(word in code for word in words)


def _unless(own: bool, verdict: Verdict) -> Verdict:
    return Verdict("ok", UNCLEAR) if own else verdict


def _type_in(text: str) -> str | None:
    return next((name for name in re.findall(r"\b([A-Z]\w*(?:Error|Exception))\b", text[:4000])), None)


def _exception_line(text: str, code: str) -> Verdict | None:
    """An exception without any traceback: the whole output, or what was printed last."""
    stripped = text.strip()
    whole = "\n" not in stripped
    if found := _REPR.fullmatch(stripped) if len(stripped) < 10_000 else None:
        rule = "exception-repr"
    else:
        found = _EXCEPTION.match(stripped if whole else _ends(stripped)[-1])
        rule = "exception-line" if whole else "last-line"
    if found is None or not _named(found["type"]):
        return None
    name = found["type"].rpartition(".")[2]
    if not whole and rule == "last-line" and name not in _BUILTIN:
        return None
    if ("except" in code or name in code) and (_ENDED not in text or _ENDED in code):
        return Verdict("ok", UNCLEAR)
    line = 0 if name in _SYNTAX_ERRORS else None
    return Verdict("timeout" if name in _TIMEOUTS else "error", rule, name, line)


def _named(dotted: str) -> bool:
    """Whether this names an exception: a built-in one, or one of a package by its convention."""
    package, _, name = dotted.rpartition(".")
    return name in _BUILTIN or name in _TIMEOUTS or (bool(package) and name.endswith(("Error", "Exception")))


def _ends(text: str) -> list[str]:
    """First and last lines: what stands at the edge, with what harnesses put around it left out."""
    stripped = text.strip()
    if not stripped:
        return []
    first, _, rest = stripped.partition("\n")
    lines = [first.strip()]
    while rest:
        rest, _, last = rest.rpartition("\n")
        if (last := last.strip()) and not last.startswith(_NOTES):
            lines.append(last)
            break
    return [line for line in lines if len(line) <= _EDGE]
