"""The tokenizer in a GGUF file as a `tokenizer.json`.

How text is cut before byte pairs are merged stands in a GGUF as a name alone (`tokenizer.ggml.pre`); the rules are
llama.cpp's. transformers does not look at that name when it reads a GGUF, and cuts every text as GPT-2 does: SmolLM2,
which sees every digit on its own, would be shown ids that it was not trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from retcon.core.errors import CheckpointError, nearest

NAMED = "tokenizer.chat_template."
"""What stands before the names of chat templates, where there are others than the default one."""
CONTROL, USER_DEFINED = 3, 4
"""Types of tokens that are matched as a whole in text; the first are markup."""
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


PRE: Mapping[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "qwen2": lambda: _split(_WORDS % r"\p{N}"),
    "llama-bpe": lambda: _split(_WORDS % r"\p{N}{1,3}"),
}
"""How a text is cut into the pieces within which byte pairs are merged, by the name in the file."""


def tokenizer_of(fields: Mapping[str, Any], file: Path) -> Tokenizer:
    """The tokenizer that the metadata `fields` of the GGUF `file` describes.

    Raises CheckpointError for a kind of tokenizer, or a way to cut text, that is not known.
    """
    kind, pre = fields.get("tokenizer.ggml.model"), str(fields.get("tokenizer.ggml.pre", "default"))
    advice = f"put the model's own tokenizer.json beside {file.name}, and it is taken instead"
    if kind != "gpt2":
        raise CheckpointError(f"{file}: its tokenizer is of the kind {kind!r}; known is 'gpt2' (byte pairs). {advice}")
    if pre not in PRE:
        known = ", ".join(PRE)
        raise CheckpointError(
            f"{file}: tokenizer.ggml.pre is {pre!r}{nearest(pre, PRE)}; known ways to cut text are {known}. {advice}"
        )
    if lacking := [name for name in ("tokens", "merges", "token_type") if f"tokenizer.ggml.{name}" not in fields]:
        raise CheckpointError(f"{file}: its tokenizer lacks {', '.join(lacking)}. {advice}")
    tokens: Sequence[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ", 1)) for pair in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    first_id = fields.get("tokenizer.ggml.bos_token_id") if fields.get("tokenizer.ggml.add_bos_token") else None
    types = fields["tokenizer.ggml.token_type"]
    strange = [pair for pair in merges if len(pair) != 2 or not {*pair, "".join(pair)} <= vocabulary.keys()]
    wrong = f"of its merges, {len(strange)} join what it has not, such as {' '.join(strange[0])!r}" if strange else ""
    wrong = wrong or (f"token_type has {len(types)} of {len(tokens)} tokens" if len(types) != len(tokens) else "")
    if wrong or (first_id is not None and not 0 <= first_id < len(tokens)):
        raise CheckpointError(f"{file}: its tokenizer contradicts itself: {wrong or f'bos_token_id is {first_id}'}")
    built = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        built.normalizer = normalizers.NFC()
    built.pre_tokenizer = PRE[pre]()
    built.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, types, strict=True):
        if kind in (CONTROL, USER_DEFINED):
            add = built.add_special_tokens if kind == CONTROL else built.add_tokens
            add([AddedToken(token, normalized=False, special=kind == CONTROL)])
    moved = [token for token, i in vocabulary.items() if built.token_to_id(token) != i]
    if moved or len(vocabulary) != len(tokens):
        raise CheckpointError(f"{file}: its list of tokens contradicts itself, at {moved[:3] or 'a repeated token'}")
    if first_id is not None:
        first = tokens[first_id]
        built.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", special_tokens=[(first, vocabulary[first])]
        )
    return built


def tokenizer_config(fields: Mapping[str, Any], positions: int) -> dict[str, object]:
    """A `tokenizer_config.json`: names of the special tokens and the chat template. positions: the model's."""
    tokens = fields.get("tokenizer.ggml.tokens", ())
    about: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": positions,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": bool(fields.get("tokenizer.ggml.add_bos_token", False)),
    }
    for name, field in {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}.items():
        if (i := fields.get(f"tokenizer.ggml.{field}_token_id")) is not None and i < len(tokens):
            about[f"{name}_token"] = tokens[i]
    default = {"default": fields["tokenizer.chat_template"]} if fields.get("tokenizer.chat_template") else {}
    named = {key.removeprefix(NAMED): text for key, text in fields.items() if key.startswith(NAMED)}
    if named:
        about["chat_template"] = [{"name": name, "template": text} for name, text in (default | named).items()]
    elif default:
        about["chat_template"] = default["default"]
    return about
