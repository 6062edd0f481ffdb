"""Attention and log-probs of a training step against the same written plainly: scales, groups, masks, other heads."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from retcon.core.types import Sample
from retcon.train.kernels.forward import attend, packed_attention
from retcon.train.kernels.logprobs import learnt_logprobs
from retcon.train.kernels.packing import pack

pytestmark = pytest.mark.torch


def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    groups, length = q.shape[1] // k.shape[1], q.shape[2]
    k, v = (x.repeat_interleave(groups, 1).double() for x in (k, v))
    if mask is None:
        mask = torch.full((length, length), -torch.inf).triu(1)
    scores = q.double() @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return (scores + mask).softmax(-1) @ v


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_the_softmax_of_scaled_scores(
    dtype: torch.dtype, heads: int, scale: float | None, masked: bool
) -> None:
    draw = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, 6, 8, generator=draw).to(dtype)
    k, v = (torch.randn(2, heads, 9 if masked else 6, 8, generator=draw).to(dtype) for _ in range(2))
    mask = None
    if masked:
        mask = torch.zeros(2, 1, 6, 9).masked_fill(torch.rand(2, 1, 6, 9, generator=draw) < 0.3, -torch.inf)
        mask[..., 0] = 0.0
        mask = mask.to(dtype)
    found = attend(q, k, v, mask, scale=scale)
    assert found.dtype == dtype
    close = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(found.double(), plain(q, k, v, mask, scale), atol=close, rtol=close)


@pytest.mark.parametrize("scale", [None, 0.7])
def test_packed_rows_attend_with_the_gradient_that_they_have_on_their_own(scale: float | None) -> None:
    """Three prompts, each of two samples: beginnings and rows of several lengths, so that all of them are padded."""
    samples = [
        Sample(
            tuple(range(start, start + prompt)) + tuple(range(own, own + length)), (0,) * prompt + (1,) * length, (), ()
        )
        for start, prompt, length in ((0, 9, 12), (10, 9, 12), (20, 8, 11))
        for own in (100 + 10 * start, 150 + 10 * start)
    ]
    packing = pack(samples, share=True, dtype=torch.float32, device=torch.device("cpu"))
    prefixes = [bucket.prefix for bucket in packing.buckets if bucket.prefix is not None]
    assert any(bucket.kept is not None for bucket in packing.buckets if bucket.prefix is None)
    assert any(bucket.kept is not None for bucket in packing.buckets if bucket.prefix is not None)
    assert any(prefix.distinct and prefix.kept is not None for prefix in prefixes)
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, packing.ids.numel(), 8, generator=draw) for heads in (4, 2, 2))
    for x in (q, k, v):
        x.requires_grad_()
    weights = torch.randn(q.shape, generator=draw).transpose(1, 2)
    found = packed_attention(nn.Identity(), q, k, v, None, packing=packing, scaling=scale)[0]
    gradients = torch.autograd.grad((found * weights).sum(), (q, k, v))
    wanted = torch.zeros_like(found)
    for sample in samples:
        at = [packing.ids[0].tolist().index(i) for i in sample.ids]  # no two are the same
        wanted[:, at] = plain(q[:, :, at], k[:, :, at], v[:, :, at], None, scale).transpose(1, 2).float()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gradients, torch.autograd.grad((wanted * weights).sum(), (q, k, v)))


def test_dropout_plays_its_part_whatever_attends() -> None:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, 6, 8, generator=draw).to(torch.bfloat16) for _ in range(3))
    whole = attend(q, k, v, None, scale=None)
    assert torch.equal(whole, attend(q, k, v, None, scale=None))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        assert not torch.allclose(whole, attend(q, k, v, None, scale=None, drop=0.5), atol=0.1)


class Adapted(nn.Module):
    """An output layer with an adapter on it: no plain linear layer."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.base = nn.Linear(8, words, bias=False)
        self.down = nn.Linear(8, 2, bias=False)
        self.up = nn.Linear(2, words, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.base(hidden) + self.up(self.down(hidden))


@pytest.mark.parametrize("chunk", [1, 30, 64, 10_000])
def test_log_probs_of_a_head_with_an_adapter_are_those_of_its_logits(chunk: int) -> None:
    torch.manual_seed(0)
    head, hidden, targets = Adapted(29), torch.randn(11, 8, requires_grad=True), torch.arange(11) * 2
    weights = torch.linspace(-1, 1, 11)
    wanted = head(hidden).log_softmax(-1).gather(1, targets[:, None])[:, 0]
    gradients = torch.autograd.grad((wanted * weights).sum(), [hidden, *head.parameters()])
    calls = []
    head.register_forward_hook(lambda module, given, out: calls.append(out.numel()))
    found = learnt_logprobs(hidden, head, targets, chunk)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.autograd.grad((found * weights).sum(), [hidden, *head.parameters()]), gradients)
    assert max(calls) <= max(29, chunk), "so many logits at once, or those of one token"
