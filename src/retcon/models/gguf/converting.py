"""A GGUF file as a Hugging Face folder: weights in float32, exactly what the quantised ones stand for.

The `gguf` package reads the file and undoes the quantisation; names, shapes and the configuration are mapped here,
rather than by transformers' own reader, which loses how the tokenizer cuts text (see `tokenizer`) and leaves out
tensors that it does not know.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retcon.core.errors import CheckpointError, MissingExtra, nearest
from retcon.core.installing import how_to_install
from retcon.models.gguf.tokenizer import tokenizer_config, tokenizer_of

if TYPE_CHECKING:
    from gguf import GGUFReader
    from numpy.typing import NDArray

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
