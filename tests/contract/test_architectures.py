"""Tiny models of many architectures: served with the log-probs of their own forward, packed or by that forward."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
import torch
import transformers
from tests.engines import plain, plain_logits, run
from transformers import AutoModelForCausalLM

from retcon.core.errors import CheckpointError, ComputeWarning, EngineError
from retcon.core.types import Sample
from retcon.engine.local.decoder import choose_decoder
from retcon.engine.local.engine import LocalEngine
from retcon.engine.local.forward import Chunk, Step
from retcon.engine.local.own import CACHE_USES
from retcon.engine.local.slabs import Place
from retcon.engine.types import SamplingParams
from retcon.models.devices import DEFAULT_COMPUTING
from retcon.models.placing import check_logits
from retcon.train.kernels.forward import forwards

pytestmark = pytest.mark.torch

VOCAB, MAX_LEN, TURNS = 97, 128, 4
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 256, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 2}
EXPERTS = {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SHORT = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": None, "eos_token_id": None}
SERVED: dict[str, dict[str, Any]] = {
    "Llama": GROUPED,
    "Mistral": {**GROUPED, "sliding_window": None},
    "Qwen2": GROUPED,
    "Qwen3": {**GROUPED, "head_dim": 16},
    "Qwen3Moe": EXPERTS,
    "Mixtral": {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "Gemma": {**GROUPED, "head_dim": 16},
    "Gemma3Text": {**GROUPED, "head_dim": 16},
    "Phi": GROUPED,
    "Phi3": GROUPED,
    "GPTNeoX": SIZES,
    "GPT2": {**SHORT, "n_positions": 256},
    "OPT": {
        **SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32, "pad_token_id": 1,
    },
    "Cohere": GROUPED,
    "Olmo2": GROUPED,
    "Granite": GROUPED,
    "Glm": {**GROUPED, "head_dim": 8},
    "Starcoder2": GROUPED,
    "SmolLM3": GROUPED,
    "DeepseekV3": {  # keys and values of two sizes
        **SIZES, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2,
        "topk_group": 1, "moe_intermediate_size": 16, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8, "v_head_dim": 12, "first_k_dense_replace": 1,
    },
}  # fmt: skip
CROPPED, HISTORIES, TURNS_ANEW = (way.about for way in CACHE_USES[:3])
SHORT_WINDOW = {**GROUPED, "head_dim": 8, "sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2}
OWN: dict[str, tuple[dict[str, Any], str]] = {
    "DiffLlama": (GROUPED, rf"log-probs that differ .*by up to [\d.]+ nats .*; {CROPPED}"),
    "Gemma2": ({**GROUPED, "head_dim": 16}, f"Gemma2Attention needs softcap.*; {CROPPED}"),
    "GptOss": (SHORT_WINDOW, f"GptOssForCausalLM attends over a window of 8 tokens.*; {CROPPED}"),
    "Falcon": (SIZES, rf"FalconForCausalLM over stored keys .*modeling_falcon\.py:\d+.*; {CROPPED}"),
    "Bloom": (SHORT, f"BloomForCausalLM does not run its attention through .*; {CROPPED}"),
    "Mamba": ({**SIZES, "state_size": 8, "time_step_rank": 4}, f"MambaForCausalLM .*; {TURNS_ANEW}"),
    "Lfm2": (
        {**GROUPED, "layer_types": ["conv", "full_attention"]}, f"Lfm2ForCausalLM has conv layers; {HISTORIES}",
    ),
    "Qwen3Next": (
        {**EXPERTS, "head_dim": 8, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
         "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
         "shared_expert_intermediate_size": 16},
        f"Qwen3NextForCausalLM has linear_attention layers; {HISTORIES}",
    ),
}  # fmt: skip


def make(name: str, sizes: dict[str, Any]) -> Any:
    """A new model with random weights, whose contexts each have a distribution of their own."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(getattr(transformers, f"{name}Config")(**sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model


async def worst_difference(model: Any, engine: LocalEngine) -> float:
    """Nats between the engine's log-probs and the model's own, over four turns of requests that share forwards.

    In each turn two requests generate; one goes on in chunks, one is rolled back and scored with other tokens, and a
    fork of the first takes another course.
    """
    draw, worst = random.Random(1), 0.0

    def some(count: int) -> list[int]:
        return [draw.randrange(2, VOCAB) for _ in range(count)]

    def compare(history: list[int], start: int, logprobs: Any) -> None:
        nonlocal worst
        expected = plain(model, history, start)
        assert len(expected) == len(logprobs)
        worst = max(worst, *(abs(a - b) for a, b in zip(expected, logprobs, strict=True)))

    first, second = some(9), some(13)
    for turn in range(TURNS):
        params = SamplingParams(max_tokens=6, seed=turn)
        made = await asyncio.gather(*(engine.generate(n, ids, params) for n, ids in (("a", first), ("b", second))))
        compare([*first, *made[0].ids], len(first), made[0].logprobs)
        compare([*second, *made[1].ids], len(second), made[1].logprobs)
        other = [*second, *some(4)]
        first = [*first, *made[0].ids, *some(3)]
        fork = [*first[:-5], *some(6)]
        engine.fork(f"fork {turn}", "a", len(first) - 5)
        asked = {"a": (first, len(first) - 2), "b": (other, len(second)), f"fork {turn}": (fork, len(fork) - 5)}
        scored = await asyncio.gather(*(engine.score(name, *what) for name, what in asked.items()))
        for (history, start), logprobs in zip(asked.values(), scored, strict=True):
            compare(history, start, logprobs)
        second = other
    return worst


@pytest.mark.parametrize("name", SERVED)
def test_log_probs_over_turns_are_those_of_the_models_own_forward(name: str) -> None:
    model = make(name, SERVED[name])
    assert run(worst_difference(model, LocalEngine(model, max_len=MAX_LEN))) < 1e-4


@pytest.mark.parametrize("name", OWN)
def test_what_the_packed_forward_cannot_do_the_models_own_does(name: str) -> None:
    sizes, reason = OWN[name]
    model = make(name, sizes)
    with pytest.warns(ComputeWarning, match=f"decode more slowly, with the model's own forward: .*{reason}"):
        engine = LocalEngine(model, max_len=MAX_LEN)
    assert run(worst_difference(model, engine)) < 1e-4


def test_requests_of_equal_length_share_a_forward_of_the_models_own() -> None:
    model = make("Gemma2", OWN["Gemma2"][0])
    shapes: list[tuple[int, ...]] = []
    model.register_forward_pre_hook(
        lambda _, args, options: shapes.append(tuple(options["input_ids"].shape)), with_kwargs=True
    )

    async def main() -> None:
        engine = LocalEngine(model, max_len=MAX_LEN)
        shapes.clear()
        some = [engine.generate(str(n), [5, 6, 7 + n], SamplingParams(max_tokens=3, seed=n)) for n in range(6)]
        await asyncio.gather(*some, engine.generate("longer", [5] * 9, SamplingParams(max_tokens=3)))

    with pytest.warns(ComputeWarning):
        run(main())
    assert shapes == [(6, 3), (1, 9), (6, 1), (1, 1), (6, 1), (1, 1)]


def test_rows_of_a_batch_may_change_places() -> None:
    model = make("Mamba", OWN["Mamba"][0])
    with pytest.warns(ComputeWarning):
        decoder = choose_decoder(model, MAX_LEN)
    slab, ids = decoder.layout.slab(64, 2), ([5, 6, 7, 8, 9], [10, 11, 12, 13, 14])
    with torch.inference_mode():
        decoder.feed([], [Chunk(Place(slab, n), 0, row[:3], 1) for n, row in enumerate(ids)], model.device)
        for at, order in ((3, (0, 1)), (4, (1, 0))):
            steps = [Step(Place(slab, n), ids[n][at : at + 1], at) for n in order]
            logits = decoder.feed(steps, [], model.device).logits(range(2))
    for n, row in zip(order, logits, strict=True):
        assert torch.allclose(row, plain_logits(model, ids[n])[-1], atol=1e-4)


def test_a_model_that_sees_what_follows_is_refused_with_the_reason() -> None:
    with pytest.raises(EngineError, match=r"BertLMHeadModel cannot be served: .* differ .* by up to [\d.]+ nats"):
        LocalEngine(make("Bert", {**SIZES, "pad_token_id": 0}), max_len=MAX_LEN)


def test_a_model_whose_own_code_gives_no_gradient_is_refused_in_a_sentence() -> None:
    sizes = {
        "vocab_size": VOCAB, "hidden_size": 32, "num_attention_heads": 2, "attention_head_size": 16,
        "attn_layers": ["local"], "feed_forward_size": 48, "axial_pos_embds": False, "is_decoder": True,
    }  # fmt: skip
    model = make("Reformer", sizes)
    check_logits(model, "it")
    sample = Sample((5, 6, 7, 8), (0, 0, 1, 1), (None,) * 4, (0,) * 4)
    refused = pytest.raises(CheckpointError, match=r"ReformerModelWithLMHead has no gradients .* raised AssertionError")
    with refused, forwards(model, [sample], DEFAULT_COMPUTING) as parts:
        for part in parts:
            part.logprobs.sum().backward()


def test_a_lean_forward_that_differs_gives_way_to_transformers_own() -> None:
    model = make("Llama", GROUPED)
    for layer in model.model.layers:
        layer.mlp.act_fn = torch.nn.ReLU()
    engine = LocalEngine(model, max_len=MAX_LEN)
    assert (
        engine.decoding == "transformers' own forward: the fused one's log-probs differ from those of LlamaForCausalLM"
    )
    assert run(worst_difference(model, engine)) < 1e-4
