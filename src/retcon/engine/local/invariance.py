"""Does what a row gets depend on the batch it is in? Found out by trying, as it depends on the machine's kernels.

The kernels of a matrix product may be chosen by the shape, and add up in another order then: a request would get other
last bits in other company, and now and then another id. On most CPUs that happens only for the smallest batches, which
can be padded. The same holds for attention over stored keys and values, whose rows are the queries that one request
feeds together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROWS = (1, 4, 16, 32)
"""Least numbers of rows that are tried."""
TRIED = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 23, 31, 32, 33, 47, 63, 64)
DRAFTED = 3
"""Ids of a draft at most: the later ones are less likely, and attention pays for each."""
FEW = 4
"""Queries that cost about what two or three do."""
STORED = ((1, 64), (5, 128), (2, 512), (33, 256), (1, 4096))
"""Slots and positions with which attention is tried."""

Products = Iterable[tuple[int, Callable[[Tensor], Tensor]]]
"""Matrix products, (N, in) → (N, out), with the size of their inputs."""
Attended = Collection[tuple[int, int, int, int]]
"""See `Shapes.products`."""


@dataclass(frozen=True, slots=True)
class Invariance:
    """rows: ids of a forward at least. exact: whether a request's results do not depend on the batch, bit for bit, as
    far as was tried. drafted: ids of a draft at most; with 0 nothing is drafted, as the bits would depend on it, or
    keeping them would cost more than drafts bring. queries: attention over stored keys is padded to so many for each
    head of keys.
    """

    rows: int = 1
    exact: bool = False
    drafted: int = 0
    queries: int = 1


def probe(products: Products, attended: Attended, dtype: torch.dtype, device: torch.device) -> Invariance:
    """What holds for these products, and for attention.

    Devices other than CPUs choose kernels in too many ways to be tried out: there nothing is padded, nothing promised.
    Drafts are for float32 alone: CPUs without instructions for bfloat16 multiply each query of it on its own.
    """
    if device.type != "cpu":
        return Invariance()
    least = ROWS[0]
    with torch.inference_mode():
        for size, product in products:
            rows = torch.randn(97, size, generator=torch.Generator().manual_seed(0)).to(dtype)
            whole = product(rows)
            wrong = [n for n in TRIED if not torch.equal(product(rows[:n]), whole[:n])]
            enough = [n for n in ROWS if n > max(wrong, default=0)]
            if not enough:
                return Invariance()
            least = max(least, enough[0])
        if dtype is not torch.float32:
            return Invariance(least, exact=True)
        found = {queries_for(*shape) for shape in attended}
    queries = found.pop() if len(found) == 1 else None
    return Invariance(least, exact=True) if queries is None else Invariance(least, True, DRAFTED, queries)


def queries_for(heads: int, groups: int, key: int, value: int) -> int | None:
    """The least number of queries for a head of keys with which attention gives each the same bits, however many ids a
    draft has and wherever they stand. None: there is none that costs next to nothing, which is the `groups` of a single
    id, or FEW where there are several."""
    tried = [_attention(heads * slots, length, groups, key, value) for slots, length in STORED]
    for least in (groups, max(groups, FEW)) if groups > 1 else (groups,):
        counts = {max(least, ids * groups) for ids in range(1, DRAFTED + 1)}
        if all(same(counts) for same in tried):
            return least
    return None


def _attention(batch: int, length: int, groups: int, key: int, value: int) -> Callable[[Collection[int]], bool]:
    """Tells whether attention over random keys gives so many queries the bits that the most give, in any place."""
    random = torch.Generator().manual_seed(0)
    queries = torch.randn(batch, (DRAFTED + 1) * groups, key, generator=random)
    keys, values = (torch.randn(batch, length, size, generator=random) for size in (key, value))

    def attend(some: Tensor) -> Tensor:
        return torch.bmm(torch.bmm(some, keys.transpose(1, 2)).softmax(-1), values)

    whole = attend(queries)
    anywhere = torch.equal(attend(queries.roll(1, 1)).roll(-1, 1), whole)
    return lambda counts: anywhere and all(torch.equal(attend(queries[:, :n]), whole[:, :n]) for n in counts)


class Probes:
    """What holds for a model's products, by how many threads torch has: kernels go by these and by shapes, not by the
    weights, so that each number of threads is tried once. See `probe`."""

    def __init__(
        self,
        products: Callable[[], Products],
        attended: Attended,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._products, self._attended, self._dtype, self._device = products, attended, dtype, device
        self._found: dict[int, Invariance] = {}

    def now(self) -> Invariance:
        threads = torch.get_num_threads()
        if threads not in self._found:
            self._found[threads] = probe(self._products(), self._attended, self._dtype, self._device)
        return self._found[threads]


def linear_layers(model: PreTrainedModel) -> Products:
    """One linear layer of each shape."""
    found: dict[tuple[int, ...], Tensor] = {}
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim == 2 and not isinstance(module, nn.Embedding):
            # GPT-2's Conv1D is a linear layer, transposed
            found.setdefault(tuple(weight.shape), weight if isinstance(module, nn.Linear) else weight.T)
    return [(matrix.shape[1], partial(linear, weight=matrix)) for matrix in found.values()]
