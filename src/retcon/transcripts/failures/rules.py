"""What a tool's output says about its call, where no typed status does: parsed, never a word searched.

In this order: an outcome that the execution reports in its output (a flag, an exit code); else the whole output, if it
is one error form of the table in `forms`, from any tool; else, of tools that run programs only, what ends the output.
What could also be a program's own words is `unclear` rather than judged. Every wording that a rule is for, and what
only looks like one, stands in tests/outputs, with who prints it.
"""

from __future__ import annotations

import builtins
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from retcon.core.errors import RecordError
from retcon.core.types import Observation, Status, ToolCall, Trajectory
from retcon.purify.tools import has_program, is_lookup, only_shows, runs_program
from retcon.transcripts.failures.forms import DETAIL, EXIT, FORMS, TESTS, Form
from retcon.transcripts.failures.frames import HEADING, entry
from retcon.transcripts.failures.outcomes import Verdict, exited, report_of

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
_FIRST = frozenset(
    {"error", "exception", "failure", "failed", "an", "code", "python", "python3", "cell", "command", "script"}
    | {
        "program",
        "process",
        "tool",
        "execution",
        "kernel",
        "call",
        "request",
        "container",
        "sandbox",
        "exit",
        "exitcode",
    }
    | {"return", "returncode", "exited", "finished", "terminated", "completed", "ended", "died", "with", "has", "been"}
    | {"time", "timed", "timeout", "time-out", "killed", "stopped", "interrupted", "aborted", "maximum", "max", "cpu"}
    | {"wall", "tle", "timelimitexceeded", "oom", "oom-killed", "ran", "out", "memory", "exceeded", "mle", "bus"}
    | {"memorylimitexceeded", "segmentation", "illegal", "floating", "fatal", "dead", "deadkernel", "your", "runtime"}
    | {"compilation", "compile", "no", "string", "file", "invalid", "patch", "unknown", "npm", "nonzero", "non-zero"}
)
_LABELS = frozenset(
    {"a", "mcp", "api", "http", "sql", "db", "database", "syntax", "parse", "type", "value", "validation", "internal"}
    | {"server", "client", "network", "connection", "input", "argument", "parameter", "unexpected", "critical"}
    | {"system", "operational", "programming", "permission", "uncaught", "unhandled", "verification"}
)
"""How a line of `forms` begins, if not with one word and a colon; those of `_LABELS` have a colon further on."""
_REPORTED = ("passed", "failed", "Failed", "FAIL", "passing", "failing", "Failures", "Assertions", "total")
"""Words of a test runner's report."""
_EXITED = ("exit", "return", "Exit", "Return", "EXIT")


def may_fail(output: str) -> bool:
    """Whether a rule could hold for this output: a cheap look, True more often than `judge` finds something.

    Of each wording a character that is rare in outputs is looked for first, as that is many times as fast.
    """
    if "\x1b" in output or ("(" in output and "Traceback (" in output):
        return True
    if ":" in output and "Error: " in output and any(name in output for name in _SYNTAX_ERRORS):
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
    if ":" not in stripped:
        return False
    edges = stripped[:_EDGE] + stripped[-_EDGE:]
    return any(word in edges for word in _EXITED)


def _has_hint(line: str) -> bool:
    """Whether a line may be of a form, or an exception: most are not by their first word."""
    bare = line[:_EDGE].lstrip(_BRACKETS).removeprefix("The ").removeprefix("the ")
    kind = _kind_of(bare.partition(" ")[0], ":" in bare)
    if kind is None:
        return "(<" in bare or "egmentation" in bare or "erification failed" in bare
    lower = bare.lower()
    return kind or any(hint in lower for hint in _HINTS)


@lru_cache(maxsize=8192)
def _kind_of(word: str, colon: bool) -> bool | None:
    """Whether the first word of a line is an exception; None where no form begins with it. colon: whether the line has
    one."""
    if word[:1] == "<":
        return True
    plain = word.partition("(")[0].rstrip(_BRACKETS + ":").lower()
    if "rror" in plain or "xception" in plain or plain in _EXCEPTIONS:
        return True
    return False if ":" in word or plain in _FIRST or (colon and plain in _LABELS) else None


def looks_clean(output: str) -> bool:
    """Whether no rule holds for this output, whatever its call is."""
    return not may_fail(output) or judge(output) is None


def judge(output: str, calls: Sequence[ToolCall] = ()) -> Verdict | None:
    """What the output of a call says about it; None: nothing but success. calls: what may have given the output; none:
    any tool."""
    if not may_fail(output):
        return None
    return _Output(calls).judged(_ANSI.sub("", output).strip())


def works_by_report(verdict: Verdict | None, text: str) -> bool:
    """Whether what failed is the tests that a runner reports, which has worked: it ends with 1, and its report."""
    if verdict is None or verdict.status != "error" or verdict.rule not in ("status", "exit-code"):
        return False
    code = next((code for code, _ in _exit_codes(text)), 1)
    return verdict.error_type in (None, "exit 1", text) and code == 1 and TESTS.search(text[-_EDGE * 4 :]) is not None


def read_named_failures(words: Sequence[str]) -> dict[str, str]:
    """Read the forms of failures that a user names: `tool=regex`, or a TOML file with a table `failures`.

    Raises RecordError for what is neither, and for what is no regular expression.
    """
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
    """The trajectory with those calls failed whose output has the form that the user named for their tool."""
    if not named:
        return trajectory
    turns = []
    for turn in trajectory.turns:
        names = {call.id: call.name for call in turn.calls}
        seen = tuple(_named_failure(o, named.get(names.get(o.call_id, ""), named.get("*"))) for o in turn.observations)
        turns.append(replace(turn, observations=seen) if seen != turn.observations else turn)
    return replace(trajectory, turns=tuple(turns))


def _named_failure(observation: Observation, form: re.Pattern[str] | None) -> Observation:
    if form is None or observation.status != "ok" or not form.search(observation.text):
        return observation
    return replace(observation, status="error", rule="named")


class _Output:
    """The output of calls: what they run, and what of it they may have written themselves."""

    def __init__(self, calls: Sequence[ToolCall]) -> None:
        self.code = "\n".join(call.code for call in calls if call.malformed or has_program(call))
        self.lower = self.code.lower()
        self.names = [call.name for call in calls] or None
        self.runs = not calls or any(map(runs_program, calls))
        self.shows = bool(calls) and all(map(only_shows, calls))
        self.looks_up = bool(calls) and all(map(is_lookup, calls))

    def judged(self, text: str) -> Verdict | None:
        if text[:1] in ("{", "[") and (report := report_of(text, self.names)) is not None:
            self.runs = self.runs or report.ran
            verdict = report.verdict if report.typed or not report.text else self.judged(report.text.strip())
            return self._unless(report.is_own(self.code), verdict)
        if self.runs:
            edges = text[:_EDGE] + text[-_EDGE:]
            for code, line in _exit_codes(text) if any(word in edges for word in _EXITED) else ():
                if not self.writes("exit", "return code", "returncode", line.lower()):
                    failed = exited(code)
                    worked = works_by_report(failed, text)
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
        return bool(self.lower) and any(word in self.lower for word in words)

    def _unless(self, own: bool, verdict: Verdict | None) -> Verdict | None:
        return Verdict("ok", UNCLEAR) if own and verdict is not None else verdict

    def _form(self, text: str) -> Verdict | None:
        """The first form that the first line has, or of programs the last one."""
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
                error_type = form.error_type or _type_in(text)
                return self._unless(own, Verdict(form.status, form.rule, error_type, 0 if "(<" in bare else None))
        return None

    def _goes_on(self, form: Form, line: str, rest: str) -> bool:
        """Whether what follows the line of an error goes on with its message, so that the whole output is the error."""
        rest = rest.strip("\n")
        lines = [one for one in rest.split("\n") if one.strip()]
        if line.endswith(":") or not lines:
            return "\n\n" not in rest
        if all(DETAIL.match(one) or form.pattern.fullmatch(one.strip()) for one in lines):
            return True
        return not (self.runs or self.looks_up) and len(rest) <= _SHORT and not any(map(_LABELLED.fullmatch, lines))

    def _ended(self, text: str) -> Verdict | None:
        """The traceback, or the error of a program that does not compile, that ends the output."""
        return None if self.shows else self._traceback(text) or self._does_not_compile(text)

    def _traceback(self, text: str) -> Verdict | None:
        if "Traceback" in text and (headings := list(_JUPYTER.finditer(text))):
            rule, named, start = "jupyter", headings[-1]["type"], headings[-1].end()
        elif "Traceback" in text and (_PLAIN.search(text) or _trimmed(text)):
            rule, named = "traceback", None
            start = text.rindex("Traceback (most recent call last)") + len("Traceback (most recent call last)")
        elif (frame := _cut_off(text)) is not None:
            rule, named, start = "frames", None, frame
        else:
            return None
        last = _EXCEPTION.search(text, start)
        if _OWN_TRACEBACK.search(self.code) or (last and not named and _goes_on_after(text, last.end())):
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
        """An exception without any traceback: the whole output, or what a program printed last."""
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


def _exit_codes(text: str) -> Iterator[tuple[int, str]]:
    """The exit codes that stand in what a harness put before or after an output, each with its line."""
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
    """The exit code that a line gives; None where it gives none."""
    found = EXIT.fullmatch(line if line.startswith("<") else line.strip(_BRACKETS)) if len(line) <= _EDGE else None
    return int(found["code"] or found["tagged"]) if found else None


def _goes_on_after(text: str, at: int) -> bool:
    """Whether more follows an exception than its message may have lines for, and what a harness puts after it."""
    return sum(1 for line in text[at:].split("\n")[1:] if line.strip() and not _LABELLED.fullmatch(line)) > _MESSAGE


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


def _type_in(text: str) -> str | None:
    return next((name for name in re.findall(r"\b([A-Z]\w*(?:Error|Exception))\b", text[:4000])), None)


def _named(dotted: str) -> bool:
    """Whether this names an exception: a built-in one, or one of a package by its convention."""
    package, _, name = dotted.rpartition(".")
    return name in _BUILTIN or name in _TIMEOUTS or (bool(package) and name.endswith(("Error", "Exception")))


def _last(text: str) -> Iterator[str]:
    """The last line, without what harnesses put after it; nothing where there is none."""
    while text:
        text, _, last = text.rpartition("\n")
        if (last := last.strip()) and not last.startswith(_NOTES):
            yield last
            return
