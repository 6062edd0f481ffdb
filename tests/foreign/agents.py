"""Formats of agents: steps and events, and our own trajectories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from foreign.steps import Step
from retcon.core.codec import to_dict
from retcon.core.types import Observation, Segment, ToolCall, Trajectory, Turn


def smolagents(steps: Sequence[Step]) -> dict[str, Any]:
    out: list[dict[str, Any]] = [{"task": "solve it", "task_images": None}]
    for n, step in enumerate(steps):
        if step.kind == "user":
            out.append({"task": step.text, "task_images": None})
            continue
        own: dict[str, Any] = {"step_number": n, "timing": {"duration": 0.1}, "tool_calls": None, "error": None}
        own |= {"model_input_messages": [{"role": "user", "content": f"all before step {n}"}] if n else None}
        if step.kind == "answer":
            out.append({**own, "model_output": step.text, "code_action": None, "observations": None})
            continue
        text = f"{step.text}\n<code>\n{step.code}\n</code>"
        failed = "Traceback" in step.output
        message = f"Code execution failed at line 'x' due to: {step.output}"
        own["tool_calls"] = [{"id": f"call_{n}", "type": "function",
                              "function": {"name": "python_interpreter", "arguments": step.code}}]  # fmt: skip
        own["error"] = {"type": "AgentExecutionError", "message": message} if failed else None
        own |= {"model_output_message": {"role": "assistant", "content": text}, "model_output": text}
        seen = None if failed else f"Execution logs:\n{step.output}\nLast output from code snippet:\nNone"
        out.append({**own, "code_action": step.code, "observations": seen, "is_final_answer": False})
    return {"steps": out, "x-meta": {"kept": [1, None]}}


def swe_agent(steps: Sequence[Step]) -> dict[str, Any]:
    """The shell runs Python, as its effects are told from the program."""
    trajectory: list[dict[str, Any]] = []
    history: list[dict[str, Any]] = [{"role": "system", "content": "?", "agent": "main"}]
    for n, step in enumerate(steps):
        if step.kind == "user":
            continue
        action = step.code if step.kind == "call" else ""
        response = f"{step.text}\n```\n{action}\n```" if action else step.text
        query = [{"role": "user", "content": f"all before step {n}"}]
        trajectory.append({"action": action, "observation": step.output, "response": response, "thought": step.text,
                           "execution_time": 0.1, "state": {}, "query": query})  # fmt: skip
        said = {"role": "assistant", "content": response, "thought": step.text, "action": action, "agent": "main"}
        history += [{**said, "message_type": "action"}]
        history += [{"role": "user", "content": step.output, "agent": "main", "message_type": "observation"}]
    about = {"environment": "e", "info": {"exit_status": "submitted"}, "x-meta": {"k": 1}}
    return {"trajectory": trajectory, "history": history, **about}


def openhands(steps: Sequence[Step]) -> dict[str, Any]:
    out: list[dict[str, Any]] = []
    for n, step in enumerate(steps):
        base = {"id": 2 * n, "timestamp": "2026-01-01T00:00:00", "message": "…"}
        if step.kind != "call":
            source = "user" if step.kind == "user" else "agent"
            out.append({**base, "source": source, "action": "message", "args": {"content": step.text}})
            continue
        args = {"code": step.code, "thought": step.text, "include_extra": True}
        out.append({**base, "source": "agent", "action": "run_ipython", "args": args})
        out.append({**base, "id": 2 * n + 1, "source": "agent", "cause": 2 * n, "observation": "run_ipython",
                    "content": step.output, "extras": {"code": step.code}, "success": True})  # fmt: skip
    return {"instance_id": "i", "history": out, "x-meta": {"kept": [1, None]}}


def openhands_sdk(steps: Sequence[Step]) -> dict[str, Any]:
    out: list[dict[str, Any]] = []
    for n, step in enumerate(steps):
        base = {"id": f"e{n}", "timestamp": "2026-01-01T00:00:00"}
        if step.kind != "call":
            user = step.kind == "user"
            message = {"role": "user" if user else "assistant", "content": [{"type": "text", "text": step.text}]}
            source = "user" if user else "agent"
            out.append({**base, "kind": "MessageEvent", "source": source, "llm_message": message})
            continue
        call = {"id": f"c{n}", "name": "ipython", "arguments": json.dumps({"code": step.code})}
        out.append({**base, "kind": "ActionEvent", "source": "agent", "thought": [{"type": "text", "text": step.text}],
                    "action": {"kind": "IPythonAction", "code": step.code}, "tool_name": "ipython",
                    "tool_call_id": f"c{n}", "tool_call": call, "llm_response_id": f"r{n}"})  # fmt: skip
        seen = {"kind": "IPythonObservation", "content": [{"type": "text", "text": step.output}], "is_error": False}
        out.append({**base, "kind": "ObservationEvent", "source": "environment", "tool_name": "ipython",
                    "tool_call_id": f"c{n}", "observation": seen, "action_id": f"e{n}"})  # fmt: skip
    return {"history": out, "x-meta": {"kept": [1, None]}}


def autogen(steps: Sequence[Step]) -> dict[str, Any]:
    out: list[dict[str, Any]] = []
    for n, step in enumerate(steps):
        base = {"id": f"m{n}", "models_usage": None, "metadata": {}, "source": "solver"}
        if step.kind != "call":
            source = "user" if step.kind == "user" else "solver"
            out.append({**base, "source": source, "content": step.text, "type": "TextMessage"})
            continue
        call = {"id": f"c{n}", "arguments": json.dumps({"code": step.code}), "name": "python"}
        out.append({**base, "content": step.text, "type": "ThoughtEvent"})
        out.append({**base, "content": [call], "type": "ToolCallRequestEvent"})
        failed = "Traceback" in step.output
        result = {"content": step.output, "name": "python", "call_id": f"c{n}", "is_error": failed}
        out.append({**base, "content": [result], "type": "ToolCallExecutionEvent"})
        out.append({**base, "content": "as above", "type": "ToolCallSummaryMessage"})
    return {"messages": out, "stop_reason": None, "x-meta": {"kept": [1, None]}}


def autogen_code(steps: Sequence[Step]) -> dict[str, Any]:
    out: list[dict[str, Any]] = []
    for n, step in enumerate(steps):
        base = {"id": f"m{n}", "models_usage": None, "metadata": {}, "source": "coder"}
        if step.kind != "call":
            source = "user" if step.kind == "user" else "coder"
            out.append({**base, "source": source, "content": step.text, "type": "TextMessage"})
            continue
        content = f"{step.text}\n```python\n{step.code}\n```"
        out.append({**base, "retry_attempt": 0, "content": content, "type": "CodeGenerationEvent",
                    "code_blocks": [{"code": step.code, "language": "python"}]})  # fmt: skip
        result = {"exit_code": int("Traceback" in step.output), "output": step.output}
        out.append({**base, "retry_attempt": 0, "result": result, "type": "CodeExecutionEvent"})
    return {"messages": out, "stop_reason": None, "x-meta": {"kept": [1, None]}}


def autogen_chat(steps: Sequence[Step]) -> dict[str, Any]:
    """Version 0.2, as the proxy of the user has it: its own messages are the assistant's."""
    out: list[dict[str, Any]] = []
    for n, step in enumerate(steps):
        if step.kind != "call":
            user = step.kind == "user"
            name = "user_proxy" if user else "coder"
            out.append({"content": step.text, "role": "assistant" if user else "user", "name": name, "x-n": n})
            continue
        out.append({"content": f"{step.text}\n```python\n{step.code}\n```", "role": "user", "name": "coder"})
        words = "1 (execution failed)" if "Traceback" in step.output else "0 (execution succeeded)"
        content = f"exitcode: {words}\nCode output: \n{step.output}"
        out.append({"content": content, "role": "assistant", "name": "user_proxy"})
    return {"chat_history": out, "x-meta": {"kept": [1, None]}}


def ours(steps: Sequence[Step]) -> dict[str, Any]:
    turns: list[Turn] = []
    prompt: list[Segment] = []
    for n, step in enumerate(steps):
        if step.kind == "user":
            told = Segment("prompt", step.text)
            if turns:
                last = turns[-1]
                turns[-1] = Turn((*last.segments, told), last.calls, last.observations, last.stop)
            else:
                prompt.append(told)
        elif step.kind == "answer":
            turns.append(Turn((Segment("sampled", step.text),)))
        else:
            failed = "Traceback" in step.output
            call = ToolCall(f"{n}.0", "python", {"code": step.code}, len(step.text))
            seen = Observation(f"{n}.0", step.output, "error" if failed else "ok", "NameError" if failed else None)
            written = Segment("sampled", f"{step.text}```python\n{step.code}\n```")
            turns.append(Turn((written, Segment("observation", step.output)), (call,), (seen,), "call"))
    return {**to_dict(Trajectory("t", "k", tuple(prompt), tuple(turns))), "x-meta": {"k": 1}}
