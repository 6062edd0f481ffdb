"""From what requests want computed to one packed forward: see `attention.ForwardPlan`.

How a stretch of ids is padded, and where a long one is cut, depends on that stretch alone. With matrix products that
give a row the same bits in every batch (see `invariance`), so does what a request gets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from retcon.engine.local.attention import DecodeJob, Form, ForwardPlan, FreshJob, PastJob, Store
from retcon.engine.local.sampling import CHUNK
from retcon.engine.local.slabs import LINE, Place, Slab, padded

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Does what a row gets depend on the batch it is in? Found out by trying, as it depends on the machine's kernels.
#
# The kernels of a matrix product may be chosen by the shape, and add up in another order then: a request would get
# other last bits in other company, and now and then another id. On most CPUs that happens only for the smallest
# batches, which can be padded. The same holds for attention over stored keys and values, whose rows are the queries
# that one request feeds together.

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


FORWARD_IDS, AT_ONCE = 2048, 8192
"""Ids of one forward about at most, on a CPU and on a GPU: how long those that decode wait for those that are fed."""
STRETCH_IDS = 2048
STRETCH_SCORES = 2**23
"""Ids, and attention scores of a head, of one stretch at most: a longer one is fed in several forwards."""
STRETCH_LOGITS = 2**26
"""Logits of one stretch at most, where those of all of its tokens are wanted; of all stretches of a forward together at
most twice as many."""
CACHE = 2**24
"""Bytes of keys and values from which a forward finds them in memory, and no more in the processor's cache."""
DRAFTING = 0.25
"""Share of a slab's steps that must have a draft."""
FOLDED_IDS = 64
"""Stretches that are longer repeat keys for the query heads that share them, shorter ones the mask."""


@dataclass(frozen=True, slots=True)
class Step:
    """The next id of a request, to be stored at position `length`, and a draft of those that may follow it."""

    place: Place
    ids: Sequence[int]
    length: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """Ids to feed at positions start…; logits are wanted of the last `keep` of them."""

    place: Place
    start: int
    ids: Sequence[int]
    keep: int


def stretch_end(start: int, end: int, wanted: int, vocabulary: int) -> int:
    """Where a stretch from `start` that should reach `end` is cut; logits are wanted from position `wanted` on."""
    count = min(end - start, STRETCH_IDS)
    count = min(count, max(128, STRETCH_SCORES // (start + count) // 64 * 64))
    count = min(count, max(wanted - start, 0) + max(16, STRETCH_LOGITS // vocabulary))
    return start + count


def sparing(steps: Sequence[Step], most: int) -> Sequence[Step]:
    """The steps without drafts of which little would come: attention over a slab costs all of its slots what the
    longest draft does. most: ids of all steps; where that is not enough, nothing is drafted."""
    count = sum(len(step.ids) for step in steps)
    if count == len(steps):
        return steps
    if count > most:
        return [replace(step, ids=step.ids[:1]) for step in steps]
    kept: list[Step] = []
    for first, last in _runs(steps):
        run = steps[first:last]
        few = sum(len(step.ids) > 1 for step in run) < DRAFTING * len(run)
        kept += [replace(step, ids=step.ids[:1]) for step in run] if few else run
    return kept


SCORED, SCORED_LOGITS = 64, 2**22
"""Tokens whose logits are computed together for their log-probs: so many at least, and else so many logits at most. All
logits of some long texts would be hundreds of MB, and their page faults cost more than the products."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a forward gave of the K tokens that are kept. states: (K, W), of which `head` makes logits (K, V).

    rows: `head` is given so many at least.
    """

    states: Tensor
    head: Callable[[Tensor], Tensor]
    vocabulary: int
    rows: int = 1

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Of those tokens: (N, V)."""
        count = max(len(tokens), self.rows)
        if len(self.states) == count and list(tokens) == list(range(len(tokens))):
            return self.head(self.states)[: len(tokens)]
        padded = [*tokens, *[0] * (count - len(tokens))]
        index = torch.tensor(padded, dtype=torch.long, device=self.states.device)
        return self.head(self.states.index_select(0, index))[: len(tokens)]

    def logprobs(self, first: int, nexts: Sequence[int]) -> list[float]:
        """Of the ids that follow the tokens from `first` on, in nats."""
        found: list[float] = []
        while len(found) < len(nexts):
            start = len(found)
            count = min(len(nexts) - start, max(SCORED, SCORED_LOGITS // self.vocabulary))
            logits = self.logits(range(first + start, first + start + count))
            ids = torch.tensor(nexts[start : start + count], device=logits.device)
            together = CHUNK * torch.get_num_threads() if logits.device.type == "cpu" else logits.numel()
            pieces = max(1, together // logits.shape[-1])
            for some, of in zip(logits.split(pieces), ids[:, None].split(pieces), strict=True):
                found += some.float().log_softmax(-1).gather(1, of)[:, 0].tolist()
        return found

    def is_nan(self, token: int) -> bool:
        """Whether its logits are: what is not finite before the last norm is nan after it."""
        return bool(self.states[token].isnan().any())


class Planned(Protocol):
    """What a plan is for. invariance: what holds for its products. replays: whether it wants plans that are `fixed`."""

    @property
    def invariance(self) -> Invariance: ...
    @property
    def replays(self) -> bool: ...


def plan(steps: Sequence[Step], stretches: Sequence[Stretch], decoder: Planned, device: torch.device) -> ForwardPlan:
    """The forward that feeds all of them. Its kept logits come in order: those of the steps, then those of stretches.

    More may follow, of tokens that only pad the batch. Steps must be ordered by slab, and by slot within a slab;
    stretches that start at 0 must come first, and best by length.
    """
    if decoder.replays and not stretches and all(len(s.ids) == 1 for s in steps):
        return fixed(steps, device)
    invariance = decoder.invariance
    ids = [i for s in steps for i in s.ids]
    positions = [s.length + n for s in steps for n in range(len(s.ids))]
    keep = list(range(len(ids)))
    stores: list[Store] = []
    jobs: list[DecodeJob | FreshJob | PastJob] = []
    runs = [steps[first:last] for first, last in _runs(steps)]
    cold = sum(run[0].place.slab.slot_bytes * (run[-1].place.slot + 1) for run in runs) > CACHE
    fed = 0
    for run in runs:
        store = _store(run, fed, positions, device)
        stores.append(store)
        jobs.append(_decode_job(run, store, invariance.queries, cold))
        fed = store.end
    starts: list[int] = []
    for stretch in stretches:
        start = len(ids)
        starts.append(start)
        ids.extend(stretch.ids)
        positions.extend(range(stretch.start, stretch.start + len(stretch.ids)))
        keep.extend(range(len(ids) - stretch.keep, len(ids)))
        stores.append(
            Store(
                stretch.place.slab,
                start,
                len(ids),
                torch.full((len(stretch.ids),), stretch.place.slot, device=device),
                torch.arange(stretch.start, stretch.start + len(stretch.ids), device=device),
            )
        )
    jobs.extend(_stretch_jobs(stretches, starts, device))
    missing = [0] * (_forward_ids(max(len(ids), invariance.rows)) - len(ids))
    ids.extend(missing)
    positions.extend(missing)
    keep.extend([0] * (invariance.rows - len(keep)))  # the output layer is a matrix product too
    return ForwardPlan(
        torch.tensor(ids, device=device),
        torch.tensor(positions, device=device),
        torch.tensor(keep, dtype=torch.long, device=device),
        stores,
        jobs,
        whole=len(jobs) == 1 and not stretches,
    )


def fixed(steps: Sequence[Step], device: torch.device) -> ForwardPlan:
    """A plan of steps alone, each of one id, that has one of few forms: ids, slots and positions of each slab are
    rounded up. Two plans of one form are the same operations on tensors of the same sizes, and differ in their block
    and in what they keep.

    The ids that only round it up repeat those of a step, and store once more what that stores.
    """
    columns: list[tuple[int, int, int]] = []
    keep: list[int] = []
    slabs: list[Slab] = []
    form: list[tuple[int, int, int, int]] = []
    for first, last in _runs(steps):
        run = steps[first:last]
        slab = run[0].place.slab
        rows = _rounded(len(run))
        count = min(_rounded(run[-1].place.slot + 1), slab.slots)
        length = min(max(128, 1 << max(s.length for s in run).bit_length()), slab.capacity)
        keep += range(len(columns), len(columns) + len(run))
        columns += [(s.ids[0], s.length, s.place.slot) for s in (*run, *[run[0]] * (rows - len(run)))]
        slabs.append(slab)
        form.append((slab.number, rows, count, length))
    whole = torch.tensor([n for row in (*zip(*columns, strict=True), keep) for n in row], device=device)
    block, kept = whole[: 3 * len(columns)].view(3, -1), whole[3 * len(columns) :]
    made = fixed_as(tuple(form), slabs, block, kept)
    for store in made.stores:
        store.slab.mask[store.slots, 0, store.positions] = 0
    return made


def fixed_as(form: Form, slabs: Sequence[Slab], block: Tensor, keep: Tensor) -> ForwardPlan:
    """The plan of that form over these slabs. block: (3, N), of each id itself, its position and its slot."""
    ids, positions, slots = block.unbind()
    stores, jobs, start = [], [], 0
    for slab, (_, rows, count, length) in zip(slabs, form, strict=True):
        some = slice(start, start + rows)
        stores.append(Store(slab, some.start, some.stop, slots[some], positions[some]))
        jobs.append(DecodeJob(slab, some.start, some.stop, count, 1, slots[some], length=length))
        start = some.stop
    return ForwardPlan(ids, positions, keep, stores, jobs, whole=len(jobs) == 1, form=form, block=block)


def _rounded(count: int) -> int:
    """Up to a power of two, or to one and a half times one, from 16 on."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if power > 16 and count <= power * 3 // 4 else power


def _forward_ids(count: int) -> int:
    """Ids of a forward, with those that only pad it: few different numbers, as oneDNN makes a kernel for each.

    Up to 16 they are powers of two: a lone request is common, and costs half of what 16 do."""
    if count <= LINE:
        return 1 << (count - 1).bit_length()
    return padded(count, 16 if count <= 128 else 32 if count <= 256 else 128)


def _runs(steps: Sequence[Step]) -> Iterable[tuple[int, int]]:
    """Stretches of `steps` in one slab."""
    first = 0
    for index in range(1, len(steps) + 1):
        if index == len(steps) or steps[index].place.slab is not steps[first].place.slab:
            yield first, index
            first = index


def _store(run: Sequence[Step], start: int, positions: Sequence[int], device: torch.device) -> Store:
    slots = [s.place.slot for s in run for _ in s.ids]
    end = start + len(slots)
    store = Store(
        run[0].place.slab,
        start,
        end,
        torch.tensor(slots, device=device),
        torch.tensor(positions[start:end], device=device),
    )
    store.slab.mask[store.slots, 0, store.positions] = 0
    return store


def _decode_job(run: Sequence[Step], store: Store, queries: int, cold: bool) -> DecodeJob:
    """Each id of a slot sees what is stored, and of the step's own those up to itself."""
    slab, count = store.slab, run[-1].place.slot + 1
    width = max(len(s.ids) for s in run)
    where, mask = None, None
    if width > 1 or count > len(run):
        places = [s.place.slot * width + n for s in run for n in range(len(s.ids))]
        where = torch.tensor(places, device=store.slots.device)
    if width > 1:
        later = [
            (s.place.slot * width + n) * slab.capacity + s.length + after
            for s in run
            for n in range(len(s.ids) - 1)
            for after in range(n + 1, len(s.ids))
        ]
        mask = slab.mask[:count].repeat(1, width, 1)
        mask.view(-1).index_fill_(0, torch.tensor(later, device=mask.device), slab.blocked)
    return DecodeJob(slab, store.start, store.end, count, width, where, mask, queries, cold and slab.legible)


def _stretch_jobs(
    stretches: Sequence[Stretch], starts: Sequence[int], device: torch.device
) -> Iterable[FreshJob | PastJob]:
    past: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for number, stretch in enumerate(stretches):
        if stretch.start:
            width = padded(len(stretch.ids), LINE if len(stretch.ids) <= 128 else 64)
            length = padded(stretch.start + len(stretch.ids), 64 if stretch.start < 1024 else 256)
            past[id(stretch.place.slab), width, min(length, stretch.place.capacity)].append(number)
    fresh = ((len(s.ids), start) for s, start in zip(stretches, starts, strict=True) if s.start == 0)
    for width, run in groupby(fresh, key=itemgetter(0)):
        first, *others = run
        yield FreshJob(first[1], 1 + len(others), width)
    for (_, width, length), numbers in past.items():
        slots = torch.tensor([stretches[n].place.slot for n in numbers], device=device)
        reach = torch.tensor([stretches[n].start for n in numbers], device=device)[:, None] + torch.arange(
            width, device=device
        )
        slab = stretches[numbers[0]].place.slab
        hidden = torch.arange(length, device=device) > reach[..., None]
        mask = torch.zeros(hidden.shape, dtype=slab.mask.dtype, device=device).masked_fill_(hidden, slab.blocked)
        packed = _packed(stretches, starts, numbers, width, device)
        yield PastJob(slab, slots, mask[:, None], *packed, folded=width <= FOLDED_IDS)


def _packed(
    stretches: Sequence[Stretch], starts: Sequence[int], numbers: Sequence[int], width: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """index (R, width), target (M,) and where (M,) of a `PastJob`."""
    first = torch.tensor([starts[n] for n in numbers], device=device)
    counts = torch.tensor([len(stretches[n].ids) for n in numbers], device=device)
    offset = torch.arange(width, device=device)
    index = first[:, None] + torch.minimum(offset, counts[:, None] - 1)
    where = (offset < counts[:, None]).flatten().nonzero().squeeze(1)
    return index, index.flatten()[where], where
