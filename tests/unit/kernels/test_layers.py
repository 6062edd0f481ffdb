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
from torch.utils._python_dispatch import TorchDispatchMode

from retcon.core.types import Sample
from retcon.train.kernels import layers as linear
from retcon.train.kernels.forward import SHORT, attend, packed_attention
from retcon.train.kernels.layers import product, quick_linears, quick_norms
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
        ("cuda", torch.bfloat16, False, False), ("cuda", torch.float16, False, False),
        ("cuda", torch.bfloat16, True, True), ("cuda", torch.float16, True, True),
        ("cuda", torch.float32, False, True), ("cuda", torch.float32, True, True),
        ("cpu", torch.float32, False, False), ("cpu", torch.float32, True, False),
    ],
)  # fmt: skip
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


# Linear layers and norms as training computes them on a CPU: against torch's own, and only where they are meant.


AVAILABLE = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@pytest.fixture(autouse=True)
def onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is oneDNN it is used, whether or not it is the quicker one on this CPU."""
    monkeypatch.setattr(linear, "AVAILABLE", AVAILABLE)


class Products(TorchDispatchMode):
    """Counts the products by oneDNN."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "_linear_pointwise" in str(func)
        return func(*args, **(kwargs or {}))


def by_onednn(compute: Callable[[], object]) -> int:
    with Products() as products:
        compute()
    return products.count


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64).to(dtype)


def as_usual(dtype: torch.dtype) -> Any:
    return {torch.float32: {"atol": 1e-5, "rtol": 1e-5}, torch.float64: {"atol": 1e-12, "rtol": 1e-9}}[dtype]


@pytest.mark.parametrize("shape", [(8,), (3, 8), (2, 3, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_product_has_its_bias_in_either_precision(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight, bias = drawn(*shape, dtype=dtype), drawn(4, 8, dtype=dtype), drawn(4, dtype=dtype)
    torch.testing.assert_close(product(x, weight), x @ weight.t(), **as_usual(dtype))
    torch.testing.assert_close(product(x, weight, bias), x @ weight.t() + bias, **as_usual(dtype))
    quick = AVAILABLE and dtype == torch.float32
    assert by_onednn(lambda: product(x, weight, bias)) == quick


@pytest.mark.parametrize(("wanted", "bias"), [("xwb", True), ("xw", False), ("x", False), ("x", True), ("w", False),
                                              ("wb", True), ("b", True)])  # fmt: skip
def test_a_quick_layer_has_the_gradients_that_are_wanted(wanted: str, bias: bool) -> None:
    layer, x, weights = nn.Linear(8, 4, bias=bias), drawn(2, 3, 8), drawn(2, 3, 4)
    leaves = {"x": x, "w": layer.weight, "b": layer.bias}
    for name, leaf in leaves.items():
        if leaf is not None:
            leaf.requires_grad_(name in wanted)
    asked = [leaves[name] for name in wanted]
    plain = layer(x)
    gradients = torch.autograd.grad((plain * weights).sum(), asked)
    found: list[Any] = []

    def compute() -> None:
        found.append(layer(x))
        found.append(torch.autograd.grad((found[0] * weights).sum(), asked))

    with quick_linears(nn.Sequential(layer)):
        count = by_onednn(compute)
    torch.testing.assert_close(found, [plain, gradients])
    assert count == AVAILABLE * (1 + ("x" in wanted) + ("w" in wanted)), "nothing is computed that nobody wants"
    assert by_onednn(lambda: layer(x)) == 0


def test_where_onednn_is_slower_nothing_is_computed_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "AVAILABLE", False)
    assert by_onednn(lambda: product(drawn(3, 8), drawn(4, 8))) == 0


def test_what_a_quick_layer_does_not_compute_itself_has_its_bias_too() -> None:
    layer, x = nn.Linear(8, 4), drawn(3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        plain = layer(x)
        with quick_linears(layer):
            assert by_onednn(lambda: layer(x)) == 0
            torch.testing.assert_close(layer(x), plain, atol=0, rtol=0)


def test_layers_of_their_own_kind_and_others_in_bfloat16_are_left_alone() -> None:
    class Doubled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    layers, x = nn.Sequential(Doubled(8, 8), nn.Linear(8, 4)), drawn(2, 3, 8)
    plain = layers(x)
    with quick_linears(layers):
        torch.testing.assert_close(layers(x), plain)
        with quick_linears(layers):
            torch.testing.assert_close(layers(x), plain)
        assert by_onednn(lambda: layers(x)) == AVAILABLE
        with torch.autocast("cpu", torch.bfloat16):
            assert layers(x).dtype == torch.bfloat16
            assert by_onednn(lambda: layers(x)) == by_onednn(lambda: product(x, layers[1].weight)) == 0


class RMSNorm(nn.Module):
    """As models have it."""

    def __init__(self, size: int, epsilon: float = 0.5) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.linspace(0.5, 2, size)), epsilon

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(self.weight.dtype)
        return self.weight * wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.variance_epsilon)


@pytest.mark.parametrize("shape", [(3, 8), (2, 5, 8), (2, 3, 4, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_quick_norm_and_its_gradients_are_those_of_the_formula(
    shape: tuple[int, ...], dtype: torch.dtype, frozen: bool
) -> None:
    norm, x, weights = RMSNorm(8).to(dtype), drawn(*shape, dtype=dtype).requires_grad_(), drawn(*shape, dtype=dtype) + 1
    norm.weight.requires_grad_(not frozen)
    asked = [x] if frozen else [x, norm.weight]
    plain = norm(x)
    gradients = torch.autograd.grad((plain * weights).sum(), asked)
    with quick_norms(nn.Sequential(norm)):
        found = norm(x)
    assert type(found.grad_fn).__name__ == "_RMSNormBackward"
    torch.testing.assert_close(found, plain, **as_usual(dtype))
    torch.testing.assert_close(torch.autograd.grad((found * weights).sum(), asked), gradients, **as_usual(dtype))


def test_a_quick_norm_of_bfloat16_is_computed_in_float32() -> None:
    norm, x = RMSNorm(8), drawn(2, 3, 8).to(torch.bfloat16).requires_grad_()
    plain = norm(x)
    with quick_norms(nn.Sequential(norm)):
        found = norm(x)
    torch.testing.assert_close(found, plain)
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (found, plain)]
    assert gradients[0].dtype == torch.bfloat16
    torch.testing.assert_close(*gradients, atol=0.02, rtol=0.02)


class SampleRMSNorm(RMSNorm):
    """Over n - 1, so that 8 numbers give what is 7 % less."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.square().sum(-1, keepdim=True) / (x.shape[-1] - 1)
        return self.weight * x * torch.rsqrt(mean + self.variance_epsilon)


class CentredRMSNorm(RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(-1, keepdim=True))


class PositiveRMSNorm(RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.relu())


class BiasedRMSNorm(RMSNorm):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.bias


class Scaled(RMSNorm):
    """Of another name."""


class OwnRMSNorm(nn.RMSNorm):
    """torch's, which calls its parts otherwise."""


def test_only_norms_that_are_known_by_name_parts_and_formula_are_computed_here() -> None:
    others = [kind(8) for kind in (SampleRMSNorm, CentredRMSNorm, PositiveRMSNorm, BiasedRMSNorm, Scaled, OwnRMSNorm)]
    norms = nn.ModuleList([RMSNorm(8), *others, RMSNorm(8)])
    held = RMSNorm(8)
    held.forward = own = lambda x: 3 * x
    model = nn.ModuleList([norms, held])
    x = drawn(2, 8)
    with quick_norms(model), quick_norms(model):
        assert ["forward" in vars(norm) for norm in norms] == [True, *[False] * 6, True]
        assert held.forward is own
        torch.testing.assert_close(held(x), 3 * x)
    assert not any("forward" in vars(norm) for norm in norms)
    assert held.forward is own
