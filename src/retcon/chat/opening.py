"""The chat of a model folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from retcon.chat.chat import Chat
from retcon.chat.family import AUTO, recognised
from retcon.chat.template import Templated, read_template
from retcon.chat.tokenizer import HubTokenizer, load_tokenizer
from retcon.core.errors import CheckpointError, RecipeError
from retcon.core.types import ToolSpec

THINKING = "enable_thinking"
"""What templates call the variable by which a model is told whether to think."""


def open_chat(
    folder: str | Path,
    *,
    style: str = AUTO,
    system: str | None = None,
    tools: Sequence[ToolSpec] = (),
    thinking: bool | None = None,
) -> Chat:
    """The chat of the model in a Hugging Face folder, by its tokenizer and, where style is `auto`, its own template.

    `auto` takes the family whose marks the template holds, and frames messages as the template does; where that is a
    family's own, or there is none and the tokenizer's control tokens tell the family, in its shipped framing, which any
    other style takes too.
    thinking: what a template is given as `enable_thinking`, nothing where None. Raises RecipeError where the family
    cannot be told, the template shows no tools (with what to set instead) or does not ask for what it is to be given,
    CheckpointError for files that cannot be read, lack a control token, or are of another model (a tokenizer with more
    tokens than the model has), MissingExtra.
    """
    tokenizer = load_tokenizer(folder)
    if isinstance(tokenizer, HubTokenizer):
        _refuse_foreign(Path(folder), tokenizer)
    if style != AUTO:
        return Chat(tokenizer, style=style, system=system, tools=tools)
    source = read_template(Path(folder))
    if source is None:
        family = recognised(tokenizer.controls, f"{folder}, which has no chat template: the tokenizer")
    else:
        family = recognised(source.text, f"{source.where}: the chat template")
    if thinking is not None and (source is None or THINKING not in source.text):
        said = f"{folder} has no chat template" if source is None else f"{source.where} does not ask for {THINKING}"
        raise RecipeError(
            f"model.thinking = '{'on' if thinking else 'off'}' would change nothing, as {said}: leave it out"
        )
    if source is None or source.text == family.template:
        return Chat(tokenizer, style=family.name, system=system, tools=tools)
    variables: Mapping[str, object] = {} if thinking is None else {THINKING: thinking}
    framing = Templated(source.compiled(variables), family)
    return Chat(tokenizer, style=family.name, system=system, tools=tools, framing=framing)


def _refuse_foreign(folder: Path, tokenizer: HubTokenizer) -> None:
    """Raises CheckpointError where the tokenizer has tokens that the model beside it does not know."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        known = (config.get("text_config") or config).get("vocab_size")
    except (OSError, ValueError, AttributeError):
        return  # a tokenizer alone; whoever loads the model says what is wrong with it
    if isinstance(known, int) and tokenizer.size > known:
        raise CheckpointError(
            f"{folder / 'tokenizer.json'} has {tokenizer.size:,} tokens and the model {known:,}: they are not of one "
            "model"
        )
