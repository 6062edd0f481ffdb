"""Conversion of a GGUF file to a Hugging Face folder in float32.

transformers reads the weights. What it would lose without a word stands here: the tokenizer, metadata that it leaves at
a default, scaled rotations, and tensors that it drops, which are refused.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import struct
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import signature
from io import StringIO
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from retcon.core.errors import CheckpointError, MissingExtra, nearest
from retcon.core.installing import how_to_install

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedConfig, PreTrainedModel

NAMED = "tokenizer.chat_template."
"""Prefix of the names of further chat templates."""
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
"""Types of tokens; the last two are matched as a whole."""
SPACE = "▁"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENDS = r" ?[^\s\p{L}\p{N}]+[\r\n%s]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s|" + _ENDS % ""
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|%s|" + _ENDS % "/"
)
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_CJK = r"[一-龥ࠀ-一가-퟿]+"
_RULES: Mapping[str, tuple[str, ...]] = {
    "gpt-2 phi-2 mpt olmo jais gigachat a.x-4.0 mellum exaone4 trillion granite-docling modern-bert": (_GPT2,),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": (r"\p{N}", _GPT2),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 dbrx smaug-bpe chatglm-bpe glm4 glm5": (
        _WORDS % r"\p{N}{1,3}",
    ),
    "qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan solar-open grok-2": (_WORDS % r"\p{N}",),
    "qwen35": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
        r"\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "tekken": (_CASED % ("", "", r"\p{N}"),),
    "gpt-4o llama4 kanana2 minimax-m2": (_CASED % (_ENDINGS, _ENDINGS, r"\p{N}{1,3}"),),
    "deepseek-coder": ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}"),
    "deepseek-v3 hunyuan-dense": (
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
        r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "bloom poro-chat gpt3-finnish": (r" ?[^(\s|.,!?…。，、।۔،)]+",),
    "viking": (r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"),
}
PRE: Mapping[str, tuple[str, ...]] = {name: rules for names, rules in _RULES.items() for name in names.split()}
"""Rules that cut text, in turn, by `tokenizer.ggml.pre`, as llama.cpp has them.

transformers knows the half of these names, and cuts text of the others as GPT-2 does: SmolLM2, which splits digits,
would get ids that it was not trained on."""
_WHOLE = ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken", "glm4")
"""Pre-tokenizers whose vocabulary goes before its merges."""
KINDS = {"gpt2": "byte pairs", "llama": "SentencePiece", "gemma4": "SentencePiece with merges", "bert": "WordPiece"}


def tokenizer_of(fields: Mapping[str, Any], file: Path) -> Tokenizer:
    """Build the tokenizer of a GGUF file's metadata. Raises CheckpointError as `check_tokenizer` does."""
    check_tokenizer(fields, file)
    kind, pre = fields["tokenizer.ggml.model"], fields.get("tokenizer.ggml.pre", "")
    tokens: Sequence[str] = fields["tokenizer.ggml.tokens"]
    types = fields["tokenizer.ggml.token_type"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if kind == "bert":
        built = _word_pieces(tokens, fields)
    elif kind == "gpt2":
        built = Tokenizer(models.BPE(vocabulary, _merges(fields), ignore_merges=pre in _WHOLE))
        if pre.startswith("qwen"):
            built.normalizer = normalizers.NFC()
        cuts = [pre_tokenizers.Split(Regex(rule), "isolated") for rule in PRE[pre]]
        bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        built.pre_tokenizer = pre_tokenizers.Sequence([*cuts, bytewise])
        built.decoder = decoders.ByteLevel()
    else:
        built = _pieces(vocabulary, fields)
    phi3 = (
        fields.get("general.architecture") == "phi3" and kind == "llama"
    )  # its markup takes the white space behind it
    added: dict[bool, list[AddedToken]] = {True: [], False: []}
    for token, what in zip(tokens, types, strict=True):
        if what in (CONTROL, USER_DEFINED) or (what == UNKNOWN and kind != "gpt2"):
            special = what != USER_DEFINED
            strip = phi3 and special and token not in ("<unk>", "<s>", "<|endoftext|>")
            added[special].append(AddedToken(token, normalized=False, special=special, rstrip=strip))
    built.add_special_tokens(added[True])
    built.add_tokens(added[False])
    ends = {"bos": _adds_bos(fields), "eos": kind == "bert" or bool(fields.get("tokenizer.ggml.add_eos_token"))}
    names = {"bos": ("bos", "cls"), "eos": ("eos", "seperator")}  # the format's own spelling
    ids = {
        end: next((i for name in names[end] if (i := fields.get(f"tokenizer.ggml.{name}_token_id")) is not None), None)
        for end, added in ends.items()
        if added
    }
    marks = {end: tokens[i] for end, i in ids.items() if i is not None}
    if marks:
        single = " ".join(filter(None, [marks.get("bos"), "$A", marks.get("eos")]))
        built.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=[(mark, vocabulary[mark]) for mark in set(marks.values())]
        )
    return built


def check_tokenizer(fields: Mapping[str, Any], file: Path) -> None:
    """Check that a GGUF file's tokenizer can be built. Raises CheckpointError for unknown kinds and missing parts."""
    kind, pre = fields.get("tokenizer.ggml.model"), str(fields.get("tokenizer.ggml.pre", "default"))
    advice = f"put the model's own tokenizer.json beside {file.name}, and it is taken instead"
    if kind not in KINDS:
        known = ", ".join(f"{name!r} ({what})" for name, what in KINDS.items())
        found = f"its tokenizer is of the kind {kind!r}" if kind else "it has no tokenizer"
        raise CheckpointError(f"{file}: {found}; known are {known}. {advice}")
    if kind == "gpt2" and pre not in PRE:
        known = ", ".join(PRE)
        raise CheckpointError(
            f"{file}: tokenizer.ggml.pre is {pre!r}{nearest(pre, PRE)}; known ways to cut text are {known}. {advice}"
        )
    parts = ["tokens", "token_type", *{"gpt2": ["merges"], "gemma4": ["merges"], "llama": ["scores"]}.get(kind, [])]
    if lacking := [name for name in parts if f"tokenizer.ggml.{name}" not in fields]:
        raise CheckpointError(f"{file}: its tokenizer lacks {', '.join(lacking)}. {advice}")


def _adds_bos(fields: Mapping[str, Any]) -> bool:
    kind, pre = fields["tokenizer.ggml.model"], fields.get("tokenizer.ggml.pre")
    default = kind in ("llama", "bert") or (pre in _WHOLE and not str(pre).startswith("glm"))
    return bool(fields.get("tokenizer.ggml.add_bos_token", default))


def _merges(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return pairs of tokens, the first to merge first."""
    return [(pair[:at], pair[at + 1 :]) for pair in fields["tokenizer.ggml.merges"] if (at := pair.index(" ", 1))]


def _pieces(vocabulary: Mapping[str, int], fields: Mapping[str, Any]) -> Tokenizer:
    """Build a SentencePiece tokenizer, whose best-scored pieces merge first, with bytes for what it lacks."""
    if "tokenizer.ggml.merges" in fields:
        merges = _merges(fields)
    else:
        score = fields["tokenizer.ggml.scores"]
        pairs = [
            (-score[i], i, token[:at], token[at:])
            for token, i in vocabulary.items()
            for at in range(1, len(token))
            if token[:at] in vocabulary and token[at:] in vocabulary
        ]
        merges = [(left, right) for *_, left, right in sorted(pairs)]
    unknown = next(
        (t for t, what in zip(vocabulary, fields["tokenizer.ggml.token_type"], strict=True) if what == 2), None
    )
    built = Tokenizer(models.BPE(dict(vocabulary), merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefixed = fields.get("tokenizer.ggml.add_space_prefix", True)
    spaces = normalizers.Replace(" ", SPACE)
    built.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefixed else spaces
    back = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    built.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)] if prefixed else back)
    return built


def _word_pieces(tokens: Sequence[str], fields: Mapping[str, Any]) -> Tokenizer:
    """Build BERT's tokenizer; the format marks the first piece of a word, and BERT the others."""
    pieces = [t[1:] if t[:1] == SPACE else t if t[:1] == "[" and t[-1:] == "]" else f"##{t}" for t in tokens]
    unknown = tokens[fields.get("tokenizer.ggml.unknown_token_id", 100)]
    built = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token=unknown))
    built.normalizer = normalizers.BertNormalizer(lowercase=True)
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    built.decoder = decoders.WordPiece()
    return built


def tokenizer_config(fields: Mapping[str, Any], positions: int) -> dict[str, object]:
    """Return a `tokenizer_config.json` with special tokens and chat template. positions: the model's."""
    tokens = fields.get("tokenizer.ggml.tokens", ())
    about: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": positions,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": "tokenizer.ggml.model" in fields and _adds_bos(fields),
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


# The file's head is read here: the `gguf` package's reader takes ten seconds for a vocabulary of 262,144 tokens, and a
# refusal is to come at once.

_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
"""Codes of `struct` by the format's types of values; 8 is a string, 9 an array."""


@dataclass(frozen=True, slots=True)
class Header:
    """Metadata of a GGUF file, and its tensors: name to (shape, type of quantisation, start in bytes)."""

    fields: dict[str, Any]
    tensors: dict[str, tuple[tuple[int, ...], int, int]]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the metadata `name` of this file's architecture."""
        return self.fields.get(f"{self.fields.get('general.architecture')}.{name}", default)


def read_header(file: Path) -> Header:
    """Read a GGUF file's head. Raises CheckpointError for bytes that are not GGUF, and for a file that ends early."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    with file.open("rb") as opened:
        data = mmap(opened.fileno(), 0, access=ACCESS_READ) if file.stat().st_size else b""
    place = 0

    def take(code: str) -> tuple[Any, ...]:
        nonlocal place
        values = struct.unpack_from(f"<{code}", data, place)
        place += struct.calcsize(f"<{code}")
        return values

    def text() -> str:
        nonlocal place
        begin = place + 8
        place = begin + int.from_bytes(data[place:begin], "little")
        return data[begin:place].decode()

    def value(kind: int) -> Any:
        if kind == 8:
            return text()
        if kind != 9:
            return take(_SCALARS[kind])[0]
        inner, count = take("IQ")
        if count > len(data):
            raise ValueError(f"an array of {count:,} values in a file of {len(data):,} bytes")
        return list(take(f"{count}{_SCALARS[inner]}")) if inner in _SCALARS else [value(inner) for _ in range(count)]

    try:
        magic, version, tensors, pairs = take("4sIQQ")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(
                f"it begins with {magic!r}, version {version}, and GGUF files with b'GGUF', version 2 or 3"
            )
        fields = {text(): value(take("I")[0]) for _ in range(pairs)}
        table = {text(): (take(f"{take('I')[0]}Q"), *take("IQ")) for _ in range(tensors)}
        step = fields.get("general.alignment", 32)
        start = -(-place // step) * step
        for name, (shape, kind, offset) in table.items():
            block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
            if (end := start + offset + prod(shape) // block * size) > len(data):
                raise ValueError(f"it has {len(data):,} bytes, and {name} ends at byte {end:,}: it is truncated")
    except (struct.error, ValueError, KeyError, OverflowError, MemoryError) as error:
        raise CheckpointError(f"{file} cannot be read as a GGUF file: {error}") from error
    return Header(fields, {name: (shape, kind, start + offset) for name, (shape, kind, offset) in table.items()})


_TABLES = {
    "integrations/ggml.py": "GGUF_CONFIG_MAPPING",
    "integrations/gguf/gguf_config_mapping.py": "GGUF_CONFIG_ARCHS",  # from 5.20 on
}
_UNFIT = ("general", "tokenizer", "deci", "t5", "umt5")
"""Of the names in transformers' tables of GGUF: not architectures, or not of causal models."""
_LOST = re.compile(r"rope_freqs\.weight|rope_factors_(long|short)\.weight|.*\.nextn\..*")
"""Tensors that become configuration, or that no model of transformers has."""


def architectures() -> list[str]:
    """Return the architectures that the installed transformers loads as causal models.

    Its tables are read from its files, as importing it takes longer than a refusal may.
    """
    found: set[str] = set()
    spec = find_spec("transformers")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file, table in _TABLES.items():
            tree = ast.parse(path.read_bytes()) if (path := Path(folder, file)).is_file() else ast.Module([], [])
            tables = (n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == table)
            found |= {key for value in tables for key in map(ast.literal_eval, getattr(value, "keys", ()))}
    return sorted(found - set(_UNFIT))


def check_gguf(file: Path) -> Header:
    """Read a GGUF file's head and check it, before torch is imported.

    Raises CheckpointError for a broken file, an unknown architecture, tokenizer or quantisation, and a part of a model;
    MissingExtra without the `gguf` package.
    """
    try:
        import gguf
    except ImportError as error:
        raise MissingExtra(f"reading {file} needs the gguf package: {how_to_install('gguf')}") from error
    header = read_header(file)
    fields = header.fields
    kind, known = str(fields.get("general.architecture")), architectures()
    if _normalize_architecture(kind) not in map(_normalize_architecture, known):
        raise CheckpointError(
            f"{file}: its architecture is {kind!r}{nearest(kind, known)}; known are {', '.join(known)}. "
            "Use the model's Hugging Face folder instead"
        )
    if fields.get("split.count", 1) > 1:
        raise CheckpointError(
            f"{file} is one of {fields['split.count']} files of a model: `llama-gguf-split --merge` makes one of them"
        )
    if missing := [f"{kind}.{key}" for key in ("block_count", "embedding_length") if header.get(key) is None]:
        raise CheckpointError(f"{file}: its metadata lack {', '.join(missing)}")
    if "token_embd.weight" not in header.tensors:
        raise CheckpointError(f"{file} has no token_embd.weight: it holds only a part of a model")
    for packed in {kind for _, kind, _ in header.tensors.values()}:
        what = gguf.GGMLQuantizationType(packed)
        try:
            gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[what][1]), np.uint8), what)
        except NotImplementedError as error:
            raise CheckpointError(
                f"{file} has tensors of type {what.name}, which the gguf package cannot read"
            ) from error
    if not file.with_name("tokenizer.json").is_file():
        check_tokenizer(fields, file)
    return header


def _normalize_architecture(architecture: str) -> str:
    return re.sub("[-_]", "", architecture)


def convert_gguf(file: Path, folder: Path) -> None:
    """Write the Hugging Face files of `file` into `folder`.

    A `tokenizer.json` beside the file takes precedence. Weights take four bytes per parameter, on disk and in memory.
    Raises CheckpointError and MissingExtra as `check_gguf` does, and for tensors without a place in the model.
    """
    file = file.absolute()
    header = check_gguf(file)
    fields = header.fields
    own = file.with_name("tokenizer.json")
    if own.is_file():
        shutil.copyfile(own, folder / own.name)
    else:
        tokenizer_of(fields, file).save(str(folder / "tokenizer.json"))
    model = _load(file, header)
    with redirect_stderr(StringIO()):
        model.save_pretrained(folder)
    positions = header.get("context_length", 2048)
    _write(folder / "tokenizer_config.json", tokenizer_config(fields, positions))
    ends = [fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    generation: dict[str, object] = {"eos_token_id": sorted({i for i in ends if i is not None})}
    for name, field in {"bos": "bos", "pad": "padding"}.items():
        if (i := fields.get(f"tokenizer.ggml.{field}_token_id")) is not None:
            generation[f"{name}_token_id"] = i
    _write(folder / "generation_config.json", generation)


def _load(file: Path, header: Header) -> PreTrainedModel:
    """Load the model in float32. Raises CheckpointError where a tensor has no place, or a place no tensor."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    names = {"gguf_file": str(file)}
    try:
        with redirect_stderr(StringIO()):  # progress bars, which cannot be switched off
            config = AutoConfig.from_pretrained(file.parent, **names)
            _complete_config(config, header, file)
            found: Any = AutoModelForCausalLM.from_pretrained(
                file.parent, **names, config=deepcopy(config), dtype=torch.float32, output_loading_info=True
            )
    except (ValueError, KeyError, TypeError, IndexError, RuntimeError, NotImplementedError) as error:
        raise CheckpointError(f"{file}: transformers cannot load it: {error}") from error
    loaded, about = found
    with torch.device("meta"):  # the loaded one is marked as quantised, and transformers does not save such models
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    weights = loaded.state_dict()
    if missing := sorted(set(about["missing_keys"]) - set(model.all_tied_weights_keys)):
        raise CheckpointError(f"{file}: {type(model).__name__} needs {', '.join(missing[:3])}, which it lacks")
    _check_places(file, header, model, weights)
    if infinite := next((name for name, values in weights.items() if not torch.isfinite(values).all()), None):
        raise CheckpointError(f"{file}: {infinite} holds values that are not finite")
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    return model


def _check_places(file: Path, header: Header, model: PreTrainedModel, weights: Mapping[str, Any]) -> None:
    """Check that the model has every weight of the file: transformers drops what it cannot place (CheckpointError)."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    tied = set(model.all_tied_weights_keys)
    stated = {
        name: prod(shape)
        for name, (shape, *_) in header.tensors.items()
        if not _LOST.fullmatch(name) and not (tied and name == "output.weight")
    }
    got = sum(values.numel() for name, values in weights.items() if name not in tied)
    if sum(stated.values()) == got:
        return
    architecture = next(key for key, name in MODEL_ARCH_NAMES.items() if name == header.fields["general.architecture"])
    places = get_tensor_name_map(architecture, header.get("block_count"))
    known = {places.get_name(name, try_suffixes=(".weight", ".bias")) for name in weights}
    odd = [name for name in stated if name not in known][:3] or ["some of its tensors"]
    raise CheckpointError(
        f"{file}: it holds {sum(stated.values()):,} weights, and {type(model).__name__} {got:,}: there is no place for "
        f"{', '.join(odd)}. Use the model's Hugging Face folder instead"
    )


_STATED = {
    "max_position_embeddings": "context_length",
    "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}
"""Parameters by the metadata that state them, where transformers may leave them at the default of the class."""


def _complete_config(config: PreTrainedConfig, header: Header, file: Path) -> None:
    """Set what the file states and transformers did not take from it. Raises CheckpointError for unknown rotations."""
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    own, tables = signature(type(config)).parameters, dict[str, Any](GGUF_CONFIG_MAPPING)
    table: Mapping[str, str | None] = tables.get(config.model_type.removesuffix("_text"), {})
    taken = {key for key, name in table.items() if name in own}
    for name, key in _STATED.items():
        if key not in taken and hasattr(config, name) and (stated := header.get(key)) is not None:
            setattr(config, name, stated)
    for name, tensor in {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}.items():
        if hasattr(config, name):
            setattr(config, name, tensor in header.tensors)
    layers, heads = header.get("block_count"), header.get("attention.head_count")
    if (header.fields["general.architecture"], layers) in (("gemma2", 46), ("gemma3", 62)):  # as llama.cpp knows them
        config.query_pre_attn_scalar = header.get("embedding_length") // heads
    _set_rotations(config, header, file)
    for name, value in dict(config.to_dict()).items():
        if isinstance(value, float):
            setattr(config, name, _decimal(value))


def _set_rotations(config: PreTrainedConfig, header: Header, file: Path) -> None:
    rope = getattr(config, "rope_parameters", None)
    if rope is None:
        return
    rope = rope.get("full_attention", rope)  # a dictionary of them where layers differ
    if base := header.get("rope.freq_base"):
        rope["rope_theta"] = _decimal(base)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = header.get("rope.dimension_count", size)
    if "partial_rotary_factor" in rope:
        rope["partial_rotary_factor"] = width / size
    kind = header.get("rope.scaling.type", "none")
    original = header.get("rope.scaling.original_context_length")
    if "rope_freqs.weight" in header.tensors:
        rope |= _llama3(_values(file, header, "rope_freqs.weight"), rope["rope_theta"], width, file)
    elif "rope_factors_long.weight" in header.tensors:
        factors = {f"{n}_factor": _values(file, header, f"rope_factors_{n}.weight").tolist() for n in ("long", "short")}
        rope |= {"rope_type": "longrope", "original_max_position_embeddings": original, **factors}
        config.original_max_position_embeddings = original
    elif kind in ("linear", "yarn"):
        rope |= {"rope_type": kind, "factor": header.get("rope.scaling.factor")}
        if kind == "yarn":
            rope["original_max_position_embeddings"] = original
    elif kind != "none":
        raise CheckpointError(f"{file}: its rotations are scaled ({kind}); known are linear, yarn, longrope and llama3")


def _llama3(divisors: NDArray[np.float32], base: float, width: int, file: Path) -> dict[str, object]:
    """Return the parameters of Llama 3's scaled rotations, of which the file holds only the outcome, (width / 2,)."""
    factor, low, high, original = float(divisors.max()), 1.0, 4.0, 8192
    turns = original / (2 * np.pi * base ** (np.arange(0, width, 2) / width))
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    if not np.allclose(divisors, 1 / ((1 - smooth) / factor + smooth), rtol=1e-3):
        raise CheckpointError(f"{file}: the divisors in rope_freqs.weight are not Llama 3's: use its folder instead")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _values(file: Path, header: Header, name: str) -> NDArray[np.float32]:
    shape, _, start = header.tensors[name]
    return np.fromfile(file, np.float32, prod(shape), offset=start)


def _decimal(value: float) -> float:
    """Round a float32 to its shortest decimal: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _write(file: Path, content: Mapping[str, object]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
