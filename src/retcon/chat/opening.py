"""Open the chat of a model folder."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from retcon.chat.chat import Chat
from retcon.chat.checks import ChatCheck, Comparison
from retcon.chat.family import AUTO, FAMILIES, family_of_template
from retcon.chat.learning import LearnedChat, learn_chat
from retcon.chat.template import Source, Template, TemplateFraming, default_template, read_template
from retcon.chat.tokenizer import HubTokenizer, load_tokenizer
from retcon.chat.types import Tokenizer
from retcon.core.errors import CheckpointError, RecipeError, TaskWarning
from retcon.core.types import ToolSpec

THINKING = "enable_thinking"
"""Template variable that switches reasoning."""
KWARGS = "model.chat_template_kwargs"
"""Recipe key of a template's other variables."""
NO_TEMPLATE = "the folder has no chat template"
BLOCKS = "calls are written as ```python blocks, which the system prompt explains"

OWN_MASK = (
    "the template's {% generation %} marks other text than the loss mask, and is not used: training learns what the "
    "model samples, each turn with its end (retcon model check shows the difference)"
)


def open_chat(
    folder: str | Path,
    *,
    style: str = AUTO,
    system: str | None = None,
    tools: Sequence[ToolSpec] = (),
    thinking: bool | None = None,
    variables: Mapping[str, object] | None = None,
) -> Chat:
    """Open a Hugging Face folder's chat by its tokenizer and template.

    `auto` learns the syntax of calls from the template, and checks it. A TaskWarning says where calls are code blocks,
    as the template shows none that can be parsed, and where its `{% generation %}` is not the loss mask. style: a
    shipped family instead. thinking: the template's `enable_thinking`, not set where None. variables: its other
    variables. Raises RecipeError where the template cannot be followed or lacks a variable, CheckpointError for files
    that cannot be read, lack a control token, or are of another model (a tokenizer with more tokens), MissingExtra.
    """
    learned = check_folder(folder, style=style, system=system, tools=tools, thinking=thinking, variables=variables)
    if learned.why_blocks and tools:
        _warn_once(f"{folder}: {BLOCKS}: {learned.why_blocks}")
    if learned.check.mask is False:
        _warn_once(f"{folder}: {OWN_MASK}")
    return learned.chat


@cache
def _warn_once(text: str) -> None:
    """Warn in a process once: a command opens its model's chat before its work and for it."""
    warnings.warn(text, TaskWarning, stacklevel=4)


def check_folder(
    folder: str | Path,
    *,
    style: str = AUTO,
    system: str | None = None,
    tools: Sequence[ToolSpec] = (),
    thinking: bool | None = None,
    variables: Mapping[str, object] | None = None,
    tokenizer: HubTokenizer | None = None,
) -> LearnedChat:
    """Open a folder's chat as `open_chat` does, with its check, without warnings.

    tokenizer: the folder's, read before; Gemma 3's takes a second.
    """
    tokenizer = tokenizer or load_tokenizer(folder)
    _check_vocabulary(Path(folder), tokenizer)
    if style != AUTO:
        return _shipped(Chat(tokenizer, style=style, system=system, tools=tools))
    read = read_template(Path(folder))
    given = dict(variables or {}) | ({} if thinking is None else {THINKING: thinking})
    _check_variables(folder, given, None if read is None else read.compiled(given))
    source = read or default_template(Path(folder), tokenizer.controls)
    if source is None:
        known = f"set model.style to one of {', '.join(FAMILIES.names)}, or add the model's chat_template.jinja"
        raise RecipeError(f"{folder} has no chat template, and its tokenizer no token that ends a text: {known}")
    ends = _ends(Path(folder), source, tokenizer)
    learned = chat_by_template(source.compiled(given), tokenizer, ends, system=system, tools=tools)
    return replace(learned, why_blocks=learned.why_blocks and NO_TEMPLATE) if read is None else learned


def template_for(folder: str | Path, style: str) -> str:
    """Return the chat template to save with a trained model, if any."""
    if style != AUTO:
        return FAMILIES.find(style).template
    if read_template(Path(folder)) is not None:
        return ""
    source = default_template(Path(folder), load_tokenizer(folder).controls)
    return "" if source is None else source.text


def chat_by_template(
    template: Template, tokenizer: Tokenizer, ends: Sequence[str], *, system: str | None = None,
    tools: Sequence[ToolSpec] = (),
) -> LearnedChat:  # fmt: skip
    """Open a chat by its template, and check it. ends: as in `learn_chat`. Raises RecipeError."""
    family = family_of_template(template.text)
    if family is None:
        return learn_chat(template, tokenizer, ends, system=system, tools=tools)
    if family.template == template.text:
        return _shipped(Chat(tokenizer, style=family.name, system=system, tools=tools))
    framing = TemplateFraming(template, family)
    check = Comparison(Chat(tokenizer, framing=framing, family=family), template).run()
    if not check.trains:
        raise RecipeError(f"{template.where}: this chat template cannot be followed: {'; '.join(check.differs[:2])}")
    return LearnedChat(Chat(tokenizer, system=system, tools=tools, framing=framing, family=family), check)


def _check_variables(folder: str | Path, given: Mapping[str, object], template: Template | None) -> None:
    """Raise RecipeError for a variable that the model's template does not read."""
    known = set() if template is None else template.reads
    for name in given:
        if name not in known:
            key = f"model.thinking = '{'on' if given[name] else 'off'}'" if name == THINKING else f"{KWARGS}.{name}"
            why = f"{folder} has no chat template" if template is None else f"{template.where} does not ask for {name}"
            read = f"; it asks for {', '.join(sorted(known))}" if known else ""
            raise RecipeError(f"{key} would change nothing, as {why}{read}: leave it out")


def _shipped(chat: Chat) -> LearnedChat:
    """Return a shipped family's chat, which tests compare with its template."""
    check = ChatCheck(chat.family.name, renders=True, parses=True, parallel=True, observation=True, splice=True)
    return LearnedChat(chat, check)


def _ends(folder: Path, source: Source, tokenizer: Tokenizer) -> list[str]:
    """Return the control tokens that end a text by the model's files, the tokenizer's first."""
    ends = [source.tokens["eos_token"]]
    for name in ("generation_config.json", "config.json"):
        try:
            found = json.loads((folder / name).read_text(encoding="utf-8")).get("eos_token_id")
        except (OSError, ValueError, AttributeError):
            continue  # loading the weights reports it
        ends += [
            tokenizer.decode([i])
            for i in (found if isinstance(found, list) else [found])
            if type(i) is int and 0 <= i < tokenizer.size
        ]
    return [end for end in dict.fromkeys(ends) if end in tokenizer.controls]


def _check_vocabulary(folder: Path, tokenizer: HubTokenizer) -> None:
    """Raise CheckpointError where the tokenizer has more tokens than the model."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        known = (config.get("text_config") or config).get("vocab_size")
    except (OSError, ValueError, AttributeError):
        return  # a tokenizer alone, or an error that loading the model reports
    if isinstance(known, int) and tokenizer.size > known:
        raise CheckpointError(
            f"{folder / 'tokenizer.json'} has {tokenizer.size:,} tokens and the model {known:,}: they are not of one "
            "model"
        )
