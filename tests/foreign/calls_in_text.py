"""Formats whose calls are written in the text, of messages or of one whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from foreign.steps import Step


def hermes(steps: Sequence[Step]) -> dict[str, Any]:
    return _messages(
        steps,
        lambda step: (
            f"{step.text}\n<tool_call>\n{_hermes_call(step.code)}\n</tool_call>",
            f"<tool_response>\n{step.output}\n</tool_response>",
        ),
    )


def qwen_coder(steps: Sequence[Step]) -> dict[str, Any]:
    """As Qwen3-Coder's template shows a tool's answers: several in one message of the user."""
    return _messages(
        steps,
        lambda step: (
            f"{step.text}\n\n{_coder_call(step.code)}",
            f"<tool_response>\n{step.output}\n</tool_response>\n",
        ),
    )


def verl_coder(steps: Sequence[Step]) -> dict[str, Any]:
    """A rollout dump of verl's, of a model that writes so."""
    text = "".join(
        f"{step.text}\n{_coder_call(step.code)}\nuser\n<tool_response>\n{step.output}\n</tool_response>\n\nassistant\n"
        if step.kind == "call"
        else step.text
        for step in steps
        if step.kind != "user"
    )
    return {"input": "user\n?\nassistant\n", "output": text, "score": 1.0, "step": 3, "x-meta": {}}


def _messages(steps: Sequence[Step], told: Callable[[Step], tuple[str, str]]) -> dict[str, Any]:
    """A call and its answer, as `told` writes them, are a message of the assistant and one of the user."""
    out: list[dict[str, Any]] = []
    for n, step in enumerate(steps):
        if step.kind != "call":
            out.append({"role": "user" if step.kind == "user" else "assistant", "content": step.text, "x-n": n})
            continue
        call, answer = told(step)
        out += [{"role": "assistant", "content": call, "x-n": n}, {"role": "user", "content": answer, "x-n": n}]
    return {"messages": out, "x-meta": {"kept": [1, None]}}


def _hermes_call(code: str) -> str:
    return json.dumps({"name": "python", "arguments": {"code": code}})


def _coder_call(code: str) -> str:
    return f"<tool_call>\n<function=python>\n<parameter=code>\n{code}\n</parameter>\n</function>\n</tool_call>"


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
        call = _hermes_call(step.code)
        out.append({"from": "gpt", "value": f"{step.text}\n<tool_call>\n{call}\n</tool_call>", "x-n": n})
        out.append({"from": "tool", "value": step.output, "x-n": n})
    return {"conversations": out, "x-meta": {"kept": [1, None]}}


def sharegpt_functions(steps: Sequence[Step]) -> dict[str, Any]:
    out: list[dict[str, Any]] = []
    for n, step in enumerate(steps):
        if step.kind != "call":
            out.append({"from": "human" if step.kind == "user" else "gpt", "value": step.text, "x-n": n})
            continue
        call = _hermes_call(step.code)
        out += [{"from": "function_call", "value": call, "x-n": n}, {"from": "observation", "value": step.output}]
    return {"conversations": out, "x-meta": {"kept": [1, None]}}


def markdown(steps: Sequence[Step]) -> dict[str, Any]:
    return _messages(
        steps, lambda step: (f"{step.text}\n```python\n{step.code}\n```", f"```output\n{step.output}\n```")
    )


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


def slime(steps: Sequence[Step]) -> dict[str, Any]:
    """A sample of a rollout dump, as slime's own example of ReTool writes it: calls in `<tool_call>`, outputs in
    `<interpreter>`."""
    text = ""
    for step in steps:
        if step.kind == "user":
            continue
        text += step.text
        if step.kind == "call":
            call = json.dumps({"name": "code_interpreter", "arguments": {"code": step.code}})
            text += f"\n<tool_call>\n{call}\n</tool_call>\n\n<interpreter>\n{step.output}\n</interpreter>\n\n"
    prompt = [{"role": "user", "content": "; ".join(step.text for step in steps if step.kind == "user")}]
    ids = {"tokens": [1, 2, 3], "response_length": 2, "loss_mask": [1, 0], "rollout_log_probs": [-0.5, 0.0]}
    about = {"group_index": 0, "index": 3, "label": "4", "reward": {"score": 1.0}, "weight_versions": ["2"]}
    return {**about, "prompt": prompt, **ids, "response": text, "status": "completed", "metadata": {}, "x-meta": {}}
