"""A prompt that is a list of messages, as other frameworks have it, as a task's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retcon.core.errors import RecipeError
from retcon.core.seeds import derive
from retcon.tasks.types import Task


def task_of(
    prompt: str | Sequence[Mapping[str, Any]], *, set: str, number: int, answer: object = "", after: str = ""
) -> Task:
    """Row `number` of a set of tasks. after: what stands after the question.

    Raises RecipeError where it is neither a text nor messages, a message is no text, or of another role, or the last
    one is not the user's.
    """
    where = f"row {number} of {set}"
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not isinstance(messages, Sequence) or not all(isinstance(message, Mapping) for message in messages):
        raise RecipeError(f"{where}: its prompt is neither a text nor a list of messages: {prompt!r:.80}")
    told = [(str(message.get("role")), _text(message, where)) for message in messages]
    system = told.pop(0)[1] if told and told[0][0] == "system" else None
    if not told or told[-1][0] != "user":
        raise RecipeError(f"{where}: its prompt does not end with a message of the user, but: {_roles(told)}")
    *before, (_, question) = told
    if any(role not in ("user", "assistant") for role, _ in before):
        raise RecipeError(f"{where}: before the question only user and assistant may have spoken, not: {_roles(told)}")
    wanted = "" if answer is None else str(answer)
    id = f"{set}/{number}-{derive(question, wanted, after, *(text for _, text in before)) % 16**6:06x}"
    return Task(id, question + after, wanted, system, {}, tuple(before))


def _text(message: Mapping[str, Any], where: str) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") == "text"]
    if len(texts) < len(parts) or None in texts:
        raise RecipeError(f"{where}: a message of the {message.get('role')} is not text: {str(content)[:80]}")
    return "\n".join(map(str, texts))


def _roles(told: Sequence[tuple[str, str]]) -> str:
    return ", ".join(role for role, _ in told) or "nothing"
