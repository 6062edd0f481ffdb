"""Models whose attention is more than what a packed row computes: each reason by itself."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from transformers import MistralConfig, MistralForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from retcon.train.kernels.forward import why_not_packed

pytestmark = pytest.mark.torch
SIZES = {"vocab_size": 31, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 1, "max_position_embeddings": 64}  # fmt: skip


def qwen() -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16))


def test_scores_that_are_capped_or_of_no_scaled_dot_product_are_told() -> None:
    model = qwen()
    assert why_not_packed(model, 60) is None
    model.config.attn_logit_softcapping = 50.0
    assert why_not_packed(model, 60) == "the attention of Qwen3ForCausalLM is more than a scaled dot product"
    model = qwen()
    model._supports_sdpa = False
    assert why_not_packed(model, 60) == "the attention of Qwen3ForCausalLM is more than a scaled dot product"


def test_layers_of_another_kind_are_told_wherever_they_stand() -> None:
    model = qwen()
    model.config.layer_types = ["full_attention", "chunked_attention"]
    assert why_not_packed(model, 60) == "Qwen3ForCausalLM has chunked_attention layers"


def test_a_window_counts_where_the_model_does_not_say_which_layers_have_it() -> None:
    model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=16))
    assert not getattr(model.config, "layer_types", None)
    assert why_not_packed(model, 16) is None
    assert why_not_packed(model, 17) == "MistralForCausalLM attends over a window of 16 tokens, and a sample has 17"
    model.config.sliding_window = None
    assert why_not_packed(model, 60) is None
