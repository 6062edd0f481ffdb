"""A small task set at the border of two stages: a task that was put off, as it had just come, is not lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.schema import Recipe
from retcon.tasks.types import Task
from retcon.train.prompts import Position, PromptStream
from training import Ones

pytestmark = pytest.mark.torch


@dataclass(frozen=True)
class Ordered(Ones):
    """Its tasks are letters; orders: of its epochs, one after another."""

    orders: tuple[str, ...] = ()
    seeds: list[int] = field(default_factory=list)

    def train(self, seed: int) -> Iterator[Task]:
        if seed not in self.seeds:
            self.seeds.append(seed)
        return (Task(name, "go", "1") for name in self.orders[self.seeds.index(seed) % len(self.orders)])


def stream(*orders: str, prompts: int = 2) -> PromptStream:
    recipe = Recipe.model_validate({"rl": {"prompts": prompts, "steps": 8}})
    return PromptStream(recipe, Ordered(orders=orders), chat=Chat(ByteTokenizer()), model="m")


def drawn(of: PromptStream, *counts: int) -> list[str]:
    """What stages with so many draws draw, one after another."""
    begin, found = Position(), []
    for count in counts:
        found.append("".join(task.id for task in islice(of.after(0, begin), count)))
        begin = of.position(count, begin)
    return found


def test_a_task_that_is_put_off_over_a_border_comes_first_after_it() -> None:
    """c ends an epoch and begins the next, where it is put off behind a, with which the stage ends."""
    of = stream("abc", "cab", "bca")
    assert drawn(of, 6) == ["abcacb"]
    assert drawn(of, 4, 2) == ["abca", "cb"]
    assert drawn(of, 4, 1, 1) == ["abca", "c", "b"]


@pytest.mark.parametrize("counts", [(4, 8), (2, 2, 2, 2, 2, 2), (6, 6), (4, 4, 4), (8, 4)])
def test_every_task_comes_as_often_as_any_other_wherever_stages_end(counts: tuple[int, ...]) -> None:
    found = "".join(drawn(stream("abc", "cab", "bca", "acb", "bac"), *counts))
    assert {name: found.count(name) for name in "abc"} == {"a": 4, "b": 4, "c": 4}


def test_a_task_may_be_put_off_twice_at_once() -> None:
    """Where epochs differ: c is twice too soon after the c before, and comes twice after the border."""
    assert drawn(stream("abc", "cd", "cab", prompts=3), 5, 2, 1) == ["abcda", "cb", "c"]
