"""Forwards that are recorded and replayed: the same answers as without. On a CPU, where what is recorded is run again;
that CUDA graphs do the same is for tests/cuda to show."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from weakref import ref

import pytest
import torch

from engines import MAX_LEN, assert_exact, make_model, model_of
from retcon.engine.local import engine as local_engine
from retcon.engine.local import graphs, scheduler
from retcon.engine.local.decoder import Decoder, choose_decoder
from retcon.engine.local.engine import LocalEngine
from retcon.engine.local.forward import Invariance, Output, Step, fixed_plan
from retcon.engine.local.graphs import GraphDecoder
from retcon.engine.local.slabs import KeysAndValues, Memory
from retcon.engine.types import Generation, SamplingParams

pytestmark = pytest.mark.torch

Replay = Callable[[], object]


class Again:
    """Runs what was recorded again, into the memory of the first result. wrong: what is added to it."""

    def __init__(self, wrong: float = 0.0) -> None:
        self.recorded = self.replayed = 0
        self.wrong = wrong

    def __call__(self, run: Callable[[], Output]) -> tuple[Replay, Output]:
        self.recorded += 1
        kept = run()
        kept = replace(kept, states=kept.states.clone())

        def replay() -> None:
            self.replayed += 1
            kept.states.copy_(run().states + self.wrong)

        return replay, kept


class Undrafted(GraphDecoder):
    """As on a GPU, where nothing is drafted."""

    @property
    def invariance(self) -> Invariance:
        return Invariance()


def engine_with(
    monkeypatch: pytest.MonkeyPatch,
    record: Callable[[Callable[[], Output]], tuple[Replay, Output]],
    model: Any,
    keeps: int = 0,
) -> LocalEngine:
    """keeps: bytes of slabs that stay when keys and values are forgotten."""

    def made(*given: object) -> Decoder:
        return Undrafted(choose_decoder(*given), record, lambda: tuple(p.data_ptr() for p in model.parameters()))  # type: ignore[arg-type]

    monkeypatch.setattr(local_engine, "choose_decoder", made)
    monkeypatch.setattr(local_engine, "resting_bytes", lambda _: keeps)
    return LocalEngine(model, max_len=MAX_LEN)


def converse(engine: LocalEngine, agents: int = 9, turns: int = 3) -> list[list[Generation]]:
    """Agents of several turns, who come and go at different times, and take back a part of what they said."""

    async def one(number: int) -> list[Generation]:
        said, ids = [], [1 + (number * 7 + n) % 90 for n in range(2 + number % 5)]
        for turn in range(turns):
            params = SamplingParams(temperature=0.0 if number % 2 else 1.0, max_tokens=5 + number, seed=number)
            said.append(await engine.generate(str(number), ids, params))
            ids = [*ids, *said[-1].ids[: 3 + turn], 5 + number]
            await asyncio.sleep(0.001 * (number % 3))
        await engine.release(str(number))
        return said

    async def main() -> list[list[Generation]]:
        return await asyncio.gather(*(one(number) for number in range(agents)))

    return asyncio.run(main())


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_what_is_replayed_is_what_is_computed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plain = converse(LocalEngine(model_of(name), max_len=MAX_LEN))
    again = Again()
    engine = engine_with(monkeypatch, again, model_of(name))
    for _ in range(2):
        got = converse(engine)
        assert again.replayed > 2 * again.recorded > 0
        assert [[g.ids for g in turns] for turns in got] == [[g.ids for g in turns] for turns in plain]
        for turns, expected in zip(got, plain, strict=True):
            for one, other in zip(turns, expected, strict=True):
                assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        engine.invalidate()  # and everything is recorded anew, over other memory
    assert "CUDA graphs" in engine.decoding


def test_after_a_change_of_the_weights_nothing_old_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    again = Again()
    engine = engine_with(monkeypatch, again, model_of("qwen3"))
    params = SamplingParams(temperature=0, max_tokens=9)

    async def main() -> list[int]:
        recorded = []
        for number in range(3):
            await engine.generate(str(number), [1, 2], params)
            await engine.release(str(number))
            recorded.append(again.recorded)
            if number == 1:
                engine.invalidate()
        return recorded

    assert asyncio.run(main()) == [1, 1, 2], "a known form is not recorded twice"


def test_graphs_outlast_new_weights_in_the_same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a training whose slabs stay: the next step records nothing, and what it says is the new weights'."""
    model, again, params = make_model("qwen3"), Again(), SamplingParams(temperature=0, max_tokens=12)
    engine = engine_with(monkeypatch, again, model, keeps=2**30)

    def change() -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)), alpha=0.05)

    def move() -> None:
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()

    async def main() -> list[int]:
        recorded, said = [], []
        for number, act in enumerate((lambda: None, change, change, move)):
            act()
            engine.invalidate()
            got = await engine.generate(str(number), [1, 2, 3], params)
            assert_exact(model, [1, 2, 3], got)
            said.append(got.ids)
            recorded.append(again.recorded)
        assert said[0] != said[1] != said[2] == said[3]
        return recorded

    assert asyncio.run(main()) == [1, 1, 1, 2], "weights that lie elsewhere are recorded anew, and no others"
    assert again.replayed > 30, "from the second step on nearly all of it"


class Once:
    """Keeps nothing but the first result, as a CUDA graph does, and what lies there now. results: what there is of
    them."""

    def __init__(self) -> None:
        self._results: list[ref[Any]] = []

    def __call__(self, run: Callable[[], Output]) -> tuple[Replay, Output]:
        kept = run()
        self._results.append(ref(kept.states))
        return lambda: None, kept

    @property
    def results(self) -> int:
        return sum(states() is not None for states in self._results)


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("keeps", [0, 2**30])
def test_at_rest_graphs_go_with_their_slabs_and_at_the_end_all_go(monkeypatch: pytest.MonkeyPatch, keeps: int) -> None:
    """At once, while requests are open whose slots they were."""
    once = Once()
    engine = engine_with(monkeypatch, once, model_of("qwen3"), keeps)
    slabs: list[ref[Any]] = []
    made = Memory.take

    def take(memory: Memory, length: int) -> Any:
        place = made(memory, length)
        slabs.extend(ref(p.slab) for p in [place] if p is not None)
        return place

    monkeypatch.setattr(Memory, "take", take)

    async def main() -> None:
        for end, left in ((engine.invalidate, keeps > 0), (engine.close, False)):
            await asyncio.gather(*(engine.generate(str(n), [1, 2, n], GREEDY_SOME) for n in range(3)))
            assert once.results > 0
            assert slabs[-1]() is not None
            end()
            assert (once.results > 0, slabs[-1]() is not None, engine.stats.kv_used > 0) == (left,) * 3

    asyncio.run(main())


def test_what_fills_a_forward_is_fed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To wait for more would spare no forward, and those that wait do not decode meanwhile."""
    monkeypatch.setattr(scheduler, "FORWARD_IDS", 16)
    engine = engine_with(monkeypatch, Again(), model_of("qwen3"))
    params = SamplingParams(temperature=0, max_tokens=4)

    async def main() -> None:
        texts = [[first, *range(15)] for first in range(20, 26)]
        await asyncio.gather(*(engine.generate(str(n), ids, params) for n, ids in enumerate(texts)))

    asyncio.run(main())
    assert engine._scheduler._forwards <= 6 + 4


class Echo:
    """Its states are the ids."""

    invariance, about, replays = Invariance(), "", False

    def __call__(self, plan: Any) -> Output:
        return Output(plan.ids.index_select(0, plan.keep)[:, None].float(), lambda states: states, 1)

    def feeds(self, decoding: bool, full: bool) -> bool:
        return True

    def refresh(self) -> None: ...

    def forget(self) -> None: ...


def test_of_too_many_forms_those_long_out_of_use_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "FORMS", 2)
    device = torch.device("cpu")
    layout = KeysAndValues({0: (1, 4, 4)}, torch.float32, device)
    memory = Memory(layout, device=device, max_len=1024, max_slots=4, budget=2**20)
    place, again = memory.take(1024), Again()
    assert place is not None

    replayed = GraphDecoder(Echo(), again, lambda: None)
    recorded = []
    for length in (*[100] * 3, *[200] * 3, 100, *[400] * 3, 100, 200, 200, 200, 400):
        said = replayed(fixed_plan([Step(place, (length,), length)], device)).states
        assert said.tolist() == [[length]]
        recorded.append(again.recorded)
    assert recorded == [0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4]


def refuse(_: Callable[[], Output]) -> tuple[Replay, Output]:
    raise RuntimeError("operation not permitted when stream is capturing\nmore of it")


@pytest.mark.parametrize(
    ("record", "said"),
    [(refuse, "operation not permitted when stream is capturing"), (Again(wrong=3.0), "do not give the results")],
)
def test_what_cannot_be_replayed_is_computed(
    monkeypatch: pytest.MonkeyPatch, record: Callable[[Callable[[], Output]], tuple[Replay, Output]], said: str
) -> None:
    plain = converse(LocalEngine(model_of("qwen3"), max_len=MAX_LEN))
    engine = engine_with(monkeypatch, record, model_of("qwen3"))
    got = converse(engine)
    assert [[g.ids for g in turns] for turns in got] == [[g.ids for g in turns] for turns in plain]
    assert said in engine.decoding
    assert "more of it" not in engine.decoding


GREEDY_SOME = SamplingParams(temperature=0, max_tokens=9)
