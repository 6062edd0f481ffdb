"""How attention is computed: in which dtype, what it keeps, and when the keys of a group are copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from retcon.core.types import Sample
from retcon.train.kernels.attention import SHORT, attend, packed_attention
from retcon.train.kernels.packing import pack

pytestmark = pytest.mark.torch


def kept_by(compute: Callable[[], Tensor]) -> int:
    """Elements that are kept for the backward."""
    counts: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        counts.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        compute()
    return sum(counts)


@pytest.mark.parametrize(
    ("dtype", "keys", "keeps"),
    [
        (torch.bfloat16, SHORT, True),
        (torch.bfloat16, SHORT + 1, False),
        (torch.float32, SHORT, False),
        (torch.float32, SHORT + 1, False),
    ],
)
def test_weights_are_kept_for_few_keys_in_bfloat16_alone(dtype: torch.dtype, keys: int, keeps: bool) -> None:
    heads, queries = 16, 4
    q = torch.randn(1, heads, queries, 4, dtype=dtype, requires_grad=True)
    k, v = (torch.randn(1, 1, keys, 4, dtype=dtype, requires_grad=True) for _ in range(2))
    mask = torch.zeros(1, 1, queries, keys, dtype=dtype)
    weights = heads * queries * keys
    kept = kept_by(lambda: attend(q, k, v, mask, scale=None))
    assert kept > weights if keeps else kept < weights / 2


def test_under_autocast_attention_is_that_of_its_dtype() -> None:
    """Queries and keys come from norms, whose weights are float32."""
    prompt, own = (1, 2, 3, 4, 5), ((6, 7, 8), (9, 10, 11, 12))
    samples = [Sample(prompt + ids, (0,) * 5 + (1,) * len(ids), (), ()) for ids in own]
    packing = pack(samples, share=True, dtype=torch.bfloat16, device=torch.device("cpu"))
    draw = torch.Generator().manual_seed(0)
    wide = [torch.randn(1, heads, packing.ids.numel(), 8, generator=draw) for heads in (4, 2, 2)]

    def attended(tensors: Sequence[Tensor]) -> Tensor:
        q, k, v = tensors
        return packed_attention(nn.Identity(), q, k, v, None, packing=packing)[0]

    with torch.autocast("cpu", torch.bfloat16):
        found = attended(wide)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, attended([x.to(torch.bfloat16) for x in wide]))
    kept = kept_by(lambda: attended([x.to(torch.bfloat16).requires_grad_() for x in wide]))
    with torch.autocast("cpu", torch.bfloat16):
        assert kept == kept_by(lambda: attended([x.clone().requires_grad_() for x in wide]))


class Asked(TorchFunctionMode):
    """Notes the keys and values that torch's attention is given, and whether it is told of groups."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, Tensor, bool]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        q, k, v = args
        self.calls.append((k, v, kwargs["enable_gqa"]))
        return torch.empty_like(q)


@pytest.mark.parametrize(
    ("device", "dtype", "masked", "copied"),
    [
        ("cuda", torch.bfloat16, False, False),
        ("cuda", torch.float16, False, False),
        ("cuda", torch.bfloat16, True, True),
        ("cuda", torch.float16, True, True),
        ("cuda", torch.float32, False, True),
        ("cuda", torch.float32, True, True),
        ("cpu", torch.float32, False, False),
        ("cpu", torch.float32, True, False),
    ],
)
def test_keys_of_a_group_are_copied_where_only_a_gpus_slowest_kernel_knows_of_groups(
    device: str, dtype: torch.dtype, masked: bool, copied: bool
) -> None:
    """No GPU is needed: the tensors are fakes."""
    with FakeTensorMode(), Asked() as asked:
        for heads in (4, 2, 1):
            q = torch.empty(2, 4, 3, 8, device=device, dtype=dtype)
            k, v = (torch.empty(2, heads, 3, 8, device=device, dtype=dtype) for _ in range(2))
            mask = torch.zeros(1, 1, 3, 3, device=device, dtype=dtype) if masked else None
            assert attend(q, k, v, mask, scale=None).shape == q.shape
            their_k, their_v, grouped = asked.calls.pop()
            if copied and heads < 4:
                assert (their_k.shape[1], their_v.shape[1], grouped) == (4, 4, False)
            else:
                assert (their_k is k, their_v is v, grouped) == (True, True, heads < 4)
    assert not asked.calls
