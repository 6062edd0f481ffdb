"""A GGUF file as a Hugging Face folder: weights in float32, exactly what the quantised ones stand for.

The `gguf` package reads the file and undoes the quantisation; names, shapes and the configuration are mapped here,
rather than by transformers' own reader, which loses how the tokenizer cuts text (see `tokenizer`) and leaves out
tensors that it does not know.
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

# The tokenizer in a GGUF file as a `tokenizer.json`.
#
# How text is cut before byte pairs are merged stands in a GGUF as a name alone (`tokenizer.ggml.pre`); the rules are
# llama.cpp's. transformers does not look at that name when it reads a GGUF, and cuts every text as GPT-2 does: SmolLM2,
# which sees every digit on its own, would be shown ids that it was not trained on.

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


ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""By `general.architecture`, the class of transformers that computes it. Mistral's models are `llama` there."""
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
    """Writes config.json, generation_config.json, model.safetensors, tokenizer.json and tokenizer_config.json.

    A `tokenizer.json` beside the file goes before the one in it. Weights take four bytes a parameter, on the disk and,
    meanwhile, in memory. Raises CheckpointError for a file that is broken or of an architecture that is not known,
    MissingExtra without the `gguf` package.
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
    """The file, and its metadata by name."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise MissingExtra(f"reading {file} needs the gguf package: {how_to_install('gguf')}") from error
    try:
        reader = GGUFReader(file)
        return reader, {name: field.contents() for name, field in reader.fields.items()}
    except (OSError, ValueError, KeyError, IndexError) as error:  # what its reader raises for bytes that are no GGUF
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
    """Names and float32 tensors as transformers has them. Raises CheckpointError for those that it would not have."""
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
    """Raises CheckpointError unless these are the tensors, of the shapes, that transformers' model has."""
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
    """Rows of each head (heads · size, …) from llama.cpp's order, in which the two that are rotated together are
    neighbours, to transformers', in which they are half a head apart."""
    return values.reshape(heads, -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _decimal(value: float) -> float:
    """A float32 as the decimal number that it was: 1e-05 and not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _write(file: Path, content: Mapping[str, object]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
