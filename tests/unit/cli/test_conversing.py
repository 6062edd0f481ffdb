"""The recipe by which a model is conversed with: the lengths that it takes, unless one says otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="a model's folder is found by the [train] extra")

from retcon.cli.arguments import ROOM, load_conversation
from retcon.core.errors import RecipeError

URL = "http://127.0.0.1:1/v1"


def lengths(model: str, *overrides: str) -> tuple[int, int]:
    rollout = load_conversation(model, ["python"], overrides)[0].rollout
    return rollout.max_tokens, rollout.lookahead_tokens


@pytest.mark.parametrize(("positions", "room"), [(3000, 3000), (ROOM, ROOM), (40_000, ROOM)])
def test_a_conversation_has_the_room_that_the_model_takes_and_no_more_than_is_quick(
    positions: int, room: int, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": positions}))
    history, lookahead = lengths(str(tmp_path))
    assert history + lookahead == room
    assert history == 2 * room // 3
    assert lengths(str(tmp_path), "rollout.max_tokens=500") == (500, lookahead)


def test_a_server_says_itself_how_much_it_takes() -> None:
    assert sum(lengths(URL, "engine.context=5000")) == 5000
    assert lengths(URL, "engine.context=5000", "rollout.lookahead_tokens=7") == (3333, 7)


def test_a_harness_that_nobody_would_ask_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"^rollout\.harness: in a conversation the client makes the rollouts"):
        load_conversation(URL, ["python"], ["rollout.harness=mine:solve"])
