"""Lengths follow the model's context and the problems' prompts where the recipe is silent, and only there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from retcon.build import resolve_lengths
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError
from retcon.core.seeds import derive
from retcon.rollout import lengths as prompts
from retcon.rollout.lengths import (
    LOOK,
    PromptLengths,
    context_of,
    derive_lengths,
    drop_long_prompts,
    measure_prompts,
)
from retcon.tasks.types import Task

CHAT = Chat(ByteTokenizer())
GLUE = sum(len(segment.ids or ()) for segment in CHAT.prompt(""))


def recipe(tmp_path: Path, *overrides: str, characters: int = 100 - GLUE, letter: str = "x") -> Recipe:
    """Over one problem to train on whose prompt has so many characters, which are as many tokens, and a short one."""
    rows = [{"question": letter * characters, "answer": "1"}, {"question": "y", "answer": "1"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_recipe(
        None,
        ["task.kind=file", f"task.path={json.dumps(str(tmp_path / 'a.jsonl'))}", "task.evaluation_share=0", *overrides],
    )


def derived(of: Recipe, context: int) -> dict[str, int]:
    return {one.key: one.value for one in derive_lengths(of, CHAT, of.task.build(), context)}


def test_a_large_context_leaves_the_room_that_is_usual(tmp_path: Path) -> None:
    assert derived(recipe(tmp_path), 8192) == {
        "rollout.max_tokens": 100 + 1024, "rollout.lookahead_tokens": 512, "sandbox.output_chars": 100,
    }  # fmt: skip
    two = recipe(tmp_path, "rollout.max_turns=2")
    assert [str(one) for one in derive_lengths(two, CHAT, two.task.build(), 8192)] == [
        "rollout.max_tokens = 1124: the longest of 2 prompts has 100 tokens; 1024 more for what the model writes",
        "rollout.lookahead_tokens = 512: half as much again as the 1024 tokens of an answer",
        "sandbox.output_chars = 250: half of those 1024 tokens for 2 observations, 1.0 characters a token",
    ]


def test_characters_of_several_tokens_make_shorter_observations_in_whole_fifties(tmp_path: Path) -> None:
    """99 ids of questions have 50 characters: half of 1200 tokens come to 303 of them."""
    own = recipe(tmp_path, "rollout.max_turns=1", f"rollout.max_tokens={GLUE + 98 + 1200}", characters=49, letter="é")
    assert derived(own, 8192)["sandbox.output_chars"] == 300


def test_a_long_problem_of_the_evaluation_has_room_too(tmp_path: Path) -> None:
    """Else a run would be refused after its training, when it is to be measured."""
    own = recipe(tmp_path, "task.evaluation_share=0.5", characters=1)
    tasks = own.task.build()

    class LongHeldOut:
        name, system, grade = tasks.name, tasks.system, tasks.grade

        def train(self, seed: int) -> Iterator[Task]:
            return iter([Task("short", "x", "1")])

        def evaluation(self, count: int, seed: int) -> list[Task]:
            return [Task("long", "x" * (200 - GLUE), "1")]

    found = {one.key: one.value for one in derive_lengths(own, CHAT, LongHeldOut(), 8192)}
    assert found["rollout.max_tokens"] == 200 + 1024


def test_so_many_tasks_are_looked_at_of_training_and_of_evaluation_whatever_the_runs_seed(tmp_path: Path) -> None:
    own = recipe(tmp_path, "run.seed=3")
    tasks = own.task.build()
    given: list[tuple[int, ...]] = []

    class Many:
        name, system, grade = tasks.name, tasks.system, tasks.grade

        def train(self, seed: int) -> Iterator[Task]:
            given.append((seed,))
            return (Task(str(n), "x" * (n + 1), "1") for n in range(LOOK + 100))

        def evaluation(self, count: int, seed: int) -> list[Task]:
            given.append((count, seed))
            return [Task(str(n), "x", "1") for n in range(count)]

    assert f"of {2 * LOOK:,} prompts has {GLUE + LOOK} tokens" in derive_lengths(own, CHAT, Many(), 8192)[0].why
    assert given == [(derive("prompts", 0),), (LOOK, 0)]


def test_what_a_server_writes_has_a_quarter_of_the_context_that_is_counted_in_short_tokens(tmp_path: Path) -> None:
    served = recipe(tmp_path, "engine.kind=openai")
    assert derived(served, 32770)["rollout.max_tokens"] == 100 + 8192
    assert derived(served, 2000)["rollout.max_tokens"] == 100 + 1024


def test_a_small_context_is_never_exceeded(tmp_path: Path) -> None:
    found = derived(recipe(tmp_path), 400)
    assert found["rollout.max_tokens"] == 100 + 200
    assert found["rollout.max_tokens"] + found["rollout.lookahead_tokens"] == 400


def test_what_bounds_the_room_is_reported(tmp_path: Path) -> None:
    bounds = {8192: "1024 more for what the model writes", 400: "200 more for an answer, of a context of 400"}
    for context, told in bounds.items():
        assert told in derive_lengths(recipe(tmp_path), CHAT, recipe(tmp_path).task.build(), context)[0].why


def test_what_the_recipe_says_stays_and_the_rest_follows_it(tmp_path: Path) -> None:
    own = recipe(tmp_path, "rollout.max_tokens=300", "sandbox.output_chars=24")
    assert derived(own, 8192) == {"rollout.lookahead_tokens": 100}
    assert derived(own, 350) == {"rollout.lookahead_tokens": 50}


def test_a_prompt_that_fills_the_context_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"up to 1\d\d tokens and the model takes 100: .*task\.max_prompt_tokens"):
        derived(recipe(tmp_path, characters=150), 100)
    with pytest.raises(RecipeError, match="up to 100 tokens and the model takes 101: there is no room"):
        derived(recipe(tmp_path), 101)
    full = recipe(tmp_path, "rollout.max_tokens=100")
    assert derived(full, 8192) == {"rollout.lookahead_tokens": 0, "sandbox.output_chars": 100}


def test_one_odd_prompt_in_a_hundred_does_not_decide_for_all() -> None:
    def longest(*lengths: int) -> int:
        return (
            measure_prompts([Task(str(n), "x" * length, "") for n, length in enumerate(lengths)], CHAT, 1000).longest
            - GLUE
        )

    usual = list(range(1, 101))
    assert longest(*usual, 600) == 100
    assert longest(*usual, 500 - GLUE) == 500 - GLUE, "half of the context is room enough"
    assert longest(*usual, 501 - GLUE) == 100
    assert longest(*usual, 600, 601) == 600, "two in a hundred count"


def test_where_there_are_no_tasks_a_token_is_taken_for_four_characters() -> None:
    assert measure_prompts([], CHAT, 1000) == PromptLengths(0, 0, 4.0)
    assert measure_prompts([Task("t", "x", "")], CHAT, 1000) == PromptLengths(1, GLUE + 1, 1.0)
    some = [Task(str(n), "é" if n == 50 else "x", "") for n in range(51)]
    assert measure_prompts(some, CHAT, 1000).chars == 1.0, "fifty are enough, and the next one is of two tokens"


def test_a_stream_without_end_none_of_which_fits_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "PATIENCE", 5)
    tasks = (Task(str(n), "x" * (16 if n == 2 else 20), "") for n in range(50))
    with pytest.raises(RecipeError, match=rf"no room for an answer in 5 prompts in a row; .* has {GLUE + 16} tokens"):
        next(drop_long_prompts(tasks, CHAT, GLUE + 1))
    assert len(list(islice(tasks, 50))) == 45, "nobody looks further"
    mixed = [Task(str(n), "" if n % 5 == 4 else "x" * 20, "") for n in range(14)]
    assert [task.id for task in drop_long_prompts(mixed, CHAT, GLUE + 1)] == ["4", "9"], "four in a row are no five"


def test_the_quickstart_has_the_lengths_that_were_chosen_for_it(tmp_path: Path) -> None:
    own = Recipe()
    assert resolve_lengths(own, tmp_path) == (own, [])


def test_a_models_context_is_read_from_its_configuration(tmp_path: Path) -> None:
    assert context_of(tmp_path) == 4096
    (tmp_path / "config.json").write_text('{"text_config": {"max_position_embeddings": 77}}')
    assert context_of(tmp_path) == 77
    for key in ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length"):
        (tmp_path / "config.json").write_text(json.dumps({key: 78}))
        assert context_of(tmp_path) == 78
