"""Demonstrations: real code, run by the real sandbox, through the model's own loop."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe, TaskSection
from retcon.core.errors import RecipeError
from retcon.store import jsonl
from retcon.tasks.kinds.numbers import problems
from retcon.train.demos.making import WITHOUT_ROOM, demonstrations, write_demonstrations
from servers.answering import Answer, Asked, serving
from teaching import annotated_recipe
from training import Ones


@pytest.mark.parametrize("style", ["markdown", "hermes"])
def test_demonstrations_hold_failures_repairs_and_answers(tmp_path: Path, style: str) -> None:
    recipe = Recipe.model_validate({"sft": {"demonstrations": 40}, "rollout": {"max_tokens": 2000}})
    chat = Chat(ByteTokenizer(), style=style)  # type: ignore[arg-type]
    steps: list[tuple[int, int]] = []
    path = tmp_path / "d.jsonl"
    summary = write_demonstrations(recipe, chat, path, on_progress=lambda *s: steps.append(s))
    made = list(jsonl.read(path))
    assert (summary.kept, dict(summary.rejected)) == (40, {})
    assert summary.failed == sum(t.failures > 0 for t in made)
    assert steps[-1] == (40, 40)
    assert [t.task for t in made] == [p.task().id for _, p in zip(range(40), problems(0, "train"), strict=False)]
    statuses = {o.status for t in made for turn in t.turns for o in turn.observations}
    assert statuses == {"ok", "error"}
    assert any(t.reward == 1.0 and t.failures for t in made)
    assert any(t.reward == -1.0 for t in made)
    # The teacher has no probabilities, and says so.
    assert all(s.logprobs is None for t in made for s in t.segments)
    write_demonstrations(recipe, chat, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == path.read_bytes()


class OnesSection(TaskSection):
    def build(self, count_tokens: object = None) -> Ones:
        return Ones()


def demonstrated(kind: str) -> list[str]:
    recipe = load_recipe(None, [f"task.kind={kind}", "rollout.max_tokens=2000", "sft.demonstrations=3"])
    return [t.text for t in asyncio.run(demonstrations(recipe, Chat(ByteTokenizer())))]


def test_a_family_without_a_teacher_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"task\.kind = '.*OnesSection': the task family 'ones' has no teacher"):
        demonstrated(f"{__name__}:OnesSection")


# Teachers behind a URL whose tokens may end before their reasoning does.


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
