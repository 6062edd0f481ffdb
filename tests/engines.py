"""Engines under test: tiny models, what a plain forward of them says, and how a stall becomes a failure."""

from __future__ import annotations

import asyncio
import random
import string
import zlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import pytest

from retcon.chat.tokenizer import ByteTokenizer
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.engine.types import Generation, Generator, SamplingParams

T = TypeVar("T")
TOKENIZER = ByteTokenizer()
VOCAB, MAX_LEN, WINDOW = TOKENIZER.size, 64, 256
GREEDY = SamplingParams(temperature=0, max_tokens=12)
MODELS = ("qwen3", "llama", "gpt2")


@dataclass(frozen=True)
class Subject:
    """An engine that the contract is asked of. make: a fresh one. samples: whether the seed matters.

    exact: whether log-probs are the same bits in every company, cached or not; otherwise they are equal to 1e-4.
    """

    name: str
    make: Callable[[], Generator]
    samples: bool
    exact: bool


def scripted() -> ScriptedEngine:
    """A script that is a function of the history, as a greedy model is."""

    def reply(_: str, text: str, __: int) -> str:
        return "".join(random.Random(zlib.crc32(text.encode())).choices(string.ascii_letters, k=MAX_LEN))

    return ScriptedEngine(TOKENIZER, reply)


def local(name: str) -> Generator:
    from retcon.engine.local.engine import LocalEngine

    return LocalEngine(model_of(name), max_len=MAX_LEN, tokenizer=TOKENIZER)


SUBJECTS = [
    pytest.param(Subject("scripted", scripted, samples=False, exact=True), id="scripted"),
    *(
        pytest.param(
            Subject(name, lambda name=name: local(name), samples=True, exact=False), id=name, marks=pytest.mark.torch
        )
        for name in MODELS
    ),
]


def make_model(name: str) -> Any:
    """A new model of two layers whose contexts each have a distribution of their own."""
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen3Config

    rope: dict[str, Any] = {
        "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "max_position_embeddings": WINDOW,
    }  # fmt: skip
    configs = {
        "qwen3": lambda: Qwen3Config(**rope, tie_word_embeddings=True),
        "llama": lambda: LlamaConfig(**rope),
        "gpt2": lambda: GPT2Config(vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4, n_positions=WINDOW),
    }
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(configs[name]())
    with torch.no_grad():
        # Weights as initialised give nearly uniform logits.
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4)
    return model.eval()


@cache
def model_of(name: str) -> Any:
    """One model for all tests that do not change it."""
    return make_model(name)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; a stall is a failure and no hanging test session."""
    return asyncio.run(asyncio.wait_for(work, timeout=60))


def prompts(seed: int, lengths: Sequence[int]) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(VOCAB) for _ in range(n)] for n in lengths]


def plain_logits(model: Any, ids: Sequence[int]) -> Any:
    """(T, V) float32 logits after each of `ids`, from one forward without cache, padding or engine."""
    import torch

    with torch.no_grad():
        return model(torch.tensor([list(ids)], device=model.device)).logits[0].float()


def plain(model: Any, ids: Sequence[int], start: int) -> list[float]:
    """Log-probs of ids[start:] from one forward without cache, padding or engine."""
    import torch

    logits = plain_logits(model, ids[:-1]).log_softmax(-1)
    return logits.gather(1, torch.tensor(ids[1:], device=logits.device)[:, None])[start - 1 :, 0].tolist()


def assert_exact(model: Any, ids: Sequence[int], generation: Generation) -> None:
    expected = plain(model, [*ids, *generation.ids], len(ids))
    assert generation.logprobs == pytest.approx(expected, abs=1e-4)


def assert_equal(subject: Subject, one: Generation, other: Generation) -> None:
    """Bit for bit where the engine promises that."""
    if subject.exact:
        assert one == other
    else:
        assert (one.ids, one.stop) == (other.ids, other.stop)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert one.sampling_logprobs == pytest.approx(other.sampling_logprobs, abs=1e-4)


def kept_ids(logits: Any, params: SamplingParams) -> list[int]:
    """What the parameters say, id by id: the ids that one row (V,) may give, most probable first."""
    probs = (logits.double() / params.temperature).softmax(0).tolist()
    ranked = sorted(range(len(probs)), key=lambda i: (-probs[i], i))
    ranked = [i for i in ranked if probs[i] >= params.min_p * probs[ranked[0]]][: params.top_k or None]
    total, kept, reached = sum(probs[i] for i in ranked), [], 0.0
    for i in ranked:
        if reached >= params.top_p * total:
            break
        kept.append(i)
        reached += probs[i]
    return kept
