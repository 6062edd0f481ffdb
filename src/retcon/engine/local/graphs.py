"""Forwards that only decode, recorded as CUDA graphs and replayed.

A small model's forward on a GPU is a thousand kernels of some microseconds each, and Python takes longer to start them
than the GPU to run them. A graph starts them all at once. It needs the same operations on the same memory: hence plans
of few forms (`forward.fixed`), whose ids are copied to where the graph reads them.

What is to be fed has no fixed form. So that it does not make every forward a slow one, it waits until APART forwards
were replayed, or until there is enough of it to fill one, and then goes with the next one.

What graphs give, many MB of logits where a vocabulary is large, they all write to the same memory: it is read before
the next one runs.
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
from retcon.engine.local.decoder import PackedDecoder, Packing
from retcon.engine.local.forward import Invariance, Kept, fixed_as
from retcon.engine.local.slabs import Layout, Slab

_LOG = logging.getLogger(__name__)

APART = 8
"""Replayed forwards between two that feed. Eight take about as long as one that is not replayed."""
SEEN = 2
"""Forwards of a form before it is recorded, which costs as much as two or three of them."""
FORMS = 128
"""Graphs that are kept; the one longest out of use goes first, and must be seen as often again to be recorded."""

Recorder = Callable[[Callable[[], Kept]], tuple[Callable[[], object], Kept]]
"""Given what to run: what runs the same operations again, and where their result lies then."""


def shared_rows(rows: int) -> int:
    """Rows of the memory that graphs of so many at most write to: doubled, so that the smaller ones that there were
    before are less than that together."""
    return 1 << (rows - 1).bit_length()


@dataclass(frozen=True, slots=True)
class _Graph:
    """block: what is read, (3, N). every: read too, (N,); nothing else keeps what a graph reads alive. slabs: those
    that it reads and writes, while there are. kept: of all N ids, after `replay`, until another graph runs."""

    block: Tensor
    every: Tensor
    slabs: Sequence[ref[Slab]]
    replay: Callable[[], object]
    kept: Kept

    def __call__(self, plan: ForwardPlan) -> Kept:
        assert plan.block is not None
        self.block.copy_(plan.block)
        self.replay()
        return replace(self.kept, states=self.kept.states.index_select(0, plan.keep))


class Replayed(Packing):
    """`decoder`, whose forwards of one form are recorded after the first few, and replayed from then on. addresses:
    tells where the weights lie; graphs outlast new ones in the same place.

    What cannot be recorded (a model that asks the GPU for a number and decides by it), or comes out differently when
    replayed, is left to `decoder` for good, and `about` says so.
    """

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
        return f"{self._decoder.about}; {self._without or 'what only decodes is replayed as CUDA graphs'}"

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

    def __call__(self, plan: ForwardPlan) -> Kept:
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

    def _try(self, plan: ForwardPlan, form: Form, expected: Kept) -> None:
        """Record the form, if what is replayed gives what was expected. Stores once more what the plan stores."""
        assert plan.block is not None
        block, every = plan.block.clone(), torch.arange(plan.block.shape[1], device=plan.block.device)
        slabs = [store.slab for store in plan.stores]

        def run(result: Tensor) -> Kept:
            kept = self._decoder(fixed_as(form, slabs, block, every))
            return replace(kept, states=result.copy_(kept.states))

        try:
            replay, kept = self._record(partial(run, self._result(len(every), expected.states)))
        except RuntimeError as error:
            self._stop(f"forwards cannot be recorded as CUDA graphs: {error}")
            return
        graph = _Graph(block, every, [ref(slab) for slab in slabs], replay, kept)
        if not _agree(graph(plan), expected):
            self._stop("CUDA graphs do not give what the forward gives that they were recorded of")
            return
        while len(self._graphs) >= FORMS:
            oldest = next(iter(self._graphs))
            del self._graphs[oldest], self._seen[oldest]
        self._graphs[form] = graph

    def _result(self, rows: int, like: Tensor) -> Tensor:
        """(rows, W) of what all graphs write to, or of more memory; those that have the smaller keep it."""
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
"""How far a replayed forward's results may be off, relative to the largest: rounding, and no more."""


def _agree(got: Kept, expected: Kept) -> bool:
    """Whether both are the same but for rounding. What is not finite is not compared."""
    a, b = (kept.states.float().nan_to_num(0.0, 0.0, 0.0) for kept in (got, expected))
    return bool((a - b).abs().max() <= AGREE.get(got.states.dtype, 0.1) * b.abs().max())


class CudaRecorder:
    """Records on a stream of its own; see `Recorder`. All graphs have their memory in common, as no two run at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._latest: torch.cuda.CUDAGraph | None = None  # torch gives a pool up with the last graph that has it

    def __call__(self, run: Callable[[], Kept]) -> tuple[Callable[[], object], Kept]:
        before = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(before)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            run()  # what kernels make at their first call, they make outside of the graph
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
