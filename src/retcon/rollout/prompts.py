"""Prompts that leave no room to answer: a rollout of one has no turn, and teaches or measures nothing."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence

from retcon.chat.chat import Chat
from retcon.chat.template import Refused
from retcon.core.errors import RecipeError, TaskWarning
from retcon.core.sample import token_count
from retcon.core.texts import counted
from retcon.tasks.types import Task

PATIENCE = 10_000
"""Tasks in a row that may be left out before a stream is given up: it may be endless."""


class Unaskable(RecipeError):
    """What tasks ask cannot be put to the model."""


def prompt_ids(chat: Chat, task: Task) -> int:
    """Ids of the task's prompt, the template's among them. Raises Unaskable where the model's own template refuses
    it."""
    try:
        return token_count(chat.prompt(task.question, task.system, task.before))
    except Refused as error:
        raise Unaskable(f"task {task.id}: {error}") from error


def fitting(tasks: Iterable[Task], chat: Chat, max_tokens: int) -> Iterator[Task]:
    """The tasks whose prompts leave room for one token at least, in their order.

    Raises Unaskable where so many in a row do not fit that none can be expected to, or none of all does.
    """
    left_out: list[int] = []
    any_fitted = False
    for task in tasks:
        length = prompt_ids(chat, task)
        if length < max_tokens:
            left_out, any_fitted = [], True
            yield task
            continue
        left_out.append(length)
        if len(left_out) == PATIENCE:
            break
    if left_out and (len(left_out) == PATIENCE or not any_fitted):
        raise Unaskable(
            f"rollout.max_tokens = {max_tokens}: no room for an answer in {counted(len(left_out), 'prompt')} in a "
            f"row; the shortest has {counted(min(left_out), 'token')}: raise rollout.max_tokens"
        )


def warn_of_long(long: Sequence[int], looked: int, max_tokens: int) -> None:
    """Warns (TaskWarning) where prompts are left out for their length. long: their tokens, among `looked` prompts."""
    if long:
        warnings.warn(
            f"rollout.max_tokens = {max_tokens}: the prompts of {len(long)} of the first {looked} tasks leave no room "
            f"for an answer (the longest has {max(long)} tokens); such tasks are left out: raise "
            "rollout.max_tokens to train on them",
            TaskWarning,
            stacklevel=3,
        )


def refuse_long(tasks: Sequence[Task], chat: Chat, max_tokens: int, what: str) -> None:
    """Raises RecipeError where prompts leave no room to answer. what: names the tasks, such as `problems`."""
    lengths = {task.id: prompt_ids(chat, task) for task in tasks}
    long = {id: length for id, length in lengths.items() if length >= max_tokens}
    if long:
        id, longest = max(long.items(), key=lambda item: item[1])
        raise RecipeError(
            f"rollout.max_tokens = {max_tokens}: the prompts of {len(long)} of {len(tasks)} {what} leave no room for "
            f"an answer; the longest, of {id}, has {longest} tokens: raise rollout.max_tokens"
        )
