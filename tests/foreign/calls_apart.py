"""Formats of model APIs and their loggers: calls are kept apart from the text of messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from foreign.steps import Step


def messages(steps: Sequence[Step]) -> dict[str, Any]:
    out: list[dict[str, Any]] = []
    for n, step in enumerate(steps):
        if step.kind != "call":
            out.append({"role": "user" if step.kind == "user" else "assistant", "content": step.text, "x-n": n})
            continue
        function = {"name": "python", "arguments": json.dumps({"code": step.code})}
        call = {"id": f"c{n}", "type": "function", "function": function}
        out.append({"role": "assistant", "content": step.text, "tool_calls": [call], "x-n": n})
        out.append({"role": "tool", "tool_call_id": f"c{n}", "content": step.output, "x-n": n})
    return {"messages": out, "x-meta": {"kept": [1, None]}}


def inspect(steps: Sequence[Step]) -> dict[str, Any]:
    """A sample of an inspect_ai log: errors are typed."""
    record = messages(steps)
    for message in record["messages"]:
        for call in message.get("tool_calls", ()):
            function = call.pop("function")
            call |= {"function": function["name"], "arguments": json.loads(function["arguments"])}
        if message["role"] == "tool" and "Traceback" in message["content"]:
            message["error"] = {"type": "unknown", "message": "it failed"}
    return {"id": 1, "epoch": 1, "input": "?", "target": "4", **record}


def anthropic(steps: Sequence[Step]) -> dict[str, Any]:
    out: list[dict[str, Any]] = []
    for n, step in enumerate(steps):
        if step.kind != "call":
            out.append({"role": "user" if step.kind == "user" else "assistant", "content": step.text, "x-n": n})
            continue
        use = {"type": "tool_use", "id": f"toolu_{n}", "name": "python", "input": {"code": step.code}}
        out.append({"role": "assistant", "content": [{"type": "text", "text": step.text}, use], "x-n": n})
        result = {
            "type": "tool_result",
            "tool_use_id": f"toolu_{n}",
            "content": [{"type": "text", "text": step.output}],
        }
        out.append({"role": "user", "content": [result], "x-n": n})
    return {"model": "m", "system": "?", "messages": out, "x-meta": {"kept": [1, None]}}


def responses(steps: Sequence[Step]) -> dict[str, Any]:
    out: list[dict[str, Any]] = []
    for n, step in enumerate(steps):
        if step.kind == "user":
            out.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": step.text}]})
            continue
        part = {"type": "output_text", "text": step.text, "annotations": []}
        out.append({"type": "message", "id": f"msg_{n}", "role": "assistant", "status": "completed", "content": [part]})
        if step.kind == "call":
            arguments = json.dumps({"code": step.code})
            call = {"type": "function_call", "id": f"fc_{n}", "call_id": f"c{n}", "name": "python"}
            out.append({**call, "arguments": arguments, "status": "completed"})
            out.append({"type": "function_call_output", "call_id": f"c{n}", "output": step.output})
    return {"input": out, "x-meta": {"kept": [1, None]}}


def nemo_gym(steps: Sequence[Step]) -> dict[str, Any]:
    """A rollout: what was asked stands in the request, the rest in the response; code runs in its own interpreter."""
    out: list[dict[str, Any]] = []
    for n, step in enumerate(steps):
        if step.kind == "call":
            out.append({"type": "reasoning", "id": f"rs_{n}", "summary": [{"type": "summary_text", "text": step.text}]})
            logs = [{"type": "logs", "logs": step.output}]
            out.append({"type": "code_interpreter_call", "id": f"ci_{n}", "code": step.code, "outputs": logs,
                        "status": "completed", "container_id": "cntr"})  # fmt: skip
        else:
            role = "user" if step.kind == "user" else "assistant"
            out.append({"type": "message", "role": role, "content": step.text})
    asked = {"input": [{"role": "user", "content": "solve it"}], "tools": []}
    response = {"id": "resp", "output": out}
    return {"responses_create_params": asked, "response": response, "reward": 1.0, "x-meta": {"k": 1}}


def langchain(steps: Sequence[Step]) -> dict[str, Any]:
    return {"messages": [{"type": m["type"], "data": m} for m in _langchain(steps)], "x-meta": {"kept": [1, None]}}


def langchain_flat(steps: Sequence[Step]) -> dict[str, Any]:
    return {"messages": _langchain(steps), "x-meta": {"kept": [1, None]}}


def langchain_dumpd(steps: Sequence[Step]) -> dict[str, Any]:
    about = {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "BaseMessage"]}
    return {"messages": [{**about, "kwargs": m} for m in _langchain(steps)], "x-meta": {"kept": [1, None]}}


def _langchain(steps: Sequence[Step]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for n, step in enumerate(steps):
        base: dict[str, Any] = {"additional_kwargs": {}, "response_metadata": {}, "name": None, "id": f"m{n}"}
        if step.kind == "user":
            out.append({**base, "content": step.text, "type": "human"})
            continue
        call = {"name": "python", "args": {"code": step.code}, "id": f"c{n}", "type": "tool_call"}
        calls = [call] if step.kind == "call" else []
        out.append({**base, "content": step.text, "type": "ai", "tool_calls": calls, "invalid_tool_calls": []})
        if calls:
            out.append({**base, "content": step.output, "type": "tool", "tool_call_id": f"c{n}", "status": "success"})
    return out


def traces(steps: Sequence[Step]) -> dict[str, Any]:
    """An episode of verifiers' v1 with one agent's trace."""
    nodes: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []

    def add(message: dict[str, Any]) -> None:
        sampled = message["role"] == "assistant"
        parent = {"parent": len(nodes) - 1} if nodes else {}
        tokens = {"token_ids": [1, 2], "mask": [False, sampled], "is_content": [], "logprobs": [-0.5] * sampled}
        nodes.append({**parent, "semantic_parents": [], "message": message, "sampled": sampled, **tokens})
        if sampled:
            calls.append({"node": len(nodes) - 1, "model": "m", "finish_reason": "stop", "time": {"start": 0.0}})

    for n, step in enumerate(steps):
        if step.kind != "call":
            add({"role": "user" if step.kind == "user" else "assistant", "content": step.text, "x-n": n})
            continue
        call = {"id": f"c{n}", "type": "function", "name": "python", "arguments": json.dumps({"code": step.code})}
        add({"role": "assistant", "content": step.text, "tool_calls": [call], "x-n": n})
        add({"role": "tool", "tool_call_id": f"c{n}", "content": step.output, "x-n": n})
    trace = {"version": 1, "id": "t", "agent": {"name": "agent"}, "nodes": nodes, "calls": calls, "ok": True}
    return {"id": "e", "env": {"id": "env"}, "ok": True, "errors": [], "traces": [trace], "x-meta": {"kept": [1, None]}}
