"""Outcomes that an execution reports of itself: flags and codes, in a tool's message or in a record that it printed."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from retcon.core.programs import FILENAME
from retcon.core.types import Status


class Verdict(NamedTuple):
    """status: `ok` where it is `unclear` (neither a failure nor a fix). line: 1-based, where a traceback enters the
    program; None where that is unknown; 0 where nothing of it ran."""

    status: Status
    rule: str
    error_type: str | None = None
    line: int | None = None


class Report(NamedTuple):
    """What a record reports of the call.

    typed: whether a flag or code decides; verdict: what it decides, None for success. text: what is to be judged as
    text where nothing decides. names: the fields that report it. ran: whether the record is that of a program's run.
    """

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
_ENDED: dict[str, Status] = {
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
"""Fields of a record that is nothing but an error: the error, and what is said about it."""
_NOTHING = frozenset({"", "none", "null", "no error", "no errors", "n/a", "ok"})
_WRAPPED = frozenset({"tool_call_id", "name", "content"})
_LARGEST = 200_000
_CUT = ("Traceback (most recent call last):\\n", "Traceback (most recent call last)\\n")


def exited(code: int, error_type: str | None = None, rule: str = "exit-code") -> Verdict | None:
    """What an exit code says; 124 is that of `timeout(1)`, 137 what is left of a process killed for its memory."""
    if code == 0:
        return None
    status: Status = "timeout" if code == 124 else "limit" if code in (137, -9) else "error"
    return Verdict(status, rule, error_type or f"exit {code}")


def outcome_of(fields: Mapping[str, object], rule: str, error_type: str | None = None) -> tuple[bool, Verdict | None]:
    """Whether the fields of a message or record report an outcome, and the failure if they do.

    An exit code counts before a flag. What a tool reports of its domain (`success`, `status`, counts) is not one.
    """
    for name in EXIT_CODES:
        if type(code := fields.get(name)) is int:
            return True, exited(code, error_type, "exit-code" if rule == "field" else rule)
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
    given it, None for any. A record that was cut in the middle of a traceback counts by that.
    """
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
    """A typed outcome, the innermost first; else a record that is nothing but an error; else what was printed."""
    inside = [part for name in ("run_result", "content") if isinstance(part := record.get(name), dict)]
    beside = record.get("metadata")
    codes = {name: beside[name] for name in EXIT_CODES if name in beside} if isinstance(beside, dict) else {}
    parts: list[Mapping[str, object]] = [*inside, codes, record]
    ran = any(_RUN & part.keys() for part in parts)
    names = tuple(name for part in parts for name in part if name in _RUN or name in _FLAGS or name == "status")
    errors = [v for part in parts for n in _ERRORS if isinstance(v := part.get(n), str) and v.strip()]
    error_type = error_type_of(errors[0]) if errors else None
    ended = [_ENDED.get(str(part.get("process_status", part.get("status"))).lower()) for part in parts if ran]
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
    """The error of a record that has nothing else; None for any other."""
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
    """The exception that an error's last line names."""
    name = error.strip().rpartition("\n")[2].partition(":")[0].strip().rpartition(".")[2]
    return name if name.isidentifier() and name[:1].isupper() else None


def _texts(content: object) -> str:
    """The texts of a list of blocks, each with its type; "" where it is no such list."""
    blocks = [one for one in content if isinstance(one, dict)] if isinstance(content, list) else []
    if not isinstance(content, list) or len(blocks) < len(content) or not all("type" in one for one in blocks):
        return ""
    return "\n".join(one["text"] for one in blocks if one["type"] == "text" and isinstance(one.get("text"), str))


def _decoded(text: str) -> Mapping[str, object] | None:
    """The record that the text is; one that Python printed is read as well."""
    if not text.startswith("{") or not text.endswith("}"):
        return None
    value = _value(text, python="{'")
    return value if isinstance(value, dict) and all(isinstance(k, str) for k in value) else None


def _value(text: str, python: str) -> object:
    """The JSON that the text is; else, where it begins as Python prints it, that. None where it is neither."""
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
    """A record that cannot be read for its end is missing, with a traceback in one of its strings."""
    at = next((text.find(heading) for heading in _CUT if heading in text), -1)
    named = at > 0 and text.startswith("{") and any(f"{q}{name}{q}:" in text[:at] for name in _ERRORS for q in "'\"")
    if not named:
        return None
    return Report(False, text=text[at:].replace("\\n", "\n").replace('\\"', '"'), names=_ERRORS, ran=True)
