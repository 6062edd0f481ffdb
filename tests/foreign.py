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
}
NAMES = {"inspect": "messages", "sharegpt_functions": "sharegpt", "text": "markdown", "ours": "retcon"}
"""What `Detector` calls them, where that is another name."""
