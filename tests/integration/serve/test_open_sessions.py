"""What is kept of sessions that are open: a line for each answer, of which a kill takes none that was given."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="serving needs the [serve] extra")

from retcon.core.errors import RecordError
from retcon.core.types import Trajectory
from retcon.serve.recording import FILE, OPEN, Record
from retcon.store import jsonl
from servers.agent import SAAR, SEARCH, Asking, asked, conversed, said, user


def numbered(_: str, text: str, n: int) -> str:
    return f"answer {text.count('<|im_start|>assistant')}"


def left_by(folder: Path, data: bytes) -> list[Trajectory]:
    """What the next server takes in of a session `a`, of which one that was killed has left this."""
    (folder / OPEN).mkdir(parents=True)
    (folder / OPEN / "a.jsonl").write_bytes(data)
    Record(folder)
    assert list((folder / OPEN).iterdir()) == []
    return list(jsonl.read(folder / FILE)) if (folder / FILE).exists() else []


def lines(trajectories: list[Trajectory]) -> list[bytes]:
    return [line for trajectory in trajectories for line in jsonl.lines_of(trajectory)]


def test_whenever_a_server_is_killed_all_that_it_had_answered_is_taken_in(tmp_path: Path) -> None:
    """Conversations that branch, of agents, calls that were repaired here or are the client's, and rewards."""
    states: list[tuple[int, list[Trajectory]]] = [(0, [])]
    data = b""

    async def play(client: Asking) -> None:
        nonlocal data

        def note() -> None:
            nonlocal data
            data = (tmp_path / "record" / OPEN / "a.jsonl").read_bytes()
            states.append((len(data), client.trajectories("a")))

        told: list[Any] = [user("One?")]
        for question in ("Two?", "Three?"):
            told += [said(await client.chat(told, session="a", task="sums/1")), user(question)]
            note()
        for messages in (told, told[:3], [user("Other?")], told[:3]):
            await client.chat(messages, session="a")
            note()
        for reward in ({"reward": 0.5}, {"reward": 1, "trajectory": "a/2"}):
            await client.http.post("/v1/sessions/a/reward", json={**reward, "end": False})
            note()
        searched: list[Any] = [user("Who?")]
        searched.append(said(await client.chat(searched, session="a", tools=[SEARCH])))
        note()
        (call,) = searched[1]["tool_calls"]
        for name in ("finder", "finder/reader"):
            await client.chat([user("Six?")], session="a", agent=name)
            note()
        searched.append({"role": "tool", "tool_call_id": call["id"], "content": "Error: no such word"})
        await client.chat(searched, session="a", tools=[SEARCH])
        note()

    def reply(_: str, text: str, n: int) -> str:
        if "Who?" in text:
            return '<tool_call>\n{"name": "search", "arguments": {"query": "6"}}\n</tool_call>'
        return ("x" if n == 0 else f"{n}") if "Other?" not in text else "No."

    asked(play, reply, record=tmp_path / "record", style="hermes", repair=SAAR)
    assert len({size for size, _ in states}) == len(states)
    for number, (size, answered) in enumerate(states):
        following = states[number + 1][0] if number + 1 < len(states) else size + 1
        for cut in {size, (size + following) // 2, following - 1}:
            assert lines(left_by(tmp_path / f"killed-{cut}", data[:cut])) == lines(answered), cut


def test_what_a_full_disk_took_half_of_is_removed_and_the_next_answer_is_kept(tmp_path: Path) -> None:
    async def play(client: Asking) -> None:
        told, _ = await conversed(client, "One?", session="a")
        kept = tmp_path / "record" / OPEN / "a.jsonl"
        before, (soft, hard) = kept.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 40, hard))
        try:
            refused = await client.post([*told, user("Two?")], session="a")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (refused.status_code, refused.json()["error"]["code"]) == (500, "record")
        assert kept.read_bytes() == before
        kept.write_bytes(before + b'{"id":"a/0"')  # a disk that does not even take back what it had taken
        await client.chat([*told, user("Two?")], session="a")
        assert lines(left_by(tmp_path / "next", kept.read_bytes())) == lines(client.trajectories("a"))

    asked(play, numbered, record=tmp_path / "record")


def test_whole_trajectories_that_an_earlier_version_left_are_taken_in(tmp_path: Path) -> None:
    left = [Trajectory("a/0", "t", (), (), reward=1.0), Trajectory("a/1", "t", (), ())]
    assert left_by(tmp_path, b"".join(map(jsonl.line_of, left))) == left


@pytest.mark.parametrize("line", [b"\0\0\0\n", b'{"id":"a/0","task":"t","prompt":[],"turns":[],"after":3}\n'])
def test_what_is_broken_is_reported_by_its_line_and_left_where_it_is(tmp_path: Path, line: bytes) -> None:
    with pytest.raises(RecordError, match=r"a\.jsonl, line 1: "):
        left_by(tmp_path, line)
    assert (tmp_path / OPEN / "a.jsonl").read_bytes() == line
