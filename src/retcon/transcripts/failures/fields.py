"""Outputs that are a record of the execution themselves: JSON, or a Python dict, with exit code, stderr, success."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec

from retcon.core.programs import FILENAME
from retcon.core.types import Status

_EXIT = ("exit_code", "returncode", "return_code", "exit_status", "exitcode", "exitCode", "returnCode")
_SUCCESS = ("success", "run_success", "is_success", "succeeded", "ok")
_FAILED = ("is_error", "isError", "failed", "timed_out", "timeout")
_ERRORS = ("traceback", "stderr", "error", "exception", "error_message", "errors")
_OUTPUTS = frozenset({"stdout", "stderr", "output", "result", "run_result", "traceback", "logs", "reason", *_EXIT})
_STATUSES: dict[str, tuple[Status, str]] = {
    "error": ("error", "field"), "failed": ("error", "field"), "failure": ("error", "field"),
    "runtimeerror": ("error", "field"), "runtime_error": ("error", "field"), "compile_error": ("error", "field"),
    "timeout": ("timeout", "timeout"), "timelimitexceeded": ("timeout", "timeout"), "timed_out": ("timeout", "timeout"),
    "memorylimitexceeded": ("limit", "killed"), "oom": ("limit", "killed"), "killed": ("limit", "killed"),
}  # fmt: skip
_PROCESS = "process_status"
_ENDED: dict[str, tuple[Status, str]] = {
    "timeout": ("timeout", "timeout"), "fail": ("error", "field"), "failed": ("error", "field"),
}  # fmt: skip
_PRINTED = ("output", "result", "stdout")
"""Where a record has what was printed; nothing else in it may mean that it only wraps this."""
_WRAPPED = frozenset({"tool_call_id", "name", "content"})
_LARGEST = 200_000
_CUT = ("Traceback (most recent call last):\\n", "Traceback (most recent call last)\\n")


@dataclass(frozen=True, slots=True)
class Fields:
    """What a record says. status: None where no field does; text: then what it gives as error, "" for nothing.
    names: the fields that say it. wraps: whether they say nothing but the text."""

    status: Status | None
    rule: str
    error_type: str | None
    text: str
    names: tuple[str, ...]
    wraps: bool = False

    def own(self, code: str) -> bool:
        """Whether the program may have made this record itself: it has one of the names as a string."""
        return any(f"{quote}{name}{quote}" in code for name in self.names for quote in "'\"")


def fields_of(text: str, tools: Collection[str] | None = None) -> Fields | None:
    """What the output says as a record; None where it is none, and is to be read as text. tools: see `judge`.

    SandboxFusion (`status`, `run_result` with `return_code`), code-judge (`success`, `run_success`), shells behind an
    API (`exit_code`, `stderr`; Codex has it under `metadata`), NeMo-Gym's tools (`process_status`). What only wraps an
    output, alone or with the name of its tool (Hermes), counts by that; one with another name, and no id of a call, is
    data. A record that was cut in the middle of a traceback counts by that.
    """
    record = _decoded(text)
    if record is None:
        return _cut_in_traceback(text)
    content = record.get("content")
    if "name" not in record or "content" not in record or not record.keys() <= _WRAPPED:
        return _of_record(record)
    if tools is not None and "tool_call_id" not in record and record["name"] not in tools:
        return None
    if isinstance(content, dict):
        return _of_record(content)
    said = content if isinstance(content, str) else _texts(content)
    return Fields(None, "", None, said, ()) if said else None


def _of_record(record: Mapping[str, object]) -> Fields | None:
    filled = [name for name, value in record.items() if value not in (None, "", [], {})]
    if len(filled) == 1 and filled[0] in _PRINTED and isinstance(printed := record[filled[0]], str):
        return Fields(None, "", None, printed, (filled[0],), wraps=True)
    inside, beside = _inside(record), _beside(record)
    parts = [record, *inside, *beside]
    why = _says_why(record) or next((said for part in inside if (said := _says_why(part))), "")
    process = record.get(_PROCESS)
    if not why and not isinstance(process, str) and not any(_OUTPUTS & part.keys() for part in parts):
        return None
    telling = {*_EXIT, *_SUCCESS, *_FAILED, *_ERRORS, "status", _PROCESS}
    names = tuple(name for part in parts for name in part if name in telling)
    errors = [v for part in reversed(parts) for n in _ERRORS if isinstance(v := part.get(n), str) and v.strip()]
    error = errors[0] if errors else why
    if isinstance(process, str) and process.lower() in _ENDED:
        return Fields(*_ENDED[process.lower()], _error_type(error), "", names)
    if isinstance(process, str) and process.lower() == "error":  # which is said of mere warnings too
        printed = [text for name in ("stdout", "stderr") if isinstance(text := record.get(name), str)]
        return Fields(None, "", None, "\n".join(printed), names)
    outside = {name: value for name, value in record.items() if name != "status"}  # of which the parts inside say more
    for part in [*reversed(inside), *([outside] if inside else []), record, *beside]:
        status = part.get("status")
        if isinstance(status, str) and status.lower() in _STATUSES:
            return Fields(*_STATUSES[status.lower()], _error_type(error), "", names)
        for name in _EXIT:
            if type(code := part.get(name)) is int and code:
                kind: Status = "timeout" if code == 124 else "limit" if code in (137, -9) else "error"
                return Fields(kind, "exit-code", _error_type(error) or f"exit {code}", "", names)
        if any(part.get(name) is False for name in _SUCCESS):
            late = any("timeout" in str(v).lower() for n, v in part.items() if n == "reason")
            return Fields("timeout" if late else "error", "field", _error_type(error), "", names)
        if any(part.get(name) is True for name in _FAILED):
            late = part.get("timed_out") is True or part.get("timeout") is True
            return Fields("timeout" if late else "error", "field", _error_type(error), "", names)
    codes = any(type(part.get(name)) is int for part in parts for name in _EXIT)
    told = codes or any(type(part.get(name)) is bool for part in parts for name in _SUCCESS)
    return Fields(None, "", None, "" if told else error, names)


def _inside(record: Mapping[str, object]) -> list[Mapping[str, object]]:
    """The parts of a record that say how the call went: the result of a run, and the content where it is such a record
    itself."""
    run, content = record.get("run_result"), record.get("content")
    parts: list[Mapping[str, object]] = [run] if isinstance(run, dict) else []
    if isinstance(content, dict) and (_OUTPUTS & content.keys() or _says_why(content)):
        parts.append(content)
    return parts


def _beside(record: Mapping[str, object]) -> list[Mapping[str, object]]:
    """The exit code among what is said beside the output: it counts where the record itself names no failure."""
    beside = record.get("metadata")
    if not isinstance(beside, dict):
        return []
    return [{name: code} for name in _EXIT if type(code := beside.get(name)) is int]


def _says_why(record: Mapping[str, object]) -> str:
    """What a record says of its failure, beside a status by which it is one; "" where it does not say both."""
    status = record.get("status")
    errors = [value for name in _ERRORS if isinstance(value := record.get(name), str) and value.strip()]
    if isinstance(status, str) and status.lower() in _STATUSES:
        message = record.get("message")
        return next(iter([*errors, *([message] if isinstance(message, str) else [])]), "")
    if any(record.get(name) is False for name in _SUCCESS) or any(record.get(name) is True for name in _FAILED):
        return next(iter(errors), "") or _texts(record.get("content"))
    return ""


def blocks_of(text: str) -> str | None:
    """What an output says that is a list of blocks, as MCP's clients print the content of a result; None where it is
    none."""
    if not text.startswith("[{") or not text.endswith("}]"):
        return None
    return _texts(_value(text, python="[{'")) or None


def _texts(content: object) -> str:
    """The texts of a list of blocks, each with its type; "" where it is none."""
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


def _cut_in_traceback(text: str) -> Fields | None:
    """A record that cannot be read for its end is missing, with a traceback in one of its strings."""
    at = next((text.find(heading) for heading in _CUT if heading in text), -1)
    named = at > 0 and any(f"{q}{name}{q}:" in text[:at] for name in _ERRORS for q in "'\"")
    if not named:
        return None
    plain = text[at:].replace("\\n", "\n").replace('\\"', '"')
    return Fields(None, "", None, plain, _ERRORS)


def _error_type(error: str) -> str | None:
    """The exception that an error's last line names."""
    name = error.strip().rpartition("\n")[2].partition(":")[0].strip().rpartition(".")[2]
    return name if name.isidentifier() and name[:1].isupper() else None
