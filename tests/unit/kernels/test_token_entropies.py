"""Entropies before the learnt tokens, against those of all logits: values, gradients, and how many logits there are."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from retcon.models.placing import output_head
from retcon.train.kernels.logprobs import gather_entropies

pytestmark = pytest.mark.torch
WORDS = 31
MASK = torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0], [0, 1, 0, 1]], dtype=torch.bool)
SOURCE = torch.tensor([2, 5, 0, 3])
"""Of nine hidden states those before the learnt tokens, row by row."""


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    made = LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, **sizes))
    torch.nn.init.normal_(made.lm_head.weight)
    output_head(made)  # found out before calls are counted
    return made


def entropies_of(logits: Tensor) -> Tensor:
    shares = logits.softmax(-1)
    return -(shares * shares.log()).sum(-1)


@pytest.mark.parametrize("temperature", [None, 0.6, 2.0])
@pytest.mark.parametrize(
    ("chunk", "calls"), [(1, [1] * 4), (WORDS, [1] * 4), (3 * WORDS + 30, [3, 1]), (4 * WORDS, [4]), (10**6, [4])]
)
def test_entropies_are_those_of_all_logits_of_which_few_exist_at_once(
    model: LlamaForCausalLM, chunk: int, calls: list[int], temperature: float | None
) -> None:
    hidden = torch.randn(9, 8, requires_grad=True)
    asked: list[int] = []
    hook = model.lm_head.register_forward_hook(lambda module, given, out: asked.append(len(out)))
    named = {} if temperature is None else {"temperature": temperature}
    found = gather_entropies(model, hidden, SOURCE, mask=MASK, chunk=chunk, **named)
    weights = torch.linspace(-1, 1, MASK.numel()).view(MASK.shape)
    gradients = torch.autograd.grad((found * weights).sum(), [hidden, model.lm_head.weight])
    hook.remove()
    assert asked[: len(calls)] == calls
    assert sorted(asked[len(calls) :]) == (sorted(calls) if len(calls) > 1 else []), "in the backward"
    wanted = entropies_of(model.lm_head(hidden[SOURCE]) / (temperature or 1.0))
    assert found.shape == MASK.shape
    assert not found[~MASK].any()
    torch.testing.assert_close(found[MASK], wanted)
    expected = torch.autograd.grad((wanted * weights[MASK]).sum(), [hidden, model.lm_head.weight])
    torch.testing.assert_close(gradients, expected)


@pytest.mark.parametrize("chunk", [WORDS, 10**6])
def test_entropies_of_logits_in_half_precision_are_float32(model: LlamaForCausalLM, chunk: int) -> None:
    model.to(torch.bfloat16)
    hidden = torch.randn(9, 8, dtype=torch.bfloat16)
    found = gather_entropies(model, hidden, SOURCE, mask=MASK, chunk=chunk)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[MASK].double(), entropies_of(model.lm_head(hidden[SOURCE]).double()))
