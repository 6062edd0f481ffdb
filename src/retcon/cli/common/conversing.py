"""The recipe of a command by which a person, or a harness, converses with a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retcon.config.schema import Recipe

ROOM = 8192
"""Tokens of a conversation at most, where the model takes more."""
ANSWER = 1024
"""Of one message, of a server."""
CHARS = 2000


def conversing_recipe(url: str | None, folder: Path, tools: Sequence[str], overrides: Sequence[str]) -> Recipe:
    """Of the lengths that the model takes, unless `overrides` say otherwise. url: of a server of chat completions, None
    for the model in `folder`."""
    from retcon.config.load import load_recipe
    from retcon.rollout.lengths import context_of

    given = [f"rollout.tools={json.dumps(list(tools))}", f"sandbox.output_chars={CHARS}"]
    if url is not None:
        given += ["engine.kind=openai", f"engine.url={url}", f"engine.answer_tokens={ANSWER}"]
    recipe = load_recipe(None, [*given, *overrides])
    room = min(ROOM, recipe.engine.room() or context_of(folder))
    lengths = [f"rollout.max_tokens={2 * room // 3}", f"rollout.lookahead_tokens={room - 2 * room // 3}"]
    return load_recipe(None, [*given, *lengths, *overrides])
