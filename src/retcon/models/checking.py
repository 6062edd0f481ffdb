"""Check that a model folder is complete and its parts belong together."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from retcon.chat.chat import Chat
from retcon.chat.checks import ChatCheck
from retcon.chat.learning import LearnedChat
from retcon.chat.opening import BLOCKS, check_folder
from retcon.chat.template import RenderError, Template, read_template
from retcon.chat.tokenizer import HubTokenizer, load_tokenizer
from retcon.core.errors import CheckpointError, RecipeError
from retcon.core.types import ids_of
from retcon.models.loading import load_config, load_model

QUESTION = "What is the capital of France?"
SYSTEM = "Answer in one word."
TEXT = "Water boils at 100 degrees, and ice melts at 0.\n\tif x >= 10:\n\t\treturn f'{x:.2f}'  # Größe → naïve, 東京"
ENGLISH = "The sun rises in the east and sets in the west. There are seven days in a week and twelve months in a year."
CONTINUATION = 12
"""Tokens of the greedy answer."""


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """Findings about a model folder.

    parameters, vocabulary: numbers of the model's parameters and of the tokenizer's tokens. continuation: the greedy
    answer to QUESTION. nats: mean loss per token of plain English. chat: None where the template cannot be followed.
    warnings: what may not work as expected.
    """

    folder: Path
    architecture: str
    parameters: int
    vocabulary: int
    continuation: str
    nats: float
    chat: ChatCheck | None = None
    source: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def trains(self) -> bool:
        """Whether training with its chat is right."""
        return self.chat is not None and self.chat.trains


def check_model_folder(folder: Path) -> ModelCheck:
    """Load a model in float32; check weights, tokenizer, chat template and logits.

    Raises CheckpointError, which names the file, for a model that cannot be used.
    """
    config = load_config(folder)
    tokenizer = load_tokenizer(folder)
    text_config = config.get_text_config()
    size = tokenizer.size
    if size > text_config.vocab_size:
        raise CheckpointError(
            f"{folder / 'tokenizer.json'} has {size} tokens and the model {text_config.vocab_size}: they are not of "
            "one model"
        )
    source = read_template(folder)
    template = None if source is None else source.compiled()
    learned, odd = _chat(folder, tokenizer)
    warnings = [*_special_tokens(folder, tokenizer, config), *_round_trip(tokenizer), *_template(template), *odd]
    model = load_model(folder)
    _check_finite(folder, model)
    with torch.inference_mode():
        nats = _loss(model, tokenizer)
        asked = _prompt_ids(tokenizer, learned.chat if learned else None, template)
        continuation = _continuation(model, tokenizer, asked)
    if not math.isfinite(nats):
        raise CheckpointError(f"{folder}: its logits are not finite")
    if nats > 0.9 * math.log(size):
        warnings.append(
            f"plain English costs it {nats:.1f} nats a token, and chance {math.log(size):.1f}: it is untrained, or the "
            "tokenizer is another model's"
        )
    return ModelCheck(
        folder,
        type(model).__name__,
        sum(p.numel() for p in model.parameters()),
        size,
        continuation,
        nats,
        learned.check if learned else None,
        _source(folder),
        tuple(warnings),
    )


def _source(folder: Path) -> dict[str, Any]:
    """Return where the model was fetched from, if known."""
    file = folder / "source.json"
    try:
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error


def _eos(folder: Path) -> str | None:
    """Return the token that ends a text by the tokenizer's file."""
    about = folder / "tokenizer_config.json"
    try:
        token = json.loads(about.read_text(encoding="utf-8")).get("eos_token") if about.is_file() else None
        return str(token if isinstance(token, str) else token["content"]) if token else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{about} cannot be read: {error!r}") from error


def _special_tokens(folder: Path, tokenizer: HubTokenizer, config: Any) -> Iterator[str]:
    """Yield warnings about end-of-text tokens. Raises CheckpointError for ids outside the tokenizer."""
    ends = config.get_text_config().eos_token_id
    generation = folder / "generation_config.json"
    try:
        if generation.is_file():
            ends = json.loads(generation.read_text(encoding="utf-8")).get("eos_token_id", ends)
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{generation} cannot be read: {error}") from error
    ids: Sequence[Any] = [] if ends is None else ends if isinstance(ends, list) else [ends]
    token = tokenizer.library.id_to_token
    known = (isinstance(i, int) and 0 <= i < 2**31 and token(i) is not None for i in ids)
    if wrong := [i for i, there in zip(ids, known, strict=True) if not there]:
        raise CheckpointError(
            f"{folder}: the model ends a text with id {wrong[0]}, which its tokenizer does not have: they are not of "
            "one model"
        )
    eos = _eos(folder)
    if eos and ids and (end := tokenizer.library.token_to_id(eos)) is not None and end not in ids:
        named = ", ".join(repr(token(i)) for i in ids)
        yield f"tokenizer_config.json ends a text with {eos!r}, the model's configuration with {named}"


def _round_trip(tokenizer: HubTokenizer) -> Iterator[str]:
    back = tokenizer.decode(tokenizer.encode(TEXT))
    if back != TEXT:
        at = next((n for n, (a, b) in enumerate(zip(TEXT, back, strict=False)) if a != b), min(len(TEXT), len(back)))
        yield f"its tokenizer changes text: {TEXT[at : at + 12]!r} comes back as {back[at : at + 12]!r}"


def _chat(folder: Path, tokenizer: HubTokenizer) -> tuple[LearnedChat | None, list[str]]:
    """Return the model's chat, None where its template cannot be followed, and warnings."""
    try:
        learned = check_folder(folder, tokenizer=tokenizer)
    except RecipeError as error:
        return None, [str(error)]
    style = learned.chat.style
    if read_template(folder) is None and not learned.why_blocks:
        return learned, [f"it has no chat template: prompts are rendered in the style {style}, by its control tokens"]
    return learned, [f"{BLOCKS}: {learned.why_blocks}"] if learned.why_blocks else []


def _template(template: Template | None) -> Iterator[str]:
    """Yield what the template leaves out. Raises CheckpointError if it cannot be rendered."""
    if template is None:
        return
    user = {"role": "user", "content": QUESTION}
    if QUESTION not in template.render([user]):
        raise CheckpointError(f"{template.where}: the chat template leaves out what the user says")
    try:
        if SYSTEM not in template.render([{"role": "system", "content": SYSTEM}, user]):
            yield "its chat template leaves out the system prompt"
    except RenderError as error:
        yield f"its chat template refuses a system prompt: {error.__cause__}"


def _check_finite(folder: Path, model: PreTrainedModel) -> None:
    for name, tensor in model.named_parameters():
        if not bool(torch.isfinite(torch.linalg.vector_norm(tensor, ord=math.inf))):  # in one pass, without a copy
            raise CheckpointError(f"{folder}: the weights of {name} are not all finite")


def _loss(model: PreTrainedModel, tokenizer: HubTokenizer) -> float:
    ids = torch.tensor([tokenizer.library.encode(ENGLISH).ids])
    logits = model(input_ids=ids).logits[0].float()
    return float(cross_entropy(logits[:-1], ids[0, 1:]))


def _prompt_ids(tokenizer: HubTokenizer, chat: Chat | None, template: Template | None) -> Sequence[int]:
    """Return the ids of QUESTION, by the model's chat, else by the folder's template."""
    if chat is not None:
        return ids_of(chat.prompt(QUESTION))
    text = QUESTION if template is None else template.render([{"role": "user", "content": QUESTION}])
    return tokenizer.encode(text, special=True)


def _continuation(model: Any, tokenizer: HubTokenizer, asked: Sequence[int]) -> str:
    ids = torch.tensor([asked])
    out = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=CONTINUATION, do_sample=False,
        pad_token_id=0,
    )  # fmt: skip
    controls = {tokenizer.special_id(text) for text in tokenizer.controls}
    return tokenizer.decode([i for i in out[0, ids.shape[1] :].tolist() if i not in controls]).strip()
