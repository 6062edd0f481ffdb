"""Teachers behind a URL whose tokens may end before their reasoning does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError
from retcon.train.demos.making import WITHOUT_ROOM, write_demonstrations
from servers.answering import Answer, Asked, serving
from teaching import annotated_recipe

CHAT = Chat(ByteTokenizer())


def recipe_at(folder: Path, url: str, problems: int, *changes: str) -> Recipe:
    rows = [{"question": f"What is {n} times 6?", "answer": str(n * 6)} for n in range(problems)]
    return annotated_recipe(
        folder, rows, "demos.kind=openai", f"demos.url={url}", "demos.model=big", "demos.tries=2", *changes
    )


def thinking(asked: Asked) -> Answer:
    message: dict[str, Any] = {"role": "assistant", "content": None, "reasoning_content": "Okay, the user"}
    return Answer({"choices": [{"message": message, "finish_reason": "length"}]})


def test_what_a_teacher_does_not_come_to_say_is_rejected_and_not_lost(tmp_path: Path) -> None:
    """Of 24 problems it answers every third; that many lost ones would end the command."""

    def reply(asked: Asked) -> Answer:
        number = re.search(r"What is (\d+) times", asked.body["messages"][-1]["content"])
        if number is None or int(number[1]) % 3:
            return thinking(asked)
        return Answer({"choices": [{"message": {"content": f"It is \\boxed{{{int(number[1]) * 6}}}."}}]})

    with serving(reply) as server:
        recipe = recipe_at(tmp_path, server.url, 24, "sft.demonstrations=24")
        summary = write_demonstrations(recipe, CHAT, tmp_path / "d.jsonl")
    assert (summary.kept, dict(summary.rejected)) == (8, {"no room in rollout.max_tokens": 16})


def test_a_teacher_that_never_comes_to_say_anything_is_given_up_soon(tmp_path: Path) -> None:
    with serving(thinking) as server:
        recipe = recipe_at(tmp_path, server.url, 4 * WITHOUT_ROOM, "sft.demonstrations=100")
        with pytest.raises(RecipeError, match=rf"none of {WITHOUT_ROOM} .*: {WITHOUT_ROOM} no room in rollout.max_tok"):
            write_demonstrations(recipe, CHAT, tmp_path / "d.jsonl")
        assert len(server.asked) == 1 + 2 * WITHOUT_ROOM
