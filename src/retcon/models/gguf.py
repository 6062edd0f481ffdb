"""Convert a GGUF file to a Hugging Face folder, with weights dequantised to float32.

The `gguf` package reads and dequantises; names, shapes and the configuration are mapped here. transformers' own reader
loses the pre-tokenizer and drops unknown tensors.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from retcon.core.errors import CheckpointError, MissingExtra, nearest
from retcon.core.installing import how_to_install

if TYPE_CHECKING:
    from gguf import GGUFReader
    from numpy.typing import NDArray

# A GGUF names its pre-tokenizer (`tokenizer.ggml.pre`); the rules are llama.cpp's. transformers ignores the name and
# splits every text as GPT-2 does: SmolLM2, which splits digits, would get ids that it was not trained on.

NAMED = "tokenizer.chat_template."
"""Prefix of the names of further chat templates."""
CONTROL, USER_DEFINED = 3, 4
"""Types of tokens that are matched as a whole; the first are markup."""
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
"""Pre-tokenizers by their names in the file."""


def tokenizer_of(fields: Mapping[str, Any], file: Path) -> Tokenizer:
    """Build the tokenizer of a GGUF file's metadata. Raises CheckpointError for an unknown kind or pre-tokenizer."""
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
    built = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        built.normalizer = normalizers.NFC()
    built.pre_tokenizer = PRE[pre]()
    built.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, types, strict=True):
        if kind in (CONTROL, USER_DEFINED):
            add = built.add_special_tokens if kind == CONTROL else built.add_tokens
            add([AddedToken(token, normalized=False, special=kind == CONTROL)])
    if first_id is not None:
        first = tokens[first_id]
        built.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", special_tokens=[(first, vocabulary[first])]
        )
    return built


def tokenizer_config(fields: Mapping[str, Any], positions: int) -> dict[str, object]:
    """Return a `tokenizer_config.json` with special tokens and chat template. positions: the model's."""
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


ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""transformers' class by `general.architecture`. Mistral's models are `llama`."""
_NEEDED = {
    "max_position_embeddings": "context_length",
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_TENSOR = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)")


def convert(file: Path, folder: Path) -> None:
    """Write the Hugging Face files of `file` into `folder`.

    A `tokenizer.json` beside the file takes precedence. Weights take four bytes per parameter, on disk and in memory.
    Raises CheckpointError for a broken file or unknown architecture, MissingExtra without the `gguf` package.
    """
    from safetensors.numpy import save_file

    reader, fields = _read(file)
    config = _config(fields, file)
    weights = dict(_weights(reader, config, file))
    if "model.embed_tokens.weight" not in weights:
        raise CheckpointError(f"{file} has no token_embd.weight: it holds only a part of a model")
    config["vocab_size"] = len(weights["model.embed_tokens.weight"])
    config["tie_word_embeddings"] = "lm_head.weight" not in weights
    config["attention_bias"] = "model.layers.0.self_attn.q_proj.bias" in weights
    _check_names(weights, config, file)
    own = file.with_name("tokenizer.json")
    if own.is_file():
        shutil.copyfile(own, folder / own.name)
    else:
        tokenizer_of(fields, file).save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", tokenizer_config(fields, config["max_position_embeddings"]))
    _write(folder / "config.json", config)
    ends = [fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    generation = {"eos_token_id": sorted({i for i in ends if i is not None})}
    generation |= {k: config[k] for k in ("bos_token_id", "pad_token_id") if k in config}
    _write(folder / "generation_config.json", generation)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _read(file: Path) -> tuple[GGUFReader, dict[str, Any]]:
    """Return a reader of the file, and its metadata by name."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise MissingExtra(f"reading {file} needs the gguf package: {how_to_install('gguf')}") from error
    try:
        reader = GGUFReader(file)
        return reader, {name: field.contents() for name, field in reader.fields.items()}
    except (OSError, ValueError, KeyError, IndexError) as error:  # raised for bytes that are not GGUF
        raise CheckpointError(f"{file} cannot be read as a GGUF file: {error}") from error


def _config(fields: Mapping[str, Any], file: Path) -> dict[str, Any]:
    kind = str(fields.get("general.architecture"))
    if kind not in ARCHITECTURES:
        raise CheckpointError(
            f"{file}: its architecture is {kind!r}{nearest(kind, ARCHITECTURES)}; known are "
            f"{', '.join(ARCHITECTURES)}. Use the model's Hugging Face folder instead"
        )
    scaling = fields.get(f"{kind}.rope.scaling.type", "none")
    if scaling != "none":
        raise CheckpointError(f"{file}: its rotations are scaled ({scaling}): use its Hugging Face folder instead")
    if missing := [f"{kind}.{key}" for key in _NEEDED.values() if f"{kind}.{key}" not in fields]:
        raise CheckpointError(f"{file}: its metadata lack {', '.join(missing)}")
    config: dict[str, Any] = {key: fields[f"{kind}.{name}"] for key, name in _NEEDED.items()}
    heads = config["num_attention_heads"]
    config |= {
        "model_type": kind,
        "architectures": [ARCHITECTURES[kind]],
        "dtype": "float32",
        "hidden_act": "silu",
        "num_key_value_heads": fields.get(f"{kind}.attention.head_count_kv", heads),
        "head_dim": fields.get(f"{kind}.attention.key_length", config["hidden_size"] // heads),
        "rms_norm_eps": _decimal(config["rms_norm_eps"]),
        "rope_theta": _decimal(fields.get(f"{kind}.rope.freq_base", 10000.0)),
    }
    for name, field in {"bos": "bos", "eos": "eos", "pad": "padding"}.items():
        if (i := fields.get(f"tokenizer.ggml.{field}_token_id")) is not None:
            config[f"{name}_token_id"] = i
    return config


def _weights(reader: GGUFReader, config: Mapping[str, Any], file: Path) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield tensors in float32 under transformers' names. Raises CheckpointError for unknown ones."""
    from gguf import dequantize

    for tensor in reader.tensors:
        match = _TENSOR.fullmatch(tensor.name)
        layer, part, kind = match.groups() if match else (None, tensor.name, "")
        known = (_OUTER if layer is None else _LAYER).get(part)
        if known is None:
            raise CheckpointError(f"{file}: there is no place for its tensor {tensor.name}; use its folder instead")
        try:
            values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        except (NotImplementedError, ValueError) as error:
            raise CheckpointError(f"{file}: {tensor.name} of type {tensor.tensor_type.name}: {error}") from error
        if not np.isfinite(values).all():
            raise CheckpointError(f"{file}: {tensor.name} holds values that are not finite")
        if config["model_type"] == "llama" and part in ("attn_q", "attn_k"):
            values = _halves(values, config["num_attention_heads" if part == "attn_q" else "num_key_value_heads"])
        place = known if layer is None else f"model.layers.{layer}.{known}"
        yield f"{place}.{kind}", np.ascontiguousarray(values)


def _check_names(weights: Mapping[str, NDArray[np.float32]], config: Mapping[str, Any], file: Path) -> None:
    """Raises CheckpointError unless the tensors' names and shapes are those of transformers' model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    rest = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):  # shapes alone, no memory
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **rest))
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if config["tie_word_embeddings"]:
        wanted.pop("lm_head.weight")
    got = {name: values.shape for name, values in weights.items()}
    for problem, names in {"needs": wanted.keys() - got.keys(), "has no": got.keys() - wanted.keys()}.items():
        if names:
            raise CheckpointError(f"{file}: a {config['model_type']} model {problem} {', '.join(sorted(names)[:3])}")
    if wrong := [name for name, shape in wanted.items() if got[name] != shape]:
        raise CheckpointError(f"{file}: {wrong[0]} is of shape {got[wrong[0]]}, and the model's is {wanted[wrong[0]]}")


def _halves(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Reorder the rows of each head (heads · size, …): rotated pairs are neighbours in llama.cpp, half a head apart in
    transformers."""
    return values.reshape(heads, -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _decimal(value: float) -> float:
    """Round a float32 to its shortest decimal: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _write(file: Path, content: Mapping[str, object]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
