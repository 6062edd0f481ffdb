"""Served sessions come to an end: recorded once, under names that are used again, and whatever a killed server left."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="serving needs the [serve] extra")

from retcon.core.errors import EngineError, StorageError
from retcon.core.types import Trajectory
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


def test_a_session_that_cannot_be_ended_keeps_no_other_from_the_record(tmp_path: Path) -> None:
    async def main() -> None:
        async with asking(numbered, record=tmp_path) as client:
            for session in "ab":
                await client.chat([user("One?")], session=session)

            async def release(request_id: str) -> None:
                if request_id.startswith("a/"):
                    raise EngineError("the engine lost it")

            client.engine.release = release

    with pytest.raises(EngineError, match="lost it"):
        asyncio.run(main())
    assert [t.id for t in jsonl.read(tmp_path / FILE)] == ["a/0", "b/0"]


def test_the_next_number_of_a_name_is_above_all_that_the_record_has(tmp_path: Path) -> None:
    jsonl.write(tmp_path / FILE, [Trajectory(id, "t", (), ()) for id in ("a/1", "b/0", "a/0", "mine")])
    numbers = Record(tmp_path).numbers
    assert (numbers["a"], numbers["b"]) == (2, 1)


def test_a_name_that_is_used_again_is_not_let_go_of_with_the_session_before() -> None:
    """Letting go is waited for, and requests may come meanwhile."""
    released, go = asyncio.Event(), asyncio.Event()
    let_go: list[str] = []

    async def play(client: Asking) -> None:
        for question in ("One?", "Two?"):
            await client.chat([user(question)], session="a")

        async def release(request_id: str) -> None:
            let_go.append(request_id)
            released.set()
            await go.wait()

        client.engine.release = release
        ending = asyncio.ensure_future(client.http.post("/v1/sessions/a/end"))
        await released.wait()
        await client.chat([user("Anew?")], session="a")
        go.set()
        await ending
        assert len(let_go) == 2
        assert client.engine.seen[-1][0] not in let_go

    asked(play, numbered)


def test_a_name_that_is_used_again_goes_on_counting_its_trajectories(tmp_path: Path) -> None:
    async def play(client: Asking) -> None:
        for question in ("One?", "Two?"):
            await conversed(client, question, session="a")
            await client.chat([user("Anew?")], session="a")
            await client.http.post("/v1/sessions/a/end")
        await conversed(client, "Three?", session="a")
        await client.http.delete("/v1/sessions/a")
        await conversed(client, "Four?", session="a")

    for _ in range(2):  # two servers, one after the other
        asked(play, numbered, record=tmp_path)
        with (tmp_path / FILE).open("ab") as file:
            file.write(b'{"id": "a/7')  # the first was killed as it wrote
    assert [t.id for t in jsonl.read(tmp_path / FILE, on_bad=lambda _: None)] == [f"a/{n}" for n in range(10)]


def test_a_name_that_is_used_again_is_sampled_anew_by_the_next_server(tmp_path: Path) -> None:
    seeds: list[int] = []

    async def play(client: Asking) -> None:
        generate = client.engine.generate

        async def noting(request_id: str, ids: Any, params: Any) -> Any:
            seeds.append(params.seed)
            return await generate(request_id, ids, params)

        client.engine.generate = noting
        await conversed(client, "One?", session="a")

    for _ in range(2):
        asked(play, numbered, record=tmp_path)
    assert len(set(seeds)) == 2


def test_what_a_server_had_written_as_it_was_killed_is_not_written_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with asking(numbered, record=tmp_path) as client:
            await conversed(client, "One?", session="a")
            await client.chat([user("Anew?")], session="a")
            left = (tmp_path / OPEN / "a.jsonl").read_bytes()
        (tmp_path / OPEN / "a.jsonl").write_bytes(left)
        whole = (tmp_path / FILE).read_bytes()
        (tmp_path / FILE).write_bytes(whole[: whole.index(b"\n") + 20])

    asyncio.run(main())
    assert Record(tmp_path).taken_in == 1
    assert [t.id for t in jsonl.read(tmp_path / FILE)] == ["a/0", "a/1"]


def test_what_a_full_disk_had_room_for_is_not_written_again(tmp_path: Path) -> None:
    async def play(client: Asking) -> None:
        for question in ("One?", "Anew?"):
            await conversed(client, question, session="a")
        first, second = map(jsonl.line_of, client.trajectories("a"))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(first) + len(second) // 2, hard))
        try:
            refused = await client.http.post("/v1/sessions/a/end")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (refused.status_code, refused.json()["error"]["code"]) == (500, "record")
        assert (await client.http.post("/v1/sessions/a/end")).status_code == 200

    asked(play, numbered, record=tmp_path)
    assert [t.id for t in jsonl.read(tmp_path / FILE)] == ["a/0", "a/1"]


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


def test_a_reward_that_does_not_end_its_session_outlasts_a_killed_server(tmp_path: Path) -> None:
    async def play(client: Asking) -> None:
        await conversed(client, "One?", session="a")
        await client.http.post("/v1/sessions/a/reward", json={"reward": 1, "end": False})
        (tmp_path / "next" / OPEN).mkdir(parents=True)
        (tmp_path / "next" / OPEN / "a.jsonl").write_bytes((tmp_path / OPEN / "a.jsonl").read_bytes())
        assert Record(tmp_path / "next").taken_in == 1
        (left,) = jsonl.read(tmp_path / "next" / FILE)
        assert left.reward == 1.0

    asked(play, numbered, record=tmp_path)


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


def test_a_reward_that_is_refused_while_a_request_runs_is_none(tmp_path: Path) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def play(client: Asking) -> None:
        told, _ = await conversed(client, "One?", session="a")
        generate = client.engine.generate

        async def slow(request_id: str, ids: Any, params: Any) -> Any:
            begun.set()
            await go.wait()
            return await generate(request_id, ids, params)

        client.engine.generate = slow
        running = asyncio.ensure_future(client.chat([*told, user("Two?")], session="a"))
        await begun.wait()
        assert (await client.http.post("/v1/sessions/a/reward", json={"reward": 1})).status_code == 409
        go.set()
        await running
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


def test_requests_that_come_at_once_end_unused_sessions_once_and_none_that_is_used_again(tmp_path: Path) -> None:
    """Ending one takes a while: it is waited for until the engine has let go of what it kept."""
    released, go = asyncio.Event(), asyncio.Event()

    async def play(client: Asking) -> None:
        for name in "abc":
            await conversed(client, "One?", session=name)
        for session in client.agent.sessions:
            session.used -= 10

        async def let_go(request_id: str) -> None:
            released.set()
            await go.wait()

        client.engine.release = let_go
        first = asyncio.ensure_future(client.chat([user("One?")], session="d"))
        await released.wait()
        client.agent.sessions.touch(client.agent.sessions.get("b"))
        second = asyncio.ensure_future(client.chat([user("One?")], session="e"))
        while len(client.agent.sessions) > 1:
            await asyncio.sleep(0)
        go.set()
        await asyncio.gather(first, second)
        assert [one.id for one in client.agent.sessions] == ["b", "d", "e"]

    asked(play, numbered, record=tmp_path, idle=5)
    assert sorted(t.id for t in jsonl.read(tmp_path / FILE)) == ["a/0", "b/0", "c/0", "d/0", "e/0"]


def test_a_session_is_not_ended_as_unused_while_a_request_of_it_runs(tmp_path: Path) -> None:
    """However long that takes."""
    begun, go = asyncio.Event(), asyncio.Event()

    async def play(client: Asking) -> None:
        generate = client.engine.generate

        async def slow(request_id: str, ids: Any, params: Any) -> Any:
            if request_id.startswith("a/"):
                begun.set()
                await go.wait()
            return await generate(request_id, ids, params)

        client.engine.generate = slow
        running = asyncio.ensure_future(client.chat([user("One?")], session="a"))
        await begun.wait()
        client.agent.sessions.get("a").used -= 10
        await client.chat([user("One?")], session="b")
        assert sorted(one.id for one in client.agent.sessions) == ["a", "b"]
        go.set()
        await running

    asked(play, numbered, record=tmp_path, idle=5)
    assert sorted(t.id for t in jsonl.read(tmp_path / FILE)) == ["a/0", "b/0"]


def test_what_an_engine_kept_of_a_session_goes_with_it_though_nothing_else_is_kept(tmp_path: Path) -> None:
    async def play(client: Asking) -> None:
        told, _ = await conversed(client, "One?", "Two?", session="a")
        await client.chat([*told[:2], user("Other?")], session="a")
        assert (await client.http.delete("/v1/sessions/a")).status_code == 200
        assert sorted(client.engine.released) == ["a/0.1", "a/0.2"]
        assert list((tmp_path / OPEN).iterdir()) == []

    asked(play, numbered, record=tmp_path)
    assert not (tmp_path / FILE).exists() or (tmp_path / FILE).read_bytes() == b""


def test_a_reward_for_a_trajectory_that_a_session_has_not_is_refused_by_name() -> None:
    async def play(client: Asking) -> None:
        await conversed(client, "One?", session="a")
        refused = await client.http.post("/v1/sessions/a/reward", json={"reward": 1, "trajectory": "a/1"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "trajectory")
        assert "has no trajectory 'a/1' (did you mean 'a/0'?)" in refused.json()["error"]["message"]
        assert client.trajectories("a")[0].reward is None, "and its session goes on"

    asked(play, numbered)
