"""The prompts of a run: which streams they come from, what of them is looked at first, and what tells them apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.schema import Recipe
from retcon.core.seeds import derive
from retcon.tasks.types import Task
from retcon.train.prompts import Position, PromptStream
from training import Ones

pytestmark = pytest.mark.torch
CHAT = Chat(ByteTokenizer())


@dataclass(frozen=True)
class Asking(Ones):
    """Tasks of these questions, which are their ids, too, or without end. seeds: that were asked for. given: how many
    tasks each stream has given."""

    questions: Sequence[str] = ()
    seeds: list[int] = field(default_factory=list)
    given: list[int] = field(default_factory=list)

    def train(self, seed: int) -> Iterator[Task]:
        self.seeds.append(seed)
        self.given.append(0)
        for name in self.questions or map(str, count()):
            self.given[-1] += 1
            yield Task(name, name, "1")


def stream(
    tasks: Ones, *, steps: int | None = None, seed: int = 0, max_tokens: int = 320, **select: object
) -> PromptStream:
    """Of a run of 8 steps with two prompts each."""
    recipe = Recipe.model_validate(
        {
            "rl": {"prompts": 2, "steps": 8},
            "run": {"seed": seed},
            "select": select,
            "rollout": {"max_tokens": max_tokens},
        }
    )
    return PromptStream(recipe, tasks, chat=CHAT, model="m", steps=steps)


def test_each_epoch_is_drawn_by_the_runs_seed_and_its_number_wherever_a_stage_begins() -> None:
    tasks = Asking(questions="abc")
    of, seeds = stream(tasks, seed=5), [derive("prompts", 5), *(derive("prompts", 5, epoch) for epoch in range(1, 5))]
    tasks.seeds.clear()
    assert "".join(task.id for task in islice(of.after(0), 7)) == "abcabca"
    assert tasks.seeds == seeds[:3]
    begin = of.position(4, Position())
    assert begin == Position(1, 1, ())
    tasks.seeds.clear()
    assert "".join(task.id for task in islice(of.after(0, begin), 9)) == "bcabcabca"
    assert tasks.seeds == seeds[1:5]
