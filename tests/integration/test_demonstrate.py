"""Demonstrations: real code, run by the real sandbox, through the model's own loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.schema import Recipe
from retcon.rollout.demonstrate import write_demonstrations
from retcon.store import jsonl
from retcon.tasks.numbers import problems


@pytest.mark.parametrize("style", ["markdown", "hermes"])
def test_demonstrations_hold_failures_repairs_and_answers(tmp_path: Path, style: str) -> None:
    recipe = Recipe.model_validate({"sft": {"demonstrations": 40}, "rollout": {"max_tokens": 2000}})
    chat = Chat(ByteTokenizer(), style=style)  # type: ignore[arg-type]
    steps: list[tuple[int, int]] = []
    path = write_demonstrations(recipe, chat, tmp_path / "d.jsonl", on_progress=lambda *s: steps.append(s))
    made = list(jsonl.read(path))
    assert steps[-1] == (40, 40)
    assert [t.task for t in made] == [p.task().id for _, p in zip(range(40), problems(0, "train"), strict=False)]
    statuses = {o.status for t in made for turn in t.turns for o in turn.observations}
    assert statuses == {"ok", "error"}
    assert any(t.reward == 1.0 and t.failures for t in made)
    assert any(t.reward == -1.0 for t in made)
    # The teacher has no probabilities, and says so.
    assert all(s.logprobs is None for t in made for s in t.segments)
    again = write_demonstrations(recipe, chat, tmp_path / "again.jsonl")
    assert [t.text for t in jsonl.read(again)] == [t.text for t in made]
