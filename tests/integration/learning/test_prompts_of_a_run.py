"""The prompts of a run: which streams they come from, what of them is looked at first, and what tells them apart."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.schema import Recipe, SelectSection
from retcon.core.errors import RecipeError, TaskWarning
from retcon.core.seeds import derive
from retcon.rollout.lengths import prompt_ids
from retcon.tasks.types import Task
from retcon.train import prompts as module
from retcon.train.prompts import Position, PromptStream, refuse_idle_bounds
from training import Ones

pytestmark = pytest.mark.torch
CHAT = Chat(ByteTokenizer())
BARE = prompt_ids(CHAT, Task("", "", ""))
"""Tokens of a prompt without a question."""


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


@pytest.mark.parametrize(
    ("steps", "select", "looked"),
    [
        (None, {}, 16),
        (3, {}, 6),
        (3, {"dynamic": True, "max_extra": 0.5}, 9),
        (3, {"dynamic": True, "max_extra": 1.5}, 15),
        (10**9, {}, 20),
    ],
)
def test_what_the_steps_can_need_is_looked_at_first_and_no_more(
    steps: int | None, select: dict[str, object], looked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for what they are, and once for whether they can be drawn."""
    monkeypatch.setattr(module, "LOOK", 20)
    tasks = Asking()
    stream(tasks, steps=steps, **select)
    assert tasks.given == [looked, looked]


def identity(tasks: Ones, *, seed: int = 0) -> str:
    inputs = stream(tasks, steps=2, seed=seed).inputs
    assert inputs.keys() == {"tasks"}
    return inputs["tasks"]


def test_a_run_is_identified_by_the_tasks_that_it_can_need() -> None:
    """What comes after them may be other tasks, as of a file that has grown; also another run's order is another."""
    own = identity(Asking(questions="abcd"))
    assert own.startswith("ones ")
    assert own == identity(Asking(questions="abcdef"))
    others = (
        Asking(questions="abce"), Asking(questions="bacd"), Asking(questions="abcd", system="Be brief."),
        Asking(questions="abcd", name="twos"),
    )  # fmt: skip
    assert len({own, *map(identity, others)}) == 5
    assert identity(Ones(), seed=0) != identity(Ones(), seed=1)


def test_a_prompt_that_leaves_no_room_for_one_token_is_left_out_and_told() -> None:
    """In the middle of others; and where there is one more token it is drawn."""
    tasks = Asking(questions=["a", "bb", "c"])
    with pytest.warns(TaskWarning, match=rf"the prompts of 1 of the first 3 tasks .* longest has {BARE + 2} tokens\)"):
        of = stream(tasks, max_tokens=BARE + 2)
    assert [task.id for task in islice(of.after(0), 4)] == ["a", "c", "a", "c"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [task.id for task in islice(stream(tasks, max_tokens=BARE + 3).after(0), 3)] == ["a", "bb", "c"]
        with pytest.raises(RecipeError, match="no room for an answer in 3 prompts in a row"):
            stream(replace(tasks, questions=["aa", "bb", "cc"]), max_tokens=BARE + 2)


def test_bounds_of_pass_rates_are_idle_without_the_rates() -> None:
    def select(**keys: object) -> SelectSection:
        return Recipe.model_validate({"select": keys}).select

    refuse_idle_bounds(select())
    refuse_idle_bounds(select(min_pass_rate=0.2, pass_rates="rates.jsonl"))
    refuse_idle_bounds(select(pass_rates="rates.jsonl"))
    for key in ("min_pass_rate", "max_pass_rate"):
        said = rf"^stage 2, b: select\.{key} = 0\.5 leaves out nothing .* or leave {key} out$"
        with pytest.raises(RecipeError, match=said):
            refuse_idle_bounds(select(**{key: 0.5}), "stage 2, b: ")
        with pytest.raises(RecipeError, match=rf"^select\.{key} = 0\.5 leaves out"):
            refuse_idle_bounds(select(**{key: 0.5}))
