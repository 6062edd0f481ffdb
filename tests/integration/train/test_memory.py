"""The memory of an update that is foretold from a model's configuration, against what torch's allocator counts."""

from __future__ import annotations

import random

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from retcon.core.types import Sample
from retcon.models.devices import VALUE, Computing, activation_bytes
from retcon.planning.needs import SCORED_KEYS, _linear
from retcon.train.kernels.forward import SHORT, forwards

pytestmark = pytest.mark.torch
LENGTH, VOCABULARY = 64, 32
CAN = torch.cpu.get_capabilities()
HAS_BFLOAT16 = any(CAN.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
MOST_WITH_BFLOAT16 = 1.7 if CAN.get("avx512_f") and not HAS_BFLOAT16 else 2.0
"""What goes into a layer is foretold as float32: kernels of AVX-512 keep it so, those with instructions for bfloat16
and those of AVX2 do not."""
MODELS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(
        hidden_size=64, intermediate_size=176, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=VOCABULARY, max_position_embeddings=256,
    ),
    "one wide layer": LlamaConfig(
        hidden_size=256, intermediate_size=688, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=VOCABULARY, max_position_embeddings=256,
    ),
    "wide heads": Qwen3Config(
        hidden_size=128, intermediate_size=384, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=64, vocab_size=VOCABULARY, max_position_embeddings=256,
    ),
    "many layers": Qwen2Config(
        hidden_size=64, intermediate_size=320, num_hidden_layers=10, num_attention_heads=4, num_key_value_heads=1,
        vocab_size=VOCABULARY, max_position_embeddings=256,
    ),
}  # fmt: skip


def sample(seed: int) -> Sample:
    drawn = random.Random(seed)
    ids = tuple(drawn.randrange(VOCABULARY) for _ in range(LENGTH))
    return Sample(ids, (0, *[1] * (LENGTH - 1)), (None, *[-1.0] * (LENGTH - 1)), (0,) * LENGTH)


def update(model: PreTrainedModel, count: int, computing: Computing) -> None:
    with forwards(model, [sample(n) for n in range(count)], computing) as parts:
        for part in parts:
            (-part.logprobs.mean()).backward()


def peak(model: PreTrainedModel, count: int, computing: Computing) -> int:
    """Bytes that an update of so many samples has at once at most, beyond weights and gradients."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        update(model, count, computing)
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_activations_are_bounded_by_not_much_more_than_they_take(name: str, checkpointing: bool, dtype: str) -> None:
    """By what further samples take: what does not grow with them is other parts' matter."""
    config = MODELS[name]
    model = AutoModelForCausalLM.from_config(config).eval()
    update(model, 1, Computing())  # makes the gradients
    computing = Computing(dtype=dtype, checkpointing=checkpointing, share_prompts=False)
    few, more = (peak(model, count, computing) for count in (2, 6))
    each = (more - few) / (4 * LENGTH) - 4 * VOCABULARY
    keys = LENGTH if dtype == "bfloat16" else 0
    ratio = activation_bytes(config, checkpointing, VALUE[dtype], keys) / each
    assert 1 <= ratio <= (MOST_WITH_BFLOAT16 if checkpointing and dtype == "bfloat16" else 1.4), f"{ratio:.2f}"
    if dtype == "bfloat16" and not checkpointing:  # what does not grow: the copies of the weights, and a gradient
        cast = 2 * _linear(config, sum(p.numel() for p in model.parameters()))
        assert 0.9 <= (few - (more - few) / 2) / cast <= 1.5


def test_attention_keeps_its_weights_as_far_as_is_foretold() -> None:
    assert SCORED_KEYS == SHORT
