"""`retcon serve-agent` as a process: what it says, refuses and leaves behind."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("starlette", reason="serving needs the [serve] extra")
pytest.importorskip("tokenizers", reason="a model's tokenizer is read by the [train] extra")

from commands import Command, retcon, started
from playing import call
from retcon.store import jsonl
from servers.answering import Answer, Asked, said, serving

REPLIES = [call("print(6 * y)"), call("print(6 * 7)"), "It is 42."]
SCRIPTED = ("base", "engine.kind=scripted", f"engine.replies={json.dumps(REPLIES)}")


@contextmanager
def server(*words: object, **environment: str) -> Iterator[tuple[Command, str, str]]:
    """The process, the URL of its API and what it said."""
    with started("serve-agent", *words, "--port", "0", **environment) as process:
        line = process.first_line()
        assert line.startswith("listening on "), process.finish()
        yield process, line.split()[2], line


def ask(url: str, text: str = "6 times 7?", model: str = "base", **more: Any) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    return httpx.post(f"{url}/chat/completions", json=body, timeout=300, **more)


def test_what_was_asked_is_shown_as_a_trajectory(tmp_path: Path) -> None:
    with server(*SCRIPTED, "--record", tmp_path / "kept") as (process, url, line):
        assert "runs python · repair saar" in line
        answer = ask(url, headers={"X-Retcon-Session": "mine"}).json()
        assert answer["choices"][0]["message"]["content"] == "It is 42."
        assert [repair["decision"] for repair in answer["retcon"]["repairs"]] == ["shallow"]
        again = retcon("serve-agent", *SCRIPTED, "--record", tmp_path / "kept", "--port", "0")
        assert again.returncode == 2
        assert "another command is at work in" in again.stderr
        process.send_signal(signal.SIGTERM)
        done = process.finish()
        assert (done.returncode, "stopped" in done.stderr) == (0, True), done.stderr
    file = tmp_path / "kept/trajectories.jsonl"
    shown = retcon("show", file, "mine/0")
    assert shown.returncode == 0, shown.stderr
    assert "NameError" in shown.stdout
    listed = retcon("show", file)
    assert "shallow" in listed.stdout


def test_a_server_that_is_asked_to_stop_finishes_what_runs(tmp_path: Path) -> None:
    begun, go = threading.Event(), threading.Event()

    def reply(_: Asked) -> Answer:
        begun.set()
        assert go.wait(300)
        return said("It is 42.")

    with serving(reply) as model, server(model.url, "--name", "m", "--record", tmp_path, "--grace", "120") as running:
        process, url, line = running
        assert "as text" in line
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask, url, model="m")
            assert begun.wait(120)
            process.send_signal(signal.SIGTERM)
            go.set()
            assert asking.result().json()["choices"][0]["message"]["content"] == "It is 42."
        assert process.finish().returncode == 0
    (kept,) = jsonl.read(tmp_path / "trajectories.jsonl")
    assert kept.provenance.encoded_by is not None


def test_a_token_is_asked_for_and_needed_beyond_this_machine(tmp_path: Path) -> None:
    words = ("serve-agent", *SCRIPTED, "--host", "0.0.0.0", "--port", "0")
    open_ = retcon(*words)
    assert open_.returncode == 2
    assert "give --token-file too, or listen on 127.0.0.1" in open_.stderr
    (tmp_path / "token").write_text("secret\n")
    with server(*SCRIPTED, "--host", "0.0.0.0", "--token-file", tmp_path / "token") as (_, url, line):
        assert "a token is asked for" in line
        here = url.replace("0.0.0.0", "127.0.0.1")
        assert ask(here).status_code == 401
        assert ask(here, headers={"Authorization": "Bearer secret"}).status_code == 200


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--repair", "sar"), "did you mean 'saar'?"),
        (("--tool", "pyton"), "did you mean 'python'?"),
        (("--answer-tokens", "0"), "--answer-tokens"),
        (("--record", "/dev/null"), "/dev/null"),
        (("rollout.max_tokns=3",), "did you mean"),
    ],
)
def test_what_cannot_be_is_refused_by_name(words: tuple[str, ...], says: str) -> None:
    done = retcon("serve-agent", *SCRIPTED, "--port", "0", *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_record_of_what_a_client_ran_is_purified_afterwards(tmp_path: Path) -> None:
    run = {"type": "function", "function": {"name": "run", "parameters": {
        "type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}}}  # fmt: skip
    told: list[dict[str, Any]] = [{"role": "user", "content": "6 times 7?"}]
    with server(*SCRIPTED, "--record", tmp_path) as (_, url, _line):
        for output in ("NameError: name 'y' is not defined", "42", None):
            body = {"model": "base", "messages": told, "tools": [run]}
            message = httpx.post(f"{url}/chat/completions", json=body, timeout=300).json()["choices"][0]["message"]
            told.append(message)
            if output is not None:
                (made,) = message["tool_calls"]
                told.append({"role": "tool", "tool_call_id": made["id"], "content": output})
        (session,) = httpx.get(f"{url}/sessions").json()["data"]
        httpx.post(f"{url}/sessions/{session['id']}/reward", json={"reward": 1}).raise_for_status()
    done = retcon("purify", tmp_path / "trajectories.jsonl", "-o", tmp_path / "pure.jsonl")
    assert done.returncode == 0, done.stderr
    (before,), (after,) = jsonl.read(tmp_path / "trajectories.jsonl"), jsonl.read(tmp_path / "pure.jsonl")
    assert ([turn.failures for turn in before.turns], before.raw_failures) == ([1, 0, 0], 1)
    assert ([turn.failures for turn in after.turns], after.reward) == ([0, 0], 1.0)
    assert "print(6 * y)" not in after.text
