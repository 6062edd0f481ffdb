"""Plans of packed forwards (`attention.ForwardPlan`) from requests' steps and chunks.

How a chunk of ids is padded, and where a long text is cut, depends on that chunk alone. With matrix products that give
a row the same bits in every batch (see `Invariance`), so does a request's result.
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

from retcon.engine.local.attention import DecodeJob, Form, ForwardPlan, FreshJob, KVStore, PastJob
from retcon.engine.local.sampling import CHUNK
from retcon.engine.local.slabs import LINE, Place, Slab, round_up

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Whether a row's result depends on its batch is tried, as it depends on the machine's kernels.
#
# A matrix product may choose its kernel by the shape, and then add up in another order: a request would get other last
# bits in another batch, and now and then another id. On most CPUs that happens only for the smallest batches, which can
# be padded. Attention over stored keys and values behaves alike; its rows are the queries that one request feeds
# together.

ROWS = (1, 4, 16, 32)
"""Least numbers of rows that are tried."""
TRIED = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 23, 31, 32, 33, 47, 63, 64)
DRAFTED = 3
"""Ids of a draft at most: the later ones are less likely, and attention pays for each."""
FEW = 4
"""Queries that cost about as much as two or three."""
STORED = ((1, 64), (5, 128), (2, 512), (33, 256), (1, 4096))
"""Slots and positions with which attention is tried."""

Products = Iterable[tuple[int, Callable[[Tensor], Tensor]]]
"""Matrix products, (N, in) → (N, out), with the size of their inputs."""
AttentionShapes = Collection[tuple[int, int, int, int]]
"""Shapes of attention, as in `Shapes.products`."""


@dataclass(frozen=True, slots=True)
class Invariance:
    """Batch invariance of a decoder, as far as was tried.

    rows: least ids of a forward. exact: whether a request's results do not depend on the batch, bit for bit. drafted:
    most ids of a draft; 0 where the bits would depend on drafts, or keeping them would cost more than drafts bring.
    queries: attention over stored keys is padded to so many for each head of keys."""

    rows: int = 1
    exact: bool = False
    drafted: int = 0
    queries: int = 1


def try_products(products: Products, attended: AttentionShapes, dtype: torch.dtype, device: torch.device) -> Invariance:
    """Try which batch invariance holds for products and attention.

    Devices other than CPUs choose kernels in too many ways to be tried: there nothing is padded or promised. Drafts are
    for float32 alone: CPUs without instructions for bfloat16 multiply each query of it separately.
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
        found = {least_queries(*shape) for shape in attended}
    queries = found.pop() if len(found) == 1 else None
    return Invariance(least, exact=True) if queries is None else Invariance(least, True, DRAFTED, queries)


def least_queries(heads: int, groups: int, key: int, value: int) -> int | None:
    """Return the least queries per head of keys that keep attention's bits. They hold for drafts of any length and
    place. None where that costs more than the `groups` of a single id, or FEW of several groups."""
    tried = [_attention(heads * slots, length, groups, key, value) for slots, length in STORED]
    for least in (groups, max(groups, FEW)) if groups > 1 else (groups,):
        counts = {max(least, ids * groups) for ids in range(1, DRAFTED + 1)}
        if all(same(counts) for same in tried):
            return least
    return None


def _attention(batch: int, length: int, groups: int, key: int, value: int) -> Callable[[Collection[int]], bool]:
    """Return a test whether attention over random keys gives so many queries the bits of most, in any place."""
    random = torch.Generator().manual_seed(0)
    queries = torch.randn(batch, (DRAFTED + 1) * groups, key, generator=random)
    keys, values = (torch.randn(batch, length, size, generator=random) for size in (key, value))

    def attend(some: Tensor) -> Tensor:
        return torch.bmm(torch.bmm(some, keys.transpose(1, 2)).softmax(-1), values)

    whole = attend(queries)
    anywhere = torch.equal(attend(queries.roll(1, 1)).roll(-1, 1), whole)
    return lambda counts: anywhere and all(torch.equal(attend(queries[:, :n]), whole[:, :n]) for n in counts)


class Probes:
    """Invariance of a model's products by torch's threads. Kernels depend on threads and shapes, not on weights, so
    that each number of threads is tried once."""

    def __init__(
        self,
        products: Callable[[], Products],
        attended: AttentionShapes,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._products, self._attended, self._dtype, self._device = products, attended, dtype, device
        self._found: dict[int, Invariance] = {}

    def now(self) -> Invariance:
        threads = torch.get_num_threads()
        if threads not in self._found:
            self._found[threads] = try_products(self._products(), self._attended, self._dtype, self._device)
        return self._found[threads]


def linear_layers(model: PreTrainedModel) -> Products:
    """Return one linear layer of each shape."""
    found: dict[tuple[int, ...], Tensor] = {}
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim == 2 and not isinstance(module, nn.Embedding):
            # GPT-2's Conv1D is a linear layer, transposed
            found.setdefault(tuple(weight.shape), weight if isinstance(module, nn.Linear) else weight.T)
    return [(matrix.shape[1], partial(linear, weight=matrix)) for matrix in found.values()]


FORWARD_IDS, AT_ONCE = 2048, 8192
"""Most ids of one forward, about, on a CPU and on a GPU: how long decoding requests wait for prefills."""
CHUNK_IDS = 2048
CHUNK_SCORES = 2**23
"""Most ids, and attention scores of a head, of one chunk: a longer text is fed in several forwards."""
CHUNK_LOGITS = 2**26
"""Most logits of one chunk, where those of all of its tokens are wanted; all chunks of a forward have at most twice as
many."""
CACHE = 2**24
"""Bytes of keys and values that no longer fit the processor's cache."""
DRAFTING = 0.25
"""Share of a slab's steps that must have a draft."""
FOLDED_IDS = 64
"""Longer chunks repeat keys for the query heads that share them, shorter ones the mask."""


@dataclass(frozen=True, slots=True)
class Step:
    """A request's next id, stored at position `length`, and a draft."""

    place: Place
    ids: Sequence[int]
    length: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Ids to feed from position `start`; the last `keep` need logits."""

    place: Place
    start: int
    ids: Sequence[int]
    keep: int


def chunk_end(start: int, end: int, wanted: int, vocabulary: int) -> int:
    """Return where to cut a chunk from `start` to `end`; logits are wanted from position `wanted` on."""
    count = min(end - start, CHUNK_IDS)
    count = min(count, max(128, CHUNK_SCORES // (start + count) // 64 * 64))
    count = min(count, max(wanted - start, 0) + max(16, CHUNK_LOGITS // vocabulary))
    return start + count


def thin_drafts(steps: Sequence[Step], most: int) -> Sequence[Step]:
    """Drop drafts that would gain little: attention costs all slots of a slab as much as its longest draft.

    most: ids of all steps; where that is not enough, nothing is drafted."""
    count = sum(len(step.ids) for step in steps)
    if count == len(steps):
        return steps
    if count > most:
        return [replace(step, ids=step.ids[:1]) for step in steps]
    kept: list[Step] = []
    for first, last in _slab_runs(steps):
        run = steps[first:last]
        few = sum(len(step.ids) > 1 for step in run) < DRAFTING * len(run)
        kept += [replace(step, ids=step.ids[:1]) for step in run] if few else run
    return kept


SCORED, SCORED_LOGITS = 64, 2**22
"""Tokens whose logits are computed together for log-probs: at least SCORED, else at most SCORED_LOGITS logits. All
logits of some long texts would be hundreds of MB, and their page faults cost more than the products."""


@dataclass(frozen=True, slots=True)
class Output:
    """A forward's output for K tokens: `states` (K, W), of which `head` makes logits (K, V).

    rows: least rows that `head` is given.
    """

    states: Tensor
    head: Callable[[Tensor], Tensor]
    vocabulary: int
    rows: int = 1

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Return the logits of tokens, (N, V)."""
        count = max(len(tokens), self.rows)
        if len(self.states) == count and list(tokens) == list(range(len(tokens))):
            return self.head(self.states)[: len(tokens)]
        padded = [*tokens, *[0] * (count - len(tokens))]
        index = torch.tensor(padded, dtype=torch.long, device=self.states.device)
        return self.head(self.states.index_select(0, index))[: len(tokens)]

    def logprobs(self, first: int, nexts: Sequence[int]) -> list[float]:
        """Return log-probs of the ids after tokens from `first` on, in nats."""
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
        """Return whether a token's logits are nan: non-finite states are nan after the last norm."""
        return bool(self.states[token].isnan().any())


class PlanOptions(Protocol):
    """A decoder's demands on plans. invariance: of its products. replays: whether it wants a `fixed_plan`."""

    @property
    def invariance(self) -> Invariance: ...
    @property
    def replays(self) -> bool: ...


def plan_forward(
    steps: Sequence[Step], chunks: Sequence[Chunk], decoder: PlanOptions, device: torch.device
) -> ForwardPlan:
    """Plan one forward of steps and chunks, with logits in that order.

    Logits of padding may follow. Steps must be ordered by slab, and by slot within a slab; chunks that start at 0 must
    come first, and best by length.
    """
    if decoder.replays and not chunks and all(len(s.ids) == 1 for s in steps):
        return fixed_plan(steps, device)
    invariance = decoder.invariance
    ids = [i for s in steps for i in s.ids]
    positions = [s.length + n for s in steps for n in range(len(s.ids))]
    keep = list(range(len(ids)))
    stores: list[KVStore] = []
    jobs: list[DecodeJob | FreshJob | PastJob] = []
    runs = [steps[first:last] for first, last in _slab_runs(steps)]
    cold = sum(run[0].place.slab.slot_bytes * (run[-1].place.slot + 1) for run in runs) > CACHE
    fed = 0
    for run in runs:
        store = _store(run, fed, positions, device)
        stores.append(store)
        jobs.append(_decode_job(run, store, invariance.queries, cold))
        fed = store.end
    starts: list[int] = []
    for chunk in chunks:
        start = len(ids)
        starts.append(start)
        ids.extend(chunk.ids)
        positions.extend(range(chunk.start, chunk.start + len(chunk.ids)))
        keep.extend(range(len(ids) - chunk.keep, len(ids)))
        stores.append(
            KVStore(
                chunk.place.slab,
                start,
                len(ids),
                torch.full((len(chunk.ids),), chunk.place.slot, device=device),
                torch.arange(chunk.start, chunk.start + len(chunk.ids), device=device),
            )
        )
    jobs.extend(_chunk_jobs(chunks, starts, device))
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
        whole=len(jobs) == 1 and not chunks,
    )


def fixed_plan(steps: Sequence[Step], device: torch.device) -> ForwardPlan:
    """Plan a forward of single-id steps, in one of few forms.

    Ids, slots and positions of each slab are rounded up. Two plans of one form are the same operations on tensors of
    the same sizes, and differ in their block and in the tokens they keep. Padding ids repeat a step and its store.
    """
    columns: list[tuple[int, int, int]] = []
    keep: list[int] = []
    slabs: list[Slab] = []
    form: list[tuple[int, int, int, int]] = []
    for first, last in _slab_runs(steps):
        run = steps[first:last]
        slab = run[0].place.slab
        rows = _round_up(len(run))
        count = min(_round_up(run[-1].place.slot + 1), slab.slots)
        length = min(max(128, 1 << max(s.length for s in run).bit_length()), slab.capacity)
        keep += range(len(columns), len(columns) + len(run))
        columns += [(s.ids[0], s.length, s.place.slot) for s in (*run, *[run[0]] * (rows - len(run)))]
        slabs.append(slab)
        form.append((slab.number, rows, count, length))
    whole = torch.tensor([n for row in (*zip(*columns, strict=True), keep) for n in row], device=device)
    block, kept = whole[: 3 * len(columns)].view(3, -1), whole[3 * len(columns) :]
    made = plan_of_form(tuple(form), slabs, block, kept)
    for store in made.stores:
        store.slab.mask[store.slots, 0, store.positions] = 0
    return made


def plan_of_form(form: Form, slabs: Sequence[Slab], block: Tensor, keep: Tensor) -> ForwardPlan:
    """Return the plan of a form over slabs. block: (3, N), ids, positions and slots."""
    ids, positions, slots = block.unbind()
    stores, jobs, start = [], [], 0
    for slab, (_, rows, count, length) in zip(slabs, form, strict=True):
        some = slice(start, start + rows)
        stores.append(KVStore(slab, some.start, some.stop, slots[some], positions[some]))
        jobs.append(DecodeJob(slab, some.start, some.stop, count, 1, slots[some], length=length))
        start = some.stop
    return ForwardPlan(ids, positions, keep, stores, jobs, whole=len(jobs) == 1, form=form, block=block)


def _round_up(count: int) -> int:
    """Round up to a power of two, or from 16 on to one and a half times one."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if power > 16 and count <= power * 3 // 4 else power


def _forward_ids(count: int) -> int:
    """Return a forward's ids with padding: few different numbers, as oneDNN makes a kernel for each.

    Up to 16 they are powers of two: a lone request is common, and costs half as much as 16."""
    if count <= LINE:
        return 1 << (count - 1).bit_length()
    return round_up(count, 16 if count <= 128 else 32 if count <= 256 else 128)


def _slab_runs(steps: Sequence[Step]) -> Iterable[tuple[int, int]]:
    """Yield first and last index of `steps` in one slab."""
    first = 0
    for index in range(1, len(steps) + 1):
        if index == len(steps) or steps[index].place.slab is not steps[first].place.slab:
            yield first, index
            first = index


def _store(run: Sequence[Step], start: int, positions: Sequence[int], device: torch.device) -> KVStore:
    slots = [s.place.slot for s in run for _ in s.ids]
    end = start + len(slots)
    store = KVStore(
        run[0].place.slab,
        start,
        end,
        torch.tensor(slots, device=device),
        torch.tensor(positions[start:end], device=device),
    )
    store.slab.mask[store.slots, 0, store.positions] = 0
    return store


def _decode_job(run: Sequence[Step], store: KVStore, queries: int, cold: bool) -> DecodeJob:
    """Return a job in which each id sees what is stored, and the step's ids up to itself."""
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


def _chunk_jobs(chunks: Sequence[Chunk], starts: Sequence[int], device: torch.device) -> Iterable[FreshJob | PastJob]:
    past: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for number, chunk in enumerate(chunks):
        if chunk.start:
            width = round_up(len(chunk.ids), LINE if len(chunk.ids) <= 128 else 64)
            length = round_up(chunk.start + len(chunk.ids), 64 if chunk.start < 1024 else 256)
            past[id(chunk.place.slab), width, min(length, chunk.place.capacity)].append(number)
    fresh = ((len(s.ids), start) for s, start in zip(chunks, starts, strict=True) if s.start == 0)
    for width, run in groupby(fresh, key=itemgetter(0)):
        first, *others = run
        yield FreshJob(first[1], 1 + len(others), width)
    for (_, width, length), numbers in past.items():
        slots = torch.tensor([chunks[n].place.slot for n in numbers], device=device)
        reach = torch.tensor([chunks[n].start for n in numbers], device=device)[:, None] + torch.arange(
            width, device=device
        )
        slab = chunks[numbers[0]].place.slab
        hidden = torch.arange(length, device=device) > reach[..., None]
        mask = torch.zeros(hidden.shape, dtype=slab.mask.dtype, device=device).masked_fill_(hidden, slab.blocked)
        packed = _past_indices(chunks, starts, numbers, width, device)
        yield PastJob(slab, slots, mask[:, None], *packed, folded=width <= FOLDED_IDS)


def _past_indices(
    chunks: Sequence[Chunk], starts: Sequence[int], numbers: Sequence[int], width: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return index (R, width), target (M,) and where (M,) of a `PastJob`."""
    first = torch.tensor([starts[n] for n in numbers], device=device)
    counts = torch.tensor([len(chunks[n].ids) for n in numbers], device=device)
    offset = torch.arange(width, device=device)
    index = first[:, None] + torch.minimum(offset, counts[:, None] - 1)
    where = (offset < counts[:, None]).flatten().nonzero().squeeze(1)
    return index, index.flatten()[where], where
