"""OpenHands' agent through `retcon serve-agent`, in a process of its own, and training on what it did.

`make integration` builds its environment, and runs this file.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

if "RETCON_OPENHANDS_PYTHON" not in os.environ:
    pytest.skip("the Python that has OpenHands, which `make integration` names", allow_module_level=True)

from endpoints import ROOMY, endpoint, exact, reward, trained

from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.types import Parent, Trajectory
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.rollout.context import RolloutLimits
from retcon.rollout.group import rollout_group
from retcon.serve.harness import ModelEndpoint
from retcon.serve.harness_server import open_harness
from retcon.serve.recording import FILE
from retcon.store import jsonl
from retcon.tasks.types import Task
from servers.agent import MODEL, context_of

SUMMARIZER = "context-aware state summary"
"""What OpenHands tells the model that sums a history up."""
PROGRAM = Path(__file__).parents[1] / "servers/openhands_agent.py"


def run(url: str, folder: Path, *sessions: str, **about: Any) -> list[tuple[str, str]]:
    """How the conversation of each session ended, and what the agent said last. Nothing of this process's environment
    is OpenHands' to find."""
    asked = {"url": url, "model": MODEL, "sessions": sessions, "say": "Find it.", "workspace": str(folder), **about}
    python = os.path.abspath(os.environ["RETCON_OPENHANDS_PYTHON"])  # noqa: PTH100  not resolved: it is a link in a venv
    command = [python, "-I", str(PROGRAM), json.dumps(asked)]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    ran = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr
    return [tuple(json.loads(line)) for line in ran.stdout.splitlines() if line.startswith("[")]


def learnt(kept: Trajectory) -> list[str]:
    return [s.text for s in kept.segments if s.kind == "sampled"]


def called(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def tagged(name: str, **arguments: object) -> str:
    """As OpenHands asks for calls in text, but for white space."""
    told = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<function={name}>\n{told}</function>"


@pytest.mark.parametrize("calls", ["native", "streamed", "text"])
def test_an_agent_of_openhands_is_one_conversation(calls: str, tmp_path: Path) -> None:
    note, write = str(tmp_path / "note.txt"), tagged if calls == "text" else called
    replies = [
        "I look.\n" + write("terminal", command="echo $((6 * 7))"),
        write("file_editor", command="view", path=note),
        write("file_editor", command="create", path=note, file_text="42"),
        write("finish", message="It is 42."),
    ]
    about: dict[str, Any] = {"llm": {"stream": calls == "streamed"}}
    if calls == "text":
        about = {"model": f"{MODEL}:chat", "llm": {"native_tool_calling": False}}
    with endpoint(replies, tmp_path, style="markdown" if calls == "text" else "qwen") as (url, engine):
        assert run(url, tmp_path, "open", tools=["terminal", "file_editor"], **about) == [("finished", "It is 42.")]
        reward(url, "open", 1.0)
    assert (tmp_path / "note.txt").read_text() == "42"
    (kept,) = jsonl.read(tmp_path / FILE)
    assert (kept.id, kept.task, kept.reward, len(kept.turns)) == ("open/0", "asked", 1.0, 4)
    assert exact(kept, engine)
    if calls == "text":
        assert learnt(kept) == [reply.removesuffix(">") for reply in replies]  # where the stop string ends it
    else:
        assert learnt(kept) == [f"{reply}<|im_end|>" for reply in replies]
        assert [[o.status for o in turn.observations] for turn in kept.turns] == [["ok"], ["error"], ["ok"], []]


def test_a_call_that_openhands_puts_right_is_the_same_conversation(tmp_path: Path) -> None:
    """It knows its tools by older names too, as models do, and replaces broken JSON. SAAR asks in vain here."""
    slips = [called("bash", command="echo $((6 * 7))"), '<tool_call>\n{"name": "terminal", "argu\n</tool_call>']

    def reply(_: str, text: str, n: int) -> str:
        return slips[0] if "42\n" not in text else slips[1] if "unparseable" not in text else "It is 42."

    with endpoint(reply, tmp_path, style="qwen") as (url, engine):
        assert run(url, tmp_path, "slips", tools=["terminal"]) == [("finished", "It is 42.")]
        reward(url, "slips", 0.0)
    (kept,) = jsonl.read(tmp_path / FILE)
    assert learnt(kept) == [f"{said}<|im_end|>" for said in (*slips, "It is 42.")]
    assert [[o.status for o in turn.observations] for turn in kept.turns] == [["ok"], ["error"], []]
    assert exact(kept, engine)


def test_a_condensed_history_of_openhands_is_a_branch(tmp_path: Path) -> None:
    made: list[str] = []

    def reply(_: str, text: str, n: int) -> str:
        if SUMMARIZER in text:
            said = "SUMMARY: nothing yet."
        else:
            said = called("think", thought=f"step {len(made)}") if len(made) < 9 else "Done."
        made.append(said)
        return said

    with endpoint(reply, tmp_path, style="qwen") as (url, engine):
        assert run(url, tmp_path, "long", condense=12) == [("finished", "Done.")]
        reward(url, "long", 1.0)
    whole, summary, branch = jsonl.read(tmp_path / FILE)
    assert [t.reward for t in (whole, summary, branch)] == [1.0, 1.0, 1.0]
    assert [*learnt(whole), *learnt(summary), *learnt(branch)] == [f"{said}<|im_end|>" for said in made]  # each once
    assert exact(branch, engine)
    prompt = "".join(s.text for s in branch.prompt)
    assert prompt.index("step 0") < prompt.index("SUMMARY: nothing yet.")
    assert "step 1" not in prompt
    first = [i for s in (*whole.prompt, *whole.turns[0].generated) for i in s.ids or ()]
    assert [i for s in branch.prompt for i in s.ids or ()][: len(first)] == first


def test_a_condenser_of_openhands_has_a_conversation_below_the_turn_that_it_follows(tmp_path: Path) -> None:
    made: list[str] = []

    def reply(_: str, text: str, n: int) -> str:
        if SUMMARIZER in text:
            return "SUMMARY: nothing yet."
        made.append(called("think", thought=f"step {len(made)}") if len(made) < 9 else "Done.")
        return made[-1]

    def solve(task: Task, endpoint: ModelEndpoint) -> str:
        condenser = endpoint.agent("compaction").url
        ((status, answer),) = run(endpoint.url, tmp_path, "", model=endpoint.name, condense=12, condenser=condenser)
        return answer if status == "finished" else status

    engine = ScriptedEngine(ByteTokenizer(), reply)

    async def main() -> Trajectory:
        async with open_harness(solve, 120.0) as harness:
            limits = replace(ROOMY, max_turns=12)
            context = replace(context_of(engine, style="qwen", limits=limits), harness=harness)
            task = Task("w/1", "Who?", "Ada")
            (made,) = await rollout_group(task, context, count=1, seed=0, step=1, grade=lambda _, made: made)
            return made

    root = asyncio.run(main())
    assert root.returned == "Done."
    assert Counter(node.parent.relation for node in root.tree if node.parent) == {"compaction": 1, "fork": 1}
    found = {node.parent.relation: node for node in root.tree if node.parent}
    before, summary = found["fork"], found["compaction"]
    assert learnt(summary) == ["SUMMARY: nothing yet.<|im_end|>"]
    assert summary.parent == Parent(before.id, len(before.turns) - 1, before.turns[-1].calls[0].id, "compaction")
    assert Counter(said for node in (root, before) for said in learnt(node)) == {f"{s}<|im_end|>": 1 for s in made}


def test_openhands_condenses_a_history_that_the_model_has_no_room_for(tmp_path: Path) -> None:
    """It knows by the words of the refusal that this is to be done."""

    def reply(_: str, text: str, n: int) -> str:
        said = "Done." if "SUMMARY" in text else called("terminal", command="seq 1000")
        return "SUMMARY: counted." if SUMMARIZER in text else said

    limits = RolloutLimits(max_tokens=17_000, max_turns=6, lookahead_tokens=1000)
    with endpoint(reply, tmp_path, style="qwen", limits=limits) as (url, engine):
        about: dict[str, Any] = {"condense": 60, "agent": {"system_prompt": "Be brief."}}
        assert run(url, tmp_path, "full", tools=["terminal"], **about) == [("finished", "Done.")]
        reward(url, "full", 1.0)
    _, summary, branch = jsonl.read(tmp_path / FILE)
    assert learnt(summary) == ["SUMMARY: counted.<|im_end|>"]
    assert learnt(branch)[-1] == "Done.<|im_end|>"
    assert exact(branch, engine)


def test_what_openhands_did_trains(tmp_path: Path) -> None:
    sessions = [f"s{n}" for n in range(4)]
    with trained(tmp_path, "hermes") as url:
        run(url, tmp_path, *sessions, turns=2, agent={"system_prompt": "Find it."})
        for n, session in enumerate(sessions):
            reward(url, session, float(n % 2))
