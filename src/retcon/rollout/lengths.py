"""Token limits that the recipe leaves open, from context and prompts.

    context ├ prompt ┤├──────── room ────────┤├─ lookahead ─┤
            └────────── max_tokens ──────────┘

The room is ROOM tokens (for a server with a stand-in tokenizer, whose tokens are short, a quarter of its context if
that is more), at most two thirds of what the longest prompt leaves of the context. A lookahead gets half as much again.
Observations may fill half of the room, shared by the turns.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError, TaskWarning
from retcon.core.texts import counted
from retcon.core.types import token_count
from retcon.tasks.registry import TaskSet, evaluation_tasks, training_prompts
from retcon.tasks.types import Task

if TYPE_CHECKING:
    from retcon.chat.chat import Chat

PATIENCE = 10_000
"""Consecutive tasks that may not fit before a stream, which may be endless, is given up."""


class PromptError(RecipeError):
    """Prompts of tasks do not fit, or the model's template refuses them."""


def count_prompt_ids(chat: Chat, task: Task) -> int:
    """Return the number of ids of a task's prompt. Raises PromptError if the model's template refuses it."""
    from retcon.chat.template import RenderError  # which is there already, with the chat

    try:
        return token_count(chat.prompt(task.question, task.system, task.before))
    except RenderError as error:
        raise PromptError(f"task {task.id}: {error}") from error


def drop_long_prompts(tasks: Iterable[Task], chat: Chat, max_tokens: int) -> Iterator[Task]:
    """Yield the tasks whose prompts leave room for at least one token.

    Raises PromptError if PATIENCE tasks in a row do not fit, or none does.
    """
    left_out: list[int] = []
    any_fitted = False
    for task in tasks:
        length = count_prompt_ids(chat, task)
        if length < max_tokens:
            left_out, any_fitted = [], True
            yield task
            continue
        left_out.append(length)
        if len(left_out) == PATIENCE:
            break
    if left_out and (len(left_out) == PATIENCE or not any_fitted):
        raise PromptError(
            f"rollout.max_tokens = {max_tokens}: no room for an answer in {counted(len(left_out), 'prompt')} in a "
            f"row; the shortest has {counted(min(left_out), 'token')}: raise rollout.max_tokens"
        )


def warn_of_long_prompts(long: Sequence[int], looked: int, max_tokens: int) -> None:
    """Warn (TaskWarning) of prompts that are left out. long: their lengths, among `looked` prompts."""
    if long:
        warnings.warn(
            f"rollout.max_tokens = {max_tokens}: the prompts of {len(long)} of the first {looked} tasks leave no room "
            f"for an answer (the longest has {max(long)} tokens); such tasks are left out: raise "
            "rollout.max_tokens to train on them",
            TaskWarning,
            stacklevel=3,
        )


def check_lengths(tasks: Sequence[Task], chat: Chat, max_tokens: int, what: str) -> None:
    """Raises RecipeError if a prompt leaves no room to answer. what: names the tasks, such as `problems`."""
    lengths = {task.id: count_prompt_ids(chat, task) for task in tasks}
    long = {id: length for id, length in lengths.items() if length >= max_tokens}
    if long:
        id, longest = max(long.items(), key=lambda item: item[1])
        raise RecipeError(
            f"rollout.max_tokens = {max_tokens}: the prompts of {len(long)} of {len(tasks)} {what} leave no room for "
            f"an answer; the longest, of {id}, has {longest} tokens: raise rollout.max_tokens"
        )


ROOM = 1024
"""Tokens of reasoning, calls and observations."""
LEAST_CHARS = 100
LOOK = 500
"""Tasks of training, and of evaluation, whose prompts are measured."""
UNKNOWN_CONTEXT = 4096
"""Context of a model whose configuration names none."""


@dataclass(frozen=True, slots=True)
class DerivedLength:
    """A derived value of a recipe's open key, with the reason."""

    key: str
    value: int
    why: str

    def __str__(self) -> str:
        return f"{self.key} = {self.value}: {self.why}"


@dataclass(frozen=True, slots=True)
class PromptLengths:
    """Measured prompts. looked: their number. longest: tokens. chars: mean characters per token."""

    looked: int
    longest: int
    chars: float


def open_keys(recipe: Recipe) -> list[str]:
    """Return the length keys that the recipe leaves open; none if its task family has lengths of its own."""
    if recipe.task.own_lengths and recipe.engine.room() is None:
        return []
    keys = {"rollout": ("max_tokens", "lookahead_tokens"), "sandbox": ("output_chars",)}
    return [f"{s}.{k}" for s, names in keys.items() for k in names if k not in getattr(recipe, s).model_fields_set]


def derive_lengths(recipe: Recipe, chat: Chat, tasks: TaskSet, context: int) -> list[DerivedLength]:
    """Derive values for `open_keys`. context: the model's, in tokens. Raises RecipeError if prompts leave no room."""
    missing = open_keys(recipe)
    if not missing:
        return []
    prompts = measure_prompts(_some(tasks), chat, context)
    whole = recipe.rollout.max_tokens
    found: list[DerivedLength] = []
    if "rollout.max_tokens" in missing:
        rest = context - prompts.longest
        most = ROOM if recipe.engine.room() is None else max(ROOM, context // 4)
        whole = prompts.longest + min(most, 2 * rest // 3)
        if whole <= prompts.longest:
            raise RecipeError(
                f"the prompts of the tasks have up to {prompts.longest} tokens and the model takes {context}: there is "
                "no room for an answer; leave long ones out (task.max_prompt_tokens) or use another model"
            )
        why = (
            f"the longest of {counted(prompts.looked, 'prompt')} has {counted(prompts.longest, 'token')}; "
            f"{whole - prompts.longest} more for "
        )
        limit = "what the model writes" if whole - prompts.longest == most else f"an answer, of a context of {context}"
        found.append(DerivedLength("rollout.max_tokens", whole, why + limit))
    room = max(1, whole - prompts.longest)
    if "rollout.lookahead_tokens" in missing:
        value = max(0, min(room // 2, context - whole))
        found.append(
            DerivedLength("rollout.lookahead_tokens", value, f"half as much again as the {room} tokens of an answer")
        )
    if "sandbox.output_chars" in missing:
        turns = recipe.rollout.max_turns
        value = max(LEAST_CHARS, int(room / 2 / turns * prompts.chars) // 50 * 50)
        why = f"half of those {room} tokens for {turns} observations, {prompts.chars:.1f} characters a token"
        found.append(DerivedLength("sandbox.output_chars", value, why))
    return found


def with_lengths(recipe: Recipe, derived: Sequence[DerivedLength]) -> Recipe:
    """Return the recipe with these values set."""
    for one in derived:
        section, _, key = one.key.partition(".")
        about = getattr(recipe, section).model_copy(update={key: one.value})
        recipe = recipe.model_copy(update={section: about})
    return recipe


def measure_prompts(tasks: Sequence[Task], chat: Chat, context: int) -> PromptLengths:
    """Measure the tasks' prompts. If the longest takes half of the context, the 99th percentile counts instead."""
    lengths = sorted(count_prompt_ids(chat, task) for task in tasks)
    if not lengths:
        return PromptLengths(0, 0, 4.0)
    longest = lengths[-1] if lengths[-1] <= context // 2 else lengths[-(-99 * (len(lengths) - 1) // 100)]
    texts = [task.question for task in tasks[:50]]
    tokens = sum(len(chat.tokenizer.encode(text)) for text in texts)
    return PromptLengths(len(lengths), longest, sum(map(len, texts)) / max(1, tokens))


def context_of(folder: Path) -> int:
    """Return the context of a folder's model by its config.json, else UNKNOWN_CONTEXT."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config = {**config, **(config.get("text_config") or {})}
    except (OSError, ValueError, TypeError):
        return UNKNOWN_CONTEXT  # loading the model will report the error
    for key in ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length"):
        if isinstance(config.get(key), int):
            return int(config[key])
    return UNKNOWN_CONTEXT


def _some(tasks: TaskSet) -> list[Task]:
    """Tasks of training and of evaluation, so that both get the same lengths."""
    return [*islice(training_prompts(tasks, 0), LOOK), *evaluation_tasks(tasks, LOOK, 0)]
