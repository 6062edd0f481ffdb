"""Served sessions come to an end: recorded once, under names that are used again, and whatever a killed server left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="serving needs the [serve] extra")

from retcon.core.errors import StorageError
from retcon.serve.recording import FILE, OPEN, Record
from retcon.store import jsonl
from servers.agent import Asking, asked, asking, conversed, user


def numbered(_: str, text: str, n: int) -> str:
    return f"answer {text.count('<|im_start|>assistant')}"


def test_what_a_killed_server_left_open_is_taken_in_by_the_next(tmp_path: Path) -> None:
    async def main() -> None:
        async with asking(numbered, record=tmp_path) as client:
            await conversed(client, "One?", "Two?", session="a")
            (tmp_path / "kept").write_bytes((tmp_path / OPEN / "a.jsonl").read_bytes())
        (tmp_path / FILE).unlink()
        (tmp_path / "kept").rename(tmp_path / OPEN / "a.jsonl")

    asyncio.run(main())
    assert Record(tmp_path).taken_in == 1
    (kept,) = jsonl.read(tmp_path / FILE)
    assert len(kept.turns) == 2
    assert Record(tmp_path).taken_in == 0


@pytest.mark.parametrize("before", [[], ["One?"], ["One?", "Two?"]], ids=["first", "goes on", "branches"])
def test_an_answer_that_could_not_be_recorded_was_never_given(tmp_path: Path, before: list[str]) -> None:
    kept = tmp_path / OPEN / "a.jsonl"

    async def play(client: Asking) -> None:
        told, _ = await conversed(client, *before, session="a")
        messages = [*told[:2], user("Another?")]
        data = kept.read_bytes() if before else b""
        kept.unlink(missing_ok=True)
        kept.mkdir()
        refused = await client.post(messages, session="a")
        assert (refused.status_code, refused.json()["error"]["code"]) == (500, "record")
        kept.rmdir()
        kept.write_bytes(data)
        assert len(client.agent.sessions) == bool(before)
        for _ in range(2):  # the second is asked besides the first
            await client.chat(messages, session="a")
        assert client.agent.sessions.get("a").requests == len(before) + 2

    asked(play, numbered, record=tmp_path)
    branches = len(before) == 2
    turns = [1, 1] if not before else [2, 1, 1] if branches else [2, 1]
    found = list(jsonl.read(tmp_path / FILE))
    assert [(t.id, len(t.turns)) for t in found] == [(f"a/{n}", count) for n, count in enumerate(turns)]


def test_a_reward_that_could_not_be_kept_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StorageError("no space left")

    async def play(client: Asking) -> None:
        await conversed(client, "One?", session="a")
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(Record, "keep", full)
            refused = await client.http.post("/v1/sessions/a/reward", json={"reward": 1, "end": False})
        assert refused.status_code >= 500
        assert (await client.http.post("/v1/sessions/a/end")).json()["data"][0]["reward"] is None

    asked(play, numbered, record=tmp_path)


def test_unused_sessions_end_when_others_open(tmp_path: Path) -> None:
    async def play(client: Asking) -> None:
        await conversed(client, "One?", session="a")
        client.agent.sessions.get("a").used -= 10
        await conversed(client, "One?", session="b")
        assert [one.id for one in client.agent.sessions] == ["b"]
        full = await client.post([user("One?")], session="c")
        assert (full.status_code, full.headers["retry-after"]) == (503, "1")

    asked(play, numbered, record=tmp_path, idle=5, sessions=1)


def test_a_reward_for_a_trajectory_that_a_session_has_not_is_refused_by_name() -> None:
    async def play(client: Asking) -> None:
        await conversed(client, "One?", session="a")
        refused = await client.http.post("/v1/sessions/a/reward", json={"reward": 1, "trajectory": "a/1"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "trajectory")
        assert "has no trajectory 'a/1' (did you mean 'a/0'?)" in refused.json()["error"]["message"]
        assert client.trajectories("a")[0].reward is None, "and its session goes on"

    asked(play, numbered)
