"""Teachers behind a URL whose servers do not take all that is sent to others, or give less than was asked for."""

from __future__ import annotations

from pathlib import Path

from test_demonstrations import made, multiply, remote

from servers.answering import Answer, Asked, serving


def test_a_teacher_whose_server_takes_no_seed_is_sent_none(tmp_path: Path) -> None:
    def reply(asked: Asked) -> Answer:
        if "seed" in asked.body:
            detail = [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]
            return Answer({"object": "error", "message": {"detail": detail}}, 422)
        return Answer({"choices": [{"message": {"content": multiply(asked.body["messages"])}}]})

    with serving(reply) as server:
        summary, _ = made(remote(tmp_path, server.url), tmp_path / "d.jsonl")
    assert summary.kept == 1
    assert [n for n, asked in enumerate(server.asked) if "seed" in asked.body] == [0]
