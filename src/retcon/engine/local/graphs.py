"""CUDA graphs of forwards that only decode.

A small model's forward on a GPU is a thousand kernels of some microseconds each, and Python takes longer to start them
than the GPU to run them. A graph starts them all at once. It needs the same operations on the same memory: hence plans
of few forms (`forward.fixed_plan`), whose ids are copied to where the graph reads them.

Prefills have no fixed form. So that they do not make every forward a slow one, they wait until APART forwards were
replayed, or until they fill one, and then go with the next one.

All graphs write their results, many MB of logits where a vocabulary is large, to the same memory: it is read before the
next one runs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from weakref import ref

import torch
from torch import Tensor

from retcon.engine.local.attention import Form, ForwardPlan
from retcon.engine.local.decoder import PackedDecoder, PackedFeed
from retcon.engine.local.forward import Invariance, Output, plan_of_form
from retcon.engine.local.slabs import Layout, Slab

_LOG = logging.getLogger(__name__)

APART = 8
"""Replayed forwards between two that feed. Eight take about as long as one that is not replayed."""
SEEN = 2
"""Forwards of a form before it is recorded, which costs as much as two or three of them."""
FORMS = 128
"""Most graphs; the least recently used goes first, and must be seen as often again to be recorded."""

Recorder = Callable[[Callable[[], Output]], tuple[Callable[[], object], Output]]
"""From a function: a replay of its operations, and the place of their result."""


def shared_rows(rows: int) -> int:
    """Return the rows of shared memory for graphs of up to `rows`: a power of two, so that all smaller ones before
    are less together."""
    return 1 << (rows - 1).bit_length()


@dataclass(frozen=True, slots=True)
class _Graph:
    """A recorded forward. block: what it reads, (3, N). every: read too, (N,); only this keeps what a graph reads
    alive. slabs: those it reads and writes. kept: output of all N ids, after `replay`, until another graph runs."""

    block: Tensor
    every: Tensor
    slabs: Sequence[ref[Slab]]
    replay: Callable[[], object]
    kept: Output

    def __call__(self, plan: ForwardPlan) -> Output:
        assert plan.block is not None
        self.block.copy_(plan.block)
        self.replay()
        return replace(self.kept, states=self.kept.states.index_select(0, plan.keep))


class GraphDecoder(PackedFeed):
    """A decoder that replays `decoder`'s forwards as CUDA graphs.

    A form is recorded after its first few forwards. addresses: returns the places of the weights; graphs outlast new
    weights in the same place. If forwards cannot be recorded (a model that decides by a number from the GPU), or differ
    when replayed, `decoder` computes them for good, and `about` says so."""

    def __init__(self, decoder: PackedDecoder, record: Recorder, addresses: Callable[[], Hashable]) -> None:
        self._decoder, self._record, self._addresses = decoder, record, addresses
        self._known = addresses()
        self._graphs: dict[Form, _Graph] = {}
        self._seen: Counter[Form] = Counter()
        self._shared: Tensor | None = None  # what graphs write to, (rows, W)
        self._apart = APART
        self._without: str | None = None  # why nothing is recorded

    @property
    def invariance(self) -> Invariance:
        return self._decoder.invariance

    @property
    def layout(self) -> Layout:
        return self._decoder.layout

    @property
    def about(self) -> str:
        return f"{self._decoder.about}; {self._without or 'decoding is replayed as CUDA graphs'}"

    @property
    def replays(self) -> bool:
        return self._without is None

    def feeds(self, decoding: bool, full: bool) -> bool:
        return not decoding or full or not self.replays or self._apart >= APART

    def refresh(self) -> None:
        self._decoder.refresh()
        before, self._known = self._known, self._addresses()
        if self._known != before:
            self._clear()
            self._seen.clear()

    def forget(self) -> None:
        self._decoder.forget()
        gone = [form for form, graph in self._graphs.items() if any(slab() is None for slab in graph.slabs)]
        for form in gone:
            del self._graphs[form]
        if gone:  # slabs of a training's next step have other numbers
            self._seen.clear()
        if not self._graphs:
            self._clear()

    def __call__(self, plan: ForwardPlan) -> Output:
        self._apart = 0 if plan.form is None else self._apart + 1
        if plan.form is None or not self.replays:
            return self._decoder(plan)
        graph = self._graphs.pop(plan.form, None)
        if graph is not None:
            self._graphs[plan.form] = graph  # the last to go
            return graph(plan)
        self._seen[plan.form] += 1
        kept = self._decoder(plan)
        if self._seen[plan.form] > SEEN:
            self._try(plan, plan.form, kept)
        return kept

    def _try(self, plan: ForwardPlan, form: Form, expected: Output) -> None:
        """Record the form, if its replay gives `expected`. Stores once more what the plan stores."""
        assert plan.block is not None
        block, every = plan.block.clone(), torch.arange(plan.block.shape[1], device=plan.block.device)
        slabs = [store.slab for store in plan.stores]

        def run(result: Tensor) -> Output:
            kept = self._decoder(plan_of_form(form, slabs, block, every))
            return replace(kept, states=result.copy_(kept.states))

        try:
            replay, kept = self._record(partial(run, self._result(len(every), expected.states)))
        except RuntimeError as error:
            self._stop(f"forwards cannot be recorded as CUDA graphs: {error}")
            return
        graph = _Graph(block, every, [ref(slab) for slab in slabs], replay, kept)
        if not _agrees(graph(plan), expected):
            self._stop("CUDA graphs do not give the results of the forwards that they recorded")
            return
        while len(self._graphs) >= FORMS:
            oldest = next(iter(self._graphs))
            del self._graphs[oldest], self._seen[oldest]
        self._graphs[form] = graph

    def _result(self, rows: int, like: Tensor) -> Tensor:
        """Return (rows, W) of the shared memory, enlarged if needed; graphs of the smaller one keep it."""
        if self._shared is None or len(self._shared) < rows:
            self._shared = like.new_empty(shared_rows(rows), *like.shape[1:])
        return self._shared[:rows]

    def _clear(self) -> None:
        self._graphs.clear()
        self._shared = None

    def _stop(self, reason: str) -> None:
        self._clear()
        self._without = reason.splitlines()[0]
        _LOG.warning("rollouts decode more slowly: %s", self._without)


AGREE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
"""Tolerance of a replayed forward's results, relative to the largest: rounding, and no more."""


def _agrees(got: Output, expected: Output) -> bool:
    """Return whether both are equal up to rounding, where they are finite."""
    a, b = (kept.states.float().nan_to_num(0.0, 0.0, 0.0) for kept in (got, expected))
    return bool((a - b).abs().max() <= AGREE.get(got.states.dtype, 0.1) * b.abs().max())


class CudaRecorder:
    """A `Recorder` on its own stream. All graphs share their memory, as no two run at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._latest: torch.cuda.CUDAGraph | None = None  # torch gives a pool up with the last graph that has it

    def __call__(self, run: Callable[[], Output]) -> tuple[Callable[[], object], Output]:
        before = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(before)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            run()  # kernels allocate at their first call, outside of the graph
            torch.cuda.synchronize(self._device)
            # Other threads, such as a training beside the rollouts, may do what this one must not meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                kept = run()
            finally:
                graph.capture_end()
        before.wait_stream(self._stream)
        self._latest = graph
        return graph.replay, kept
