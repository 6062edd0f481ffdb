"""Does what a row gets depend on the batch it is in? Found out by trying, as it hangs on the machine's kernels.

The kernels of a matrix product may be chosen by the shape, and add up in another order then: a request would get other
last bits in other company, and now and then another id. On most CPUs that happens only for the smallest batches, which
can be padded, and for attention with many query heads a head of keys, which can be padded to the slot's capacity.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers import PreTrainedModel

from retcon.engine.slabs import LINE

ROWS = (1, 4, 16, 32)
"""Least numbers of rows that are tried."""
TRIED = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 23, 31, 32, 33, 47, 63, 64)


@dataclass(frozen=True, slots=True)
class Invariance:
    """rows: ids of a forward at least. tight: attention may be cut to the longest row's length. exact: whether a
    request's results do not depend on the batch, bit for bit, as far as was tried."""

    rows: int = 1
    tight: bool = True
    exact: bool = False


def probe(model: PreTrainedModel, heads: int, groups: int, size: int) -> Invariance:
    """What holds for this model on its device. heads, groups, size: KV, G and D of its attention.

    Devices other than CPUs choose kernels in too many ways to be tried out: there nothing is padded, nothing promised.
    """
    if model.device.type != "cpu":
        return Invariance()
    with torch.inference_mode():
        least = _least_rows(_matrices(model))
        tight = _tight(heads, groups, size, model.dtype)
    return Invariance(rows=least or 1, tight=tight, exact=least is not None)


def _matrices(model: nn.Module) -> Iterable[torch.Tensor]:
    """A weight of each shape of the linear layers."""
    shapes: dict[tuple[int, ...], torch.Tensor] = {}
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, torch.Tensor) and weight.ndim == 2 and not isinstance(module, nn.Embedding):
            transposed = not isinstance(module, nn.Linear)  # GPT-2's Conv1D
            shapes.setdefault(tuple(weight.shape), weight.T if transposed else weight)
    return shapes.values()


def _least_rows(matrices: Iterable[torch.Tensor]) -> int | None:
    """The least number of rows from which a row's product is the same in every batch; None where there is none."""
    least = ROWS[0]
    for matrix in matrices:
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(97, matrix.shape[1], generator=generator).to(matrix.dtype)
        whole = linear(rows, matrix)
        wrong = [n for n in TRIED if not torch.equal(linear(rows[:n], matrix), whole[:n])]
        enough = [n for n in ROWS if n > max(wrong, default=0)]
        if not enough:
            return None
        least = max(least, enough[0])
    return least


def _tight(heads: int, groups: int, size: int, dtype: torch.dtype) -> bool:
    """Whether decoding attends the same, bit for bit, whatever multiple of LINE positions are padded to."""
    generator = torch.Generator().manual_seed(0)
    rows, most = 6, 45 * LINE
    keys, values, queries = (
        torch.randn(rows, heads, n, size, generator=generator).to(dtype) for n in (most, most, groups)
    )
    lengths = torch.tensor([1, 7, 16, 90, 133, 200])

    def attend(length: int) -> torch.Tensor:
        hidden = torch.arange(length) >= lengths[:, None, None, None]
        mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, torch.finfo(dtype).min)
        return scaled_dot_product_attention(queries, keys[:, :, :length], values[:, :, :length], attn_mask=mask)

    whole = attend(most)
    return all(torch.equal(attend(length), whole) for length in range(13 * LINE, most, LINE))
