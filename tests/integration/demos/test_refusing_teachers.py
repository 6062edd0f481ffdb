"""Teachers behind a URL whose servers do not take all that is sent to others, or give less than was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_demonstrations import CHAT, made, multiply, remote

from retcon.core.errors import EngineError
from retcon.train.demos.making import write_demonstrations
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


def test_what_a_teacher_does_not_take_is_refused_before_work_starts(tmp_path: Path) -> None:
    def reply(asked: Asked) -> Answer:
        if asked.body["temperature"] != 1:
            return Answer({"error": {"message": "Unsupported value: 'temperature' does not support 0.7"}}, 400)
        return Answer({"choices": [{"message": {"content": multiply(asked.body["messages"])}}]})

    with (
        serving(reply) as server,
        pytest.raises(EngineError, match=r"demos\.url: .*status 400: Unsupported value: 'temperature'"),
    ):
        write_demonstrations(remote(tmp_path, server.url, "rollout.temperature=0.7"), CHAT, tmp_path / "d.jsonl")
    assert len(server.asked) == 1
