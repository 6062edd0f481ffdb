"""What an engine decodes with: the trained weights, or a copy that is kept equal to them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from retcon.config.schema import LoraSection
from retcon.models.lora import Adapter
from retcon.train.rollouts import EngineWeights

pytestmark = pytest.mark.torch
IDS = torch.arange(24).view(2, 12)


@pytest.fixture(params=["tied", "untied", "gpt2", "experts"])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    torch.manual_seed(0)
    if request.param == "gpt2":
        return GPT2LMHeadModel(GPT2Config(vocab_size=31, n_embd=32, n_layer=1, n_head=2, n_positions=32)).eval()
    sizes = {"vocab_size": 31, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16,
             "num_attention_heads": 2, "num_key_value_heads": 1}  # fmt: skip
    if request.param == "experts":
        config = Qwen3MoeConfig(**sizes, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24)
        return Qwen3MoeForCausalLM(config).eval()
    return Qwen3ForCausalLM(Qwen3Config(**sizes, tie_word_embeddings=request.param == "tied")).eval()


def train(model: PreTrainedModel) -> None:
    """Changes all that is trained, by as much as the eye can see."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(IDS).logits.float()
    return found


def places(model: PreTrainedModel) -> dict[str, int]:
    return {name: parameter.data_ptr() for name, parameter in model.named_parameters()}


def test_equal_weights_are_shared(model: PreTrainedModel) -> None:
    weights = EngineWeights(model, torch.float32)
    assert weights.model is model
    train(model)
    weights.sync()
    assert weights.model is model


@pytest.mark.parametrize(("dtype", "near"), [(torch.float16, 2e-2), (torch.bfloat16, 2e-1)])
def test_a_copy_in_another_dtype_follows_in_place(model: PreTrainedModel, dtype: torch.dtype, near: float) -> None:
    weights = EngineWeights(model, dtype)
    assert weights.model.dtype == dtype
    before, where = logits(weights.model), places(weights.model)
    assert len(where) == len(list(model.named_parameters())), "a tied weight is there once"
    assert not any(p.requires_grad for p in weights.model.parameters()), "nothing is learnt there"
    assert weights.adapters is None
    train(model)
    assert torch.equal(logits(weights.model), before)
    weights.sync()
    assert places(weights.model) == where
    assert not torch.allclose(logits(weights.model), before, atol=near)
    torch.testing.assert_close(logits(weights.model), logits(model), atol=near, rtol=0)
    # Frequencies of positions and the like are buffers, which half precision would spoil.
    assert all(b.dtype != dtype for b in weights.model.buffers())


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-5), (torch.float16, 2e-2)])
def test_adapters_are_merged_into_a_plain_copy(model: PreTrainedModel, dtype: torch.dtype, near: float) -> None:
    plain = logits(model)
    adapter = Adapter(model, LoraSection(rank=3), seed=0)
    weights = EngineWeights(model, dtype, adapter)
    assert torch.equal(logits(model), plain), "B is zero at first"
    where = places(weights.model)
    assert not [name for name in where if "lora" in name]
    for _ in range(2):
        train(model)
        weights.sync()
        torch.testing.assert_close(logits(weights.model), logits(model), atol=near, rtol=1e-4)
    assert (logits(model) - plain).abs().max() > 10 * near
    assert places(weights.model) == where
    assert type(weights.model) is type(model)


def test_an_engine_elsewhere_is_handed_adapters_with_the_layers_that_have_one(
    model: PreTrainedModel, tmp_path: Path
) -> None:
    handed = EngineWeights(model, torch.float32, Adapter(model, LoraSection(rank=3), seed=0)).adapters
    assert handed is not None
    if isinstance(model, Qwen3MoeForCausalLM):
        return  # refused before: `check_lora(..., served=True)`
    qwen = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    wanted = ("c_attn", "c_fc", "c_proj") if isinstance(model, GPT2LMHeadModel) else qwen
    assert (handed.rank, handed.targets) == (3, wanted)
    handed.save(tmp_path)
    assert (tmp_path / "adapter_model.safetensors").is_file()
