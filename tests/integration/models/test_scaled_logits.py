"""Models that scale their logits: training computes what they themselves do."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from retcon.core.errors import CheckpointError
from retcon.core.types import Sample
from retcon.models.devices import Computing
from retcon.models.placing import OwnHead, check_logits, output_head
from retcon.train.kernels.forward import forwards

pytestmark = pytest.mark.torch

SIZES = {"vocab_size": 31, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0}  # fmt: skip
SCALED: dict[str, dict[str, Any]] = {
    "granite": {"logits_scaling": 8.0, "embedding_multiplier": 12.0, "attention_multiplier": 0.1},
    "granitemoe": {"logits_scaling": 8.0, "num_local_experts": 2, "num_experts_per_tok": 1},
    "granitemoeshared": {"logits_scaling": 8.0, "num_local_experts": 2, "num_experts_per_tok": 1},
    "hyperclovax": {"logits_scaling": 0.125},
    "cohere": {"logit_scale": 0.0625},
    "cohere2": {"logit_scale": 0.0625, "head_dim": 8},
    "falcon_h1": {"lm_head_multiplier": 0.1, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8,
                  "mamba_d_state": 8, "mamba_n_groups": 1},
    "gemma2": {"final_logit_softcapping": 5.0, "head_dim": 8},
    "bert": {"is_decoder": True},
    "roberta": {"is_decoder": True, "pad_token_id": 1},
    "rembert": {"is_decoder": True, "input_embedding_size": 16, "output_embedding_size": 40},
}  # fmt: skip
OWN = ("gemma2", "bert", "roberta", "rembert")
"""Those whose output layer alone does not give their logits."""


def made(kind: str, **more: Any) -> PreTrainedModel:
    """Random weights, and logits so large that they are far from flat."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SIZES, **more})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def samples() -> list[Sample]:
    draw = random.Random(0)
    prompt = tuple(draw.randrange(31) for _ in range(5))
    rows = [prompt + tuple(draw.randrange(31) for _ in range(n)) for n in (4, 9, 13)]
    return [Sample(ids, (0,) * 5 + (1,) * (len(ids) - 5), (None,) * len(ids), (0,) * len(ids)) for ids in rows]


def gradients(model: PreTrainedModel) -> list[torch.Tensor]:
    found = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    return found


@pytest.mark.parametrize("kind", SCALED)
def test_logprobs_entropies_and_their_gradient_are_the_models_own(kind: str) -> None:
    model, some = made(kind, **SCALED[kind]), samples()
    check_logits(model, kind)
    expected, entropies = [], []
    for sample in some:
        logprobs = model(torch.tensor([sample.ids]), use_cache=False).logits[0].log_softmax(-1)[4:-1]
        expected.append(logprobs.gather(1, torch.tensor(sample.ids[5:])[:, None]).sum())
        entropies.append(-(logprobs.exp() * logprobs).sum())
    (sum(expected) + sum(entropies)).backward()  # type: ignore[union-attr]
    wanted = gradients(model)
    got: dict[Sample, tuple[float, float]] = {}
    with forwards(model, some, Computing(), entropies=True) as parts:
        for part in parts:
            assert part.entropies is not None
            (part.logprobs.sum() + part.entropies.sum()).backward()
            rows = zip(part.logprobs.sum(1).tolist(), part.entropies.sum(1).tolist(), strict=True)
            got |= dict(zip(part.samples, rows, strict=True))
    for sample, logprob, entropy in zip(some, expected, entropies, strict=True):
        assert got[sample] == pytest.approx((logprob.item(), entropy.item()), abs=1e-3)
    for one, other in zip(gradients(model), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", SCALED)
def test_without_a_known_factor_the_model_itself_makes_its_logits(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(kind, **SCALED[kind])
    assert isinstance(output_head(model)[0], OwnHead) is (kind in OWN)
    monkeypatch.setattr("retcon.models.placing.logit_scale", lambda config: 1.0)
    check_logits(model, "a folder")
    assert isinstance(output_head(model)[0], OwnHead)


class Shuffled(Qwen3ForCausalLM):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        found = super().forward(*args, **kwargs)
        return type(found)(**{**found, "logits": found.logits + kwargs["input_ids"][..., None] * found.logits.flip(-1)})


def test_logits_that_are_not_made_of_the_last_hidden_states_are_refused() -> None:
    model = Shuffled(Qwen3Config(**SIZES, head_dim=8)).eval()
    with pytest.raises(CheckpointError, match="mine: the logits of Shuffled are not made of its last hidden states"):
        check_logits(model, "mine")
