"""Does what a row gets depend on the batch it is in? Found out by trying, as it depends on the machine's kernels.

The kernels of a matrix product may be chosen by the shape, and add up in another order then: a request would get other
last bits in other company, and now and then another id. On most CPUs that happens only for the smallest batches, which
can be padded. The same holds of attention over what is stored, where the rows are a request's own: the queries of all
ids that it feeds at once.
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
"""Ids of a draft at most. Twice as many bring a sixth more ids a forward, as the later ones are less likely."""
STORED = ((1, 64), (5, 128), (2, 512), (33, 256))
"""Slots and positions with which attention is tried."""

Products = Iterable[tuple[int, Callable[[Tensor], Tensor]]]
"""Matrix products, (N, in) → (N, out), with the size of their inputs."""


@dataclass(frozen=True, slots=True)
class Invariance:
    """rows: ids of a forward at least. exact: whether a request's results do not depend on the batch, bit for bit, as
    far as was tried. drafted: ids of a draft at most; with 0 nothing is drafted, as the bits would depend on it.
    queries: of attention over what is stored at least, for one head of keys."""

    rows: int = 1
    exact: bool = False
    drafted: int = 0
    queries: int = 1


def probe(
    products: Products, attended: Collection[tuple[int, int, int]], dtype: torch.dtype, device: torch.device
) -> Invariance:
    """What holds for these products, and for attention. attended: `Shapes.products`.

    Devices other than CPUs choose kernels in too many ways to be tried out: there nothing is padded, nothing promised.
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
        found = [_queries(*shape, slots, length, dtype) for shape in attended for slots, length in STORED]
    known = [queries for queries in found if queries is not None]
    if not known or len(known) < len(found):
        return Invariance(least, exact=True)
    return Invariance(least, exact=True, drafted=DRAFTED, queries=max(known))


def _queries(groups: int, key: int, value: int, slots: int, length: int, dtype: torch.dtype) -> int | None:
    """The least number of queries from which on attention gives each the same bits, whatever its place among them.
    None: up to as many as drafts make there is none, or the place matters."""
    random, most = torch.Generator().manual_seed(0), (DRAFTED + 1) * groups
    queries = torch.randn(slots, most, key, generator=random).to(dtype)
    keys, values = (torch.randn(slots, length, size, generator=random).to(dtype) for size in (key, value))

    def attend(some: Tensor) -> Tensor:
        return torch.bmm(torch.bmm(some, keys.transpose(1, 2)).softmax(-1), values)

    whole = attend(queries)
    if not torch.equal(attend(queries.roll(1, 1)).roll(-1, 1), whole):
        return None
    wrong = [n for n in range(1, most) if not torch.equal(attend(queries[:, :n]), whole[:, :n])]
    return max(wrong, default=0) + 1


class Probes:
    """What holds for a model's products, by how many threads torch has: kernels go by these and by shapes, not by the
    weights, so that each number of threads is tried once. See `probe`."""

    def __init__(
        self,
        products: Callable[[], Products],
        attended: Collection[tuple[int, int, int]],
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
