"""`retcon ask`, and `retcon eval` of a model behind a URL."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from commands import retcon
from retcon.store import jsonl
from servers.answering import Answer, Asked, python, said, serving

pytest.importorskip("tokenizers", reason="the tokenizer that stands in is read by the [train] extra")
REPAIRED = [
    said("Let me see.", python("print(6 * y)", "a")),
    said("y is not there.", python("print(6 * 7)", "b")),
    said("It is 42."),
]


def asked(*words: object, answers: list[Answer]) -> tuple[subprocess.CompletedProcess[str], list[Asked]]:
    left = list(answers)
    with serving(lambda _: left.pop(0)) as server:
        return retcon("ask", server.url, *words), server.asked


def test_a_person_sees_turns_output_and_what_was_repaired(tmp_path: Path) -> None:
    done, requests = asked("6 times 7?", "--out", tmp_path / "asked.jsonl", answers=REPAIRED)
    assert done.returncode == 0, done.stderr
    assert [word in done.stdout for word in ("print(6 * 7)", "42", "It is 42.", "shallow", "1 repaired")] == [True] * 5
    assert "print(6 * y)" not in done.stdout
    assert [body.body["temperature"] for body in requests] == [0.0] * 3
    (one,) = jsonl.read(tmp_path / "asked.jsonl")
    assert (one.raw_failures, one.failures) == (1, 0)
    assert one.provenance.encoded_by is not None
    assert "NameError" in retcon("show", tmp_path / "asked.jsonl", "question").stdout


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_what_a_file_holds_is_kept(tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"asked.jsonl{suffix}"
    for n, text in enumerate(("It is 1.", "It is 2."), start=1):
        done, _ = asked("Which?", "--out", out, answers=[said(text)])
        assert f"asked.jsonl{suffix} question{'-2' * (n == 2)}" in done.stdout, done.stderr
    assert {one.id: one.turns[0].text[:8] for one in jsonl.read(out)} == {
        "question": "It is 1.",
        "question-2": "It is 2.",
    }


def test_a_custom_tool_is_shown(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from retcon.core.types import ToolSpec\n"
        "from retcon.core.types import Observation\n"
        "class Search:\n"
        "    name, spec = 'search', ToolSpec('search', 'finds things')\n"
        "    async def __call__(self, call):\n"
        "        return Observation(call.id, 'found it', 'ok')\n"
    )
    call = {"name": "search", "arguments": "{}", "id": "a"}
    left = [said("", call), said("Done.")]
    with serving(lambda _: left.pop(0)) as server:
        words = ("ask", server.url, "Where?", "--tool", "mine:Search")
        done = retcon(*words, PYTHONPATH=f"src:{tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "found it" in done.stdout
    assert [tool["function"]["name"] for tool in server.asked[0].body["tools"]] == ["search"]


def test_a_server_that_is_lost_says_why_and_shows_what_there_was() -> None:
    left = [said("Let me see.", python("print(1)", "a"))]
    with serving(lambda _: left.pop(0) if left else Answer(status=None)) as server:
        done = retcon("ask", server.url, "6 times 7?", "engine.attempts=1")
    assert done.returncode == 2
    assert "Let me see." in done.stdout
    assert "does not answer: ServerDisconnectedError" in done.stderr
    down = retcon("ask", server.url, "6 times 7?", "engine.attempts=1")
    assert down.returncode == 2
    assert "does not answer: ClientConnectorError" in down.stderr
    assert "Traceback" not in down.stderr


@pytest.mark.torch
def test_the_packaged_model_is_asked() -> None:
    pytest.importorskip("torch", reason="a model here needs the [train] extra")
    done = retcon("ask", "base", "find x. x = 6 * 7", "rollout.max_tokens=80")
    assert done.returncode == 0, done.stderr
    assert "turn 1" in done.stdout
    assert "stop: " in done.stdout


def test_a_model_behind_a_url_is_evaluated_as_one_here(tmp_path: Path) -> None:
    with serving(lambda _: said("So \\boxed{30}.")) as server:
        small = ("evaluate.problems=2", "evaluate.samples=2", "--out", tmp_path / "eval")
        done = retcon("eval", server.url, *small)
        again = retcon("eval", server.url, "engine.model=other", *small)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "eval/result.json").read_text())
    assert result["checkpoint"] == server.url
    assert len(server.asked) == 2 * 2 * 2
    assert "evaluates" in again.stderr
    plan = retcon("eval", "http://127.0.0.1:9/v1", "--dry-run", "--out", tmp_path / "other")
    assert "which computes elsewhere" in plan.stdout, plan.stderr
