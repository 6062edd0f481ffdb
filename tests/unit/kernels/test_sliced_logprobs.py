"""Log-probs by slices of the vocabulary: which slices, in which precision, and whose gradient is computed."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from retcon.core.types import Sample
from retcon.train.kernels.logprobs import gather_logprobs, learnt_logprobs, token_logprobs
from retcon.train.kernels.packing import pack

pytestmark = pytest.mark.torch


def plainly(logits: Tensor, targets: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]


@pytest.fixture
def made() -> tuple[nn.Linear, Tensor, Tensor]:
    """An output layer of 23 words, 7 hidden states, and targets: the first and last words, and of each half."""
    torch.manual_seed(0)
    return nn.Linear(8, 23), torch.randn(7, 8), torch.tensor([0, 22, 11, 12, 5, 6, 17])


@pytest.mark.parametrize("chunk", [1, 7 * 5, 7 * 6, 7 * 22, 7 * 23, 10_000])
@pytest.mark.parametrize(("wanted", "bias"), [("hwb", True), ("hw", False), ("h", True), ("h", False), ("w", False),
                                              ("wb", True), ("b", True)])  # fmt: skip
def test_the_gradients_are_those_of_the_logits_whoever_wants_them(
    made: tuple[nn.Linear, Tensor, Tensor], chunk: int, wanted: str, bias: bool
) -> None:
    head, hidden, targets = made
    if not bias:
        head.register_parameter("bias", None)
    leaves = {"h": hidden, "w": head.weight, "b": head.bias}
    for name, leaf in leaves.items():
        if leaf is not None:
            leaf.requires_grad_(name in wanted)
    asked, weights = [leaves[name] for name in wanted], torch.linspace(-1, 2, 7)
    expected = plainly(head(hidden), targets)
    found = learnt_logprobs(hidden, head, targets, chunk)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad((x * weights).sum(), asked) for x in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("chunk", [30, 10_000])
def test_products_are_in_autocasts_dtype_and_the_rest_in_float32(
    made: tuple[nn.Linear, Tensor, Tensor], chunk: int
) -> None:
    head, hidden, targets = made
    hidden.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found = learnt_logprobs(hidden, head, targets, chunk)
        halved = functional.linear(hidden, head.weight, head.bias)
    assert halved.dtype == torch.bfloat16
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, plainly(halved.float(), targets))
    assert (found - plainly(head(hidden), targets)).abs().max() > 1e-4
    wanted = (hidden, *head.parameters())
    exact = torch.autograd.grad(plainly(head(hidden), targets).sum(), wanted)
    for gradient, plain in zip(torch.autograd.grad(found.sum(), wanted), exact, strict=True):
        assert gradient.dtype == torch.float32
        torch.testing.assert_close(gradient, plain, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("chunk", [30, 10_000])
def test_hidden_states_in_float64_give_log_probs_in_float64(made: tuple[nn.Linear, Tensor, Tensor], chunk: int) -> None:
    head, hidden, targets = made[0].double(), made[1].double().requires_grad_(), made[2]
    found, expected = learnt_logprobs(hidden, head, targets, chunk), plainly(head(hidden), targets)
    torch.testing.assert_close(found, expected, atol=1e-14, rtol=1e-12)
    wanted = (hidden, *head.parameters())
    gradients: list[Any] = [torch.autograd.grad(x.sum(), wanted) for x in (found, expected)]
    torch.testing.assert_close(*gradients, atol=1e-13, rtol=1e-11)


@pytest.mark.parametrize("chunk", [30, 10_000])
def test_a_frozen_body_under_a_head_with_an_adapter(made: tuple[nn.Linear, Tensor, Tensor], chunk: int) -> None:
    head, hidden, targets = nn.Sequential(nn.Linear(8, 8), made[0]), made[1], made[2]
    wanted = tuple(head.parameters())
    values = learnt_logprobs(hidden, head, targets, chunk), plainly(head(hidden), targets)
    gradients = [torch.autograd.grad(x.sum(), wanted) for x in values]
    torch.testing.assert_close(*gradients)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 29, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
             "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32}  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**sizes)).eval()


@pytest.mark.parametrize("learnt", [[(0, 4)], [(1, 1)], [(0, 1), (0, 5), (1, 3)], []])
def test_padded_rows_have_log_probs_where_they_are_learnt(
    model: LlamaForCausalLM, learnt: list[tuple[int, int]]
) -> None:
    """Of a single id as well, and of none."""
    ids, mask = torch.arange(12).view(2, 6), torch.zeros(2, 6, dtype=torch.bool)
    expected = torch.zeros(2, 6)
    with torch.no_grad():
        plain = model(ids).logits.log_softmax(-1)
        for row, at in learnt:
            mask[row, at], expected[row, at] = True, plain[row, at - 1, ids[row, at]]
        found = token_logprobs(model, ids, mask)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("chunk", [40, 10_000])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_what_is_learnt_twice_has_its_log_prob_in_both_places(
    model: LlamaForCausalLM, chunk: int, temperature: float
) -> None:
    samples = [Sample((1, 2, *own), (0, 0, 1, 1, 1), (), (), tree="a") for own in ((3, 4, 5), (3, 4, 6), (3, 7, 8))]
    packing = pack(samples, share=True, dtype=torch.float32, device=torch.device("cpu"))
    assert packing.repeats is not None
    hidden = torch.randn(packing.ids.numel(), 16, requires_grad=True)
    ids, mask = (torch.tensor([getattr(s, name) for s in samples]) for name in ("ids", "mask"))
    with torch.no_grad():
        given = {"ids": ids, "mask": mask.bool(), "chunk": chunk, "temperature": temperature}
        found = gather_logprobs(model, hidden, packing.source, repeats=packing.repeats, **given)
        rows = model.lm_head(hidden[packing.source]) / temperature
    torch.testing.assert_close(found[:, 2:].reshape(-1), plainly(rows, ids[:, 2:].reshape(-1)))
    assert not found[:, :2].any()
