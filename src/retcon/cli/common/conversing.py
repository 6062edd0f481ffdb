"""The recipe of a command by which a person, or a harness, converses with a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from retcon.cli.common.importing import import_training
from retcon.core.errors import RecipeError
from retcon.core.texts import is_url

if TYPE_CHECKING:
    from retcon.config.schema import Recipe

ROOM = 8192
"""Tokens of a conversation at most, where a model in a folder takes more."""
ANSWER = 1024
"""Of one message, of a server."""
CHARS = 2000


def conversing(
    model: str, tools: Sequence[str], overrides: Sequence[str], *, answer_tokens: int = ANSWER
) -> tuple[Recipe, Path]:
    """The recipe, of the lengths that the model takes unless `overrides` say otherwise, and the folder of the model; of
    one behind a URL that of model.path, whose tokenizer counts, the base model's where it is not given. answer_tokens:
    of one message of a server, 0 where requests say it.

    Raises RecipeError, also for a harness, which nobody would ask, CheckpointError where there is no such model,
    MissingExtra where it computes here and that needs packages which are not installed.
    """
    from retcon.models.locating import BASE, locate

    served = is_url(model)
    folder = locate(BASE if served else model)
    recipe = _recipe(model if served else None, folder, tools, overrides, answer_tokens)
    if recipe.rollout.harness:
        raise RecipeError("rollout.harness: whoever converses makes the rollouts here: leave it out")
    recipe.task.refuse_rollouts(recipe)
    if served and "path" in recipe.model.model_fields_set:
        folder = locate(recipe.model.path)
    if recipe.engine.in_process:
        import_training()
    return recipe, folder


def _recipe(
    url: str | None, folder: Path, tools: Sequence[str], overrides: Sequence[str], answer_tokens: int
) -> Recipe:
    """url: of a server of chat completions, None for the model in `folder`."""
    from retcon.cli.common.reading import READS
    from retcon.config.load import load_recipe
    from retcon.rollout.lengths import context_of

    given = [f"rollout.tools={json.dumps(list(tools))}", f"sandbox.output_chars={CHARS}", "sandbox.patience=0"]

    def read(lengths: Sequence[str]) -> Recipe:
        return load_recipe(None, [*given, *lengths, *overrides], reads=READS["conversing"])

    if url is not None:
        given += ["engine.kind=openai", f"engine.url={url}"]
        if read([]).engine.kind == "openai":  # other kinds have a patience of their own
            given += [f"engine.answer_tokens={answer_tokens}", "engine.patience=0"]
    recipe = read([])
    room = recipe.engine.room() or min(ROOM, context_of(folder))
    lengths = [f"rollout.max_tokens={2 * room // 3}", f"rollout.lookahead_tokens={room - 2 * room // 3}"]
    return read(lengths)
