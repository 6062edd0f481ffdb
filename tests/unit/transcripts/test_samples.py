"""What the libraries themselves write is read and written back: `foreign/make_samples.py` had them write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import foreign
from retcon.purify.offline import Repairer
from retcon.store.parquet import Record
from retcon.transcripts.detector import Detector
from retcon.transcripts.purifier import Count, RecordRepairer, Sinks

SAMPLES = Path(foreign.__file__).parent / "samples"
FORMATS = {
    "verifiers": "traces", "autogen02:0": "autogen", "autogen02:1": "autogen", "autogen02:2": "messages",
    "autogen02:3": "messages", "adk": "gemini", "harbor": "atif", "pydantic_ai": "pydantic-ai",
    "pydantic_ai1": "pydantic-ai", "strands": "bedrock",
}  # fmt: skip
RECORDS = [(path.stem, n) for path in sorted(SAMPLES.glob("*.jsonl")) for n in range(path.read_bytes().count(b"\n"))]


def purified(name: str, n: int) -> tuple[Any, Any, Count]:
    record = Record((SAMPLES / f"{name}.jsonl").read_bytes().splitlines()[n], 1, name)
    count = Count()
    out = RecordRepairer(Repairer(), Detector(), Sinks(), count)(record)
    assert out is not None
    return json.loads(record.data), json.loads(out), count


@pytest.mark.parametrize(("name", "n"), RECORDS)
def test_a_sample_is_repaired_and_stays_what_it_was_otherwise(name: str, n: int) -> None:
    before, after, count = purified(name, n)
    assert [*count.formats] == [FORMATS.get(f"{name}:{n}", FORMATS.get(name, name))]
    assert (count.calls, count.failed, count.shallow) == (2, 1, 1)
    text = json.dumps(after)
    assert "math.sqrt(16)" in text
    assert "let me see" in text
    for gone in ("sqroot", "has no attribute", "sqrt it is"):
        assert gone in json.dumps(before)
        assert gone not in text
    assert shape(after) <= shape(before)


def shape(value: Any, path: str = "") -> set[str]:
    """Every path to a value, whatever the place in a list, with the value's type; null may stand for any."""
    if isinstance(value, dict):
        return {found for key, inner in value.items() for found in shape(inner, f"{path}.{key}")} | {path}
    if isinstance(value, list):
        return {found for inner in value for found in shape(inner, f"{path}[]")} | {path}
    return {path if value is None else f"{path}: {type(value).__name__}"}


@pytest.mark.parametrize("failing", [(), (0,), (1,), (0, 1)])
def test_one_message_answers_several_calls(failing: tuple[int, ...]) -> None:
    """As AutoGen 0.2 writes them, with the outputs beside the content that joins them."""

    def round_of(number: int, codes: list[str], outputs: list[str]) -> list[dict[str, Any]]:
        ids = [f"{number}{n}" for n in range(len(codes))]
        functions = [{"name": "python", "arguments": json.dumps({"code": code})} for code in codes]
        calls = [{"id": id, "type": "function", "function": one} for id, one in zip(ids, functions, strict=True)]
        answers = [{"tool_call_id": id, "role": "tool", "content": o} for id, o in zip(ids, outputs, strict=True)]
        told = {"content": "\n\n".join(outputs), "tool_responses": answers, "role": "tool", "name": "user_proxy"}
        return [{"content": f"round {number}", "tool_calls": calls, "role": "assistant"}, told]

    error = "Error: module 'math' has no attribute 'sqroot'"
    works = ["import math\nroot = math.sqrt(16)\nprint(root)", "import math\ncube = math.cbrt(27)\nprint(cube)"]
    first = [code.replace("sqrt", "sqroot").replace("cbrt", "sqroot") if n in failing else code
             for n, code in enumerate(works)]  # fmt: skip
    told = [error if n in failing else out for n, out in enumerate(("4.0", "3.0"))]
    said = [*round_of(1, first, told), *round_of(2, works, ["4.0", "3.0"])] if failing else round_of(1, first, told)
    record = {"chat_history": [{"content": "?", "role": "user"}, *said, {"content": "4 and 3", "role": "assistant"}]}
    count = Count()
    out = RecordRepairer(Repairer(), Detector(), Sinks(), count)(Record(json.dumps(record).encode(), 1, "t"))
    assert out is not None
    assert (count.calls, count.failed, count.shallow) == (4 if failing else 2, len(failing), bool(failing))
    assert [len(item["tool_responses"]) for item in json.loads(out)["chat_history"] if item["role"] == "tool"] == [2]
    assert "sqroot" not in out.decode()


def test_a_trace_s_places_follow_its_nodes() -> None:
    _, after, _ = purified("verifiers", 1)
    (trace,) = after["traces"]
    assert [node.get("parent") for node in trace["nodes"]] == [None, 0, 1, 2, 3]
    assert [call.get("node") for call in trace["calls"]] == [2, None, 4]
    assert all(node["token_ids"] == node["mask"] == node["logprobs"] == [] for node in trace["nodes"])


def node(parent: int | None, role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"parent": parent, "message": {"role": role, "content": content, **more}, "sampled": role == "assistant"}


def call(id: str, code: str) -> dict[str, Any]:
    return {"tool_calls": [{"id": id, "name": "python", "arguments": json.dumps({"code": code})}]}


def failing(parent: int | None) -> list[dict[str, Any]]:
    """A failed call and its fix, each with its output, from the place of the first node on."""
    at = 0 if parent is None else parent + 1
    return [
        node(parent, "assistant", "let me see", **call("a", foreign.FAILED)),
        node(at, "tool", foreign.fails("", "AttributeError", 2).output, tool_call_id="a"),
        node(at + 1, "assistant", "sqrt it is", **call("b", foreign.FIXED)),
        node(at + 2, "tool", "4.0", tool_call_id="b"),
    ]


def run(nodes: list[dict[str, Any]], **more: Any) -> tuple[dict[str, Any], Count]:
    count = Count()
    record = Record(json.dumps({"nodes": nodes, **more}).encode(), 1, "t")
    out = RecordRepairer(Repairer(), Detector(), Sinks(), count)(record)
    assert out is not None
    return json.loads(out), count


def test_several_histories_of_a_trace_are_repaired_each_for_itself() -> None:
    second = [{**one, "parent": 5 if n == 0 else one["parent"] + 6} for n, one in enumerate(failing(None))]
    nodes = [node(None, "user", "q"), *failing(0), node(None, "user", "also"), *second]
    nodes[5]["semantic_parents"] = [{"node": 1, "type": "spawn"}, {"node": 3, "type": "gone"}]
    out, count = run(nodes, calls=[{"node": 9}, {"node": 8}, {"model": "m"}])
    assert count.shallow == 2
    assert [one["parent"] for one in out["nodes"]] == [None, 0, 1, None, 3, 4]
    assert [one["message"]["content"] for one in out["nodes"]] == [
        "q", "let me see", "4.0", "also", "let me see", "4.0",
    ]  # fmt: skip
    assert out["nodes"][3]["semantic_parents"] == [{"node": 1, "type": "spawn"}]
    assert out["calls"] == [{"node": 5}, {}, {"model": "m"}]


def test_a_history_that_branches_is_left_alone_and_told() -> None:
    nodes = [node(None, "user", "q"), *failing(0), node(2, "assistant", "another way")]
    out, count = run(nodes)
    assert out["nodes"] == nodes
    assert (count.calls, count.unread, [*count.unread_as]) == (0, 1, ["the key 'tool_calls'"])


def test_what_no_model_wrote_is_not_repaired() -> None:
    nodes = [{**one, "sampled": False} for one in [node(None, "user", "q"), *failing(0)]]
    assert run(nodes)[0]["nodes"] == nodes


def test_ids_of_a_history_that_is_repaired_are_taken_out_of_nemo_gym_s_items() -> None:
    record = foreign.FORMATS["nemo_gym"](foreign.REPAIRED)
    for n, item in enumerate(record["response"]["output"]):
        item |= {"prompt_token_ids": [n], "generation_token_ids": [n, n], "generation_log_probs": [-0.5, -0.5]}
    out = RecordRepairer(Repairer(), Detector(), Sinks(), Count())(Record(json.dumps(record).encode(), 1, "t"))
    assert out is not None
    asked, thought, *later = json.loads(out)["response"]["output"]
    assert [asked, thought] == record["response"]["output"][:2]
    assert [item["type"] for item in later] == ["code_interpreter_call", "message"]
    for item in later:
        assert item["prompt_token_ids"] == item["generation_token_ids"] == item["generation_log_probs"] == []
