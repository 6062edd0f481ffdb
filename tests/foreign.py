"""Transcripts as other people have them: the same steps written in each format that `retcon purify` reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from retcon.core.codec import to_dict
from retcon.core.types import Observation, Segment, ToolCall, Trajectory, Turn

TRACEBACK = """Traceback (most recent call last):
  File "<string>", line {line}, in <module>
{type}: {message}"""


@dataclass(frozen=True)
class Step:
    """What happens next. kind: `user`, `answer` or `call`; a call says something, runs code and has an output."""

    kind: str
    text: str
    code: str = ""
    output: str = ""


def user(text: str) -> Step:
    return Step("user", text)


def answer(text: str) -> Step:
    return Step("answer", text)


def works(code: str, output: str = "1", said: str = "let me see") -> Step:
    return Step("call", said, code, output)


def fails(code: str, type: str = "NameError", line: int = 1, said: str = "let me see") -> Step:
    return Step("call", said, code, TRACEBACK.format(line=line, type=type, message="name 'x' is not defined"))


FAILED = "import math\nroot = math.sqroot(16)\nprint(root)"
FIXED = "import math\nroot = math.sqrt(16)\nprint(root)"
REPAIRED = (user("the root of 16?"), fails(FAILED, "AttributeError", 2), works(FIXED, "4.0", "sqrt it is"), answer("4"))
"""A failed call and, right after it, its fix: shallow."""


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


def hermes(steps: Sequence[Step]) -> dict[str, Any]:
    out: list[dict[str, Any]] = []
    for n, step in enumerate(steps):
        if step.kind != "call":
            out.append({"role": "user" if step.kind == "user" else "assistant", "content": step.text, "x-n": n})
            continue
        call = json.dumps({"name": "python", "arguments": {"code": step.code}})
        out.append({"role": "assistant", "content": f"{step.text}\n<tool_call>\n{call}\n</tool_call>", "x-n": n})
        out.append({"role": "user", "content": f"<tool_response>\n{step.output}\n</tool_response>", "x-n": n})
    return {"messages": out, "x-meta": {"kept": [1, None]}}


def mint(steps: Sequence[Step]) -> dict[str, Any]:
    out: list[dict[str, Any]] = []
    for n, step in enumerate(steps):
        if step.kind != "call":
            out.append({"role": "user" if step.kind == "user" else "assistant", "content": step.text, "x-n": n})
            continue
        content = f"Assistant:\n<thought> {step.text} </thought>\n<execute>\n{step.code}\n</execute>\n"
        out.append({"role": "assistant", "content": content, "x-n": n})
        left = f"Observation:\n{step.output}\nYou have {n} steps left and 2 chances to propose solution left.\n"
        out.append({"role": "user", "content": left, "x-n": n})
    return {"state": {"history": out, "x-in": 1}, "x-meta": {"kept": [1, None]}}


def mathcoder(steps: Sequence[Step]) -> dict[str, Any]:
    out: list[dict[str, Any]] = []
    for n, step in enumerate(steps):
        if step.kind != "call":
            out.append({"role": "user" if step.kind == "user" else "text", "content": step.text, "x-n": n})
            continue
        out += [
            {"role": "text", "content": step.text, "x-n": n},
            {"role": "code", "content": step.code, "x-n": n},
            {"role": "execution", "content": step.output, "x-n": n},
        ]
    return {"messages": [{"role": "user", "content": "?"}], "debug_result": out, "x-meta": {"kept": [1, None]}}


def sharegpt(steps: Sequence[Step]) -> dict[str, Any]:
    out: list[dict[str, Any]] = []
    for n, step in enumerate(steps):
        if step.kind != "call":
            out.append({"from": "human" if step.kind == "user" else "gpt", "value": step.text, "x-n": n})
            continue
        call = json.dumps({"name": "python", "arguments": {"code": step.code}})
        out.append({"from": "gpt", "value": f"{step.text}\n<tool_call>\n{call}\n</tool_call>", "x-n": n})
        out.append({"from": "tool", "value": step.output, "x-n": n})
    return {"conversations": out, "x-meta": {"kept": [1, None]}}


def sharegpt_functions(steps: Sequence[Step]) -> dict[str, Any]:
    out: list[dict[str, Any]] = []
    for n, step in enumerate(steps):
        if step.kind != "call":
            out.append({"from": "human" if step.kind == "user" else "gpt", "value": step.text, "x-n": n})
            continue
        call = json.dumps({"name": "python", "arguments": {"code": step.code}})
        out += [{"from": "function_call", "value": call, "x-n": n}, {"from": "observation", "value": step.output}]
    return {"conversations": out, "x-meta": {"kept": [1, None]}}


def markdown(steps: Sequence[Step]) -> dict[str, Any]:
    out: list[dict[str, Any]] = []
    for n, step in enumerate(steps):
        if step.kind != "call":
            out.append({"role": "user" if step.kind == "user" else "assistant", "content": step.text, "x-n": n})
            continue
        out.append({"role": "assistant", "content": f"{step.text}\n```python\n{step.code}\n```", "x-n": n})
        out.append({"role": "user", "content": f"```output\n{step.output}\n```", "x-n": n})
    return {"messages": out, "x-meta": {"kept": [1, None]}}


def text(steps: Sequence[Step]) -> dict[str, Any]:
    """One text, as of ToRA; users cannot speak in between, what they would say is the question."""
    parts = [
        f"{step.text}\n```python\n{step.code}\n```\n```output\n{step.output}\n```\n"
        if step.kind == "call"
        else step.text
        for step in steps
        if step.kind != "user"
    ]
    return {
        "question": "; ".join(s.text for s in steps if s.kind == "user"),
        "code": ["".join(parts)],
        "x-meta": {"k": 1},
    }


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


def retool(steps: Sequence[Step]) -> dict[str, Any]:
    return _tagged(steps, "<code>\n```python\n{}\n```\n</code>", "<interpreter>\n{}\n</interpreter>")


def arpo(steps: Sequence[Step]) -> dict[str, Any]:
    return _tagged(steps, "<python>\n{}\n</python>", "<result>\n{}\n</result>")


def _tagged(steps: Sequence[Step], call: str, output: str) -> dict[str, Any]:
    """One message of the model holds all that it did until the user speaks."""
    out: list[dict[str, Any]] = []
    for n, step in enumerate(steps):
        if step.kind == "user":
            out.append({"role": "user", "content": step.text, "x-n": n})
            continue
        text = step.text
        if step.kind == "call":
            text += f"\n{call.format(step.code)}\n{output.format(step.output)}\n"
        if out and out[-1]["role"] == "assistant":
            out[-1] = {**out[-1], "content": out[-1]["content"] + text}
        else:
            out.append({"role": "assistant", "content": text, "x-n": n})
    return {"messages": out, "x-meta": {"kept": [1, None]}}


def retool_text(steps: Sequence[Step]) -> dict[str, Any]:
    """slime's sample of it, with the ids of the text."""
    record = retool([step for step in steps if step.kind != "user"])
    question = "; ".join(step.text for step in steps if step.kind == "user")
    text = "".join(m["content"] for m in record["messages"])
    ids = {"tokens": [1, 2, 3], "response_length": 3, "loss_mask": [1, 1, 0], "rollout_log_probs": None}
    return {"prompt": question, "response": text, "reward": 1.0, "status": "completed", **ids, "x-meta": {}}


def verl(steps: Sequence[Step]) -> dict[str, Any]:
    """A dump of rollouts: one text, from which the markers of the template are gone but for the roles."""
    text = ""
    for step in steps:
        if step.kind == "user":
            continue
        text += step.text
        if step.kind == "call":
            call = json.dumps({"name": "code_interpreter", "arguments": {"code": step.code}})
            text += f"\n<tool_call>\n{call}\n</tool_call>\nuser\n"
            text += f"<tool_response>\n{step.output}\n</tool_response>\nassistant\n"
    question = "; ".join(step.text for step in steps if step.kind == "user")
    return {"input": question, "output": text, "gts": "4", "score": 1.0, "step": 7, "x-meta": {}}


FORMATS: dict[str, Callable[[Sequence[Step]], dict[str, Any]]] = {
    "messages": messages,
    "inspect": inspect,
    "hermes": hermes,
    "mint": mint,
    "mathcoder": mathcoder,
    "sharegpt": sharegpt,
    "sharegpt_functions": sharegpt_functions,
    "markdown": markdown,
    "text": text,
    "ours": ours,
    "anthropic": anthropic,
    "responses": responses,
    "nemo_gym": nemo_gym,
    "smolagents": smolagents,
    "swe_agent": swe_agent,
    "openhands": openhands,
    "openhands_sdk": openhands_sdk,
    "autogen": autogen,
    "autogen_code": autogen_code,
    "autogen_chat": autogen_chat,
    "langchain": langchain,
    "langchain_flat": langchain_flat,
    "langchain_dumpd": langchain_dumpd,
    "retool": retool,
    "retool_text": retool_text,
    "arpo": arpo,
    "verl": verl,
}
NAMES = {
    "inspect": "messages", "sharegpt_functions": "sharegpt", "text": "markdown", "ours": "retcon",
    "nemo_gym": "responses", "swe_agent": "swe-agent", "openhands_sdk": "openhands", "autogen_code": "autogen",
    "autogen_chat": "autogen", "langchain_flat": "langchain", "langchain_dumpd": "langchain", "retool_text": "retool",
    "verl": "hermes",
}  # fmt: skip
"""What `Detector` calls them, where that is another name."""
