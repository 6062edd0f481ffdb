"""Formats whose messages have typed blocks, with a call in one and what it gave in another; and ATIF's steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreign.steps import Step


def gemini(steps: Sequence[Step]) -> dict[str, Any]:
    """As the API has it; functions are answered in order."""
    out: list[dict[str, Any]] = []
    for step in steps:
        text = {"text": step.text}
        if step.kind != "call":
            out.append({"role": "user" if step.kind == "user" else "model", "parts": [text]})
            continue
        out.append(
            {"role": "model", "parts": [text, {"functionCall": {"name": "python", "args": {"code": step.code}}}]}
        )
        answer = {"name": "python", "response": {"result": step.output}}
        out.append({"role": "function", "parts": [{"functionResponse": answer}]})
    return {"contents": out, "x-meta": {"kept": [1, None]}}


def adk(steps: Sequence[Step]) -> dict[str, Any]:
    """A session whose agent's programs are run; after each, an event that is nobody's word."""
    out: list[dict[str, Any]] = []

    def add(author: str, role: str, *parts: dict[str, Any]) -> None:
        content = {"content": {"parts": list(parts), "role": role}} if parts else {}
        out.append({**content, "author": author, "id": f"e{len(out)}", "actions": {"stateDelta": {}}})

    for step in steps:
        if step.kind == "user":
            add("user", "user", {"text": step.text})
        elif step.kind == "answer":
            add("solver", "model", {"text": step.text})
        else:
            add("solver", "model", {"text": step.text}, {"executableCode": {"code": step.code, "language": "PYTHON"}})
            outcome = "OUTCOME_FAILED" if "Traceback" in step.output else "OUTCOME_OK"
            add("solver", "model", {"codeExecutionResult": {"outcome": outcome, "output": step.output}})
            add("solver", "")
    about = {"id": "s", "appName": "app", "userId": "u", "state": {}, "lastUpdateTime": 1.5}
    return {**about, "events": out, "x-meta": {"kept": [1, None]}}


def bedrock(steps: Sequence[Step]) -> dict[str, Any]:
    out: list[dict[str, Any]] = []
    for n, step in enumerate(steps):
        text = {"text": step.text}
        if step.kind != "call":
            out.append({"role": "user" if step.kind == "user" else "assistant", "content": [text]})
            continue
        use = {"toolUseId": f"t{n}", "name": "python", "input": {"code": step.code}}
        out.append({"role": "assistant", "content": [text, {"toolUse": use}]})
        result = {"toolUseId": f"t{n}", "content": [{"text": step.output}], "status": "success"}
        out.append({"role": "user", "content": [{"toolResult": result}]})
    return {"modelId": "m", "messages": out, "x-meta": {"kept": [1, None]}}


def pydantic_ai(steps: Sequence[Step]) -> dict[str, Any]:
    """A tool that asks for another try where its program fails."""
    out: list[dict[str, Any]] = []
    for n, step in enumerate(steps):
        if step.kind == "user":
            out.append({"kind": "request", "parts": [{"part_kind": "user-prompt", "content": step.text}]})
            continue
        parts: list[dict[str, Any]] = [{"part_kind": "text", "content": step.text, "id": None}]
        out.append({"kind": "response", "parts": parts, "model_name": "m"})
        if step.kind == "call":
            about = {"tool_name": "python", "tool_call_id": f"c{n}"}
            parts.append({"part_kind": "tool-call", "args": {"code": step.code}, **about})
            kind = "retry-prompt" if "Traceback" in step.output else "tool-return"
            out.append({"kind": "request", "parts": [{"part_kind": kind, "content": step.output, **about}]})
    return {"messages": out, "x-meta": {"kept": [1, None]}}


def atif(steps: Sequence[Step]) -> dict[str, Any]:
    out: list[dict[str, Any]] = []
    for n, step in enumerate(steps, 1):
        own: dict[str, Any] = {"step_id": n, "source": "user" if step.kind == "user" else "agent", "message": step.text}
        if step.kind == "call":
            call = {"tool_call_id": f"c{n}", "function_name": "python", "arguments": {"code": step.code}}
            result = {"source_call_id": f"c{n}", "content": step.output}
            own |= {"tool_calls": [call], "observation": {"results": [result]}, "metrics": {"prompt_tokens": n}}
        out.append(own)
    about = {"schema_version": "ATIF-v1.6", "session_id": "s", "agent": {"name": "a", "version": "1"}}
    return {**about, "steps": out, "x-meta": {"kept": [1, None]}}
