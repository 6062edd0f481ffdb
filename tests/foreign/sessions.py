"""Sessions of agents, as they stand in a file of their own, one event a line; here, in one list."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from foreign.steps import Step


def claude_code(steps: Sequence[Step]) -> dict[str, Any]:
    """A message of words and a call stands on two lines; a change of mode between the result and what follows."""
    out: list[dict[str, Any]] = [{"type": "mode", "mode": "default", "sessionId": "s"}]

    def add(role: str, content: Any, **beside: Any) -> None:
        parent = next((line["uuid"] for line in reversed(out) if "uuid" in line), None)
        about = {"parentUuid": parent, "isSidechain": False, "userType": "external", "sessionId": "s", "type": role}
        message = {"role": role, "content": content, **({"id": beside.pop("id")} if "id" in beside else {})}
        out.append({**about, "message": message, "uuid": f"u{len(out)}", **beside})

    for n, step in enumerate(steps):
        if step.kind == "user":
            add("user", step.text)
            continue
        add("assistant", [{"type": "text", "text": step.text}], id=f"msg_{n}", requestId=f"req_{n}")
        if step.kind == "call":
            use = {"type": "tool_use", "id": f"toolu_{n}", "name": "mcp__python__run", "input": {"code": step.code}}
            add("assistant", [use], id=f"msg_{n}", requestId=f"req_{n}")
            result = {"type": "tool_result", "tool_use_id": f"toolu_{n}", "content": step.output}
            failed = {"is_error": True} if "Traceback" in step.output else {}
            add("user", [{**result, **failed}], toolUseResult=step.output)
            out.append({"type": "mode", "mode": "default", "sessionId": "s"})
    return {"lines": out, "x-meta": {"kept": [1, None]}}


def codex(steps: Sequence[Step]) -> dict[str, Any]:
    """What is said beside a call is repeated in an event."""
    out: list[dict[str, Any]] = [
        {
            "timestamp": "t",
            "type": "session_meta",
            "payload": {"id": "s", "cli_version": "0.65.0", "instructions": None},
        }
    ]

    def add(kind: str, payload: dict[str, Any]) -> None:
        out.append({"timestamp": f"t{len(out)}", "type": kind, "payload": payload})

    for n, step in enumerate(steps):
        if step.kind == "user":
            part = {"type": "input_text", "text": step.text}
            add("response_item", {"type": "message", "role": "user", "content": [part]})
            continue
        if step.kind == "call":
            add("turn_context", {"cwd": "/", "model": "m"})
            add("event_msg", {"type": "agent_message", "message": step.text})
        part = {"type": "output_text", "text": step.text}
        add("response_item", {"type": "message", "role": "assistant", "content": [part]})
        if step.kind == "call":
            arguments = json.dumps({"code": step.code})
            call = {"type": "function_call", "name": "python", "arguments": arguments, "call_id": f"c{n}"}
            add("response_item", call)
            add("response_item", {"type": "function_call_output", "call_id": f"c{n}", "output": step.output})
            add("event_msg", {"type": "token_count", "info": None})
    return {"lines": out, "x-meta": {"kept": [1, None]}}
