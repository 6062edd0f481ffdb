"""Forwards that are recorded and replayed: the same answers as without. On a CPU, where what is recorded is run again;
that CUDA graphs do the same is for tests/cuda to show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from engines import MAX_LEN, assert_exact, make_model, model_of
from retcon.engine.local import engine as local_engine
from retcon.engine.local.decoder import Decoder, decoder_for
from retcon.engine.local.engine import LocalEngine
from retcon.engine.local.forward import Invariance, Kept
from retcon.engine.local.graphs import Replayed
from retcon.engine.types import Generation, SamplingParams

pytestmark = pytest.mark.torch

Replay = Callable[[], object]


class Again:
    """Runs what was recorded again, into the memory of the first result. wrong: what is added to it."""

    def __init__(self, wrong: float = 0.0) -> None:
        self.recorded = self.replayed = 0
        self.wrong = wrong

    def __call__(self, run: Callable[[], Kept]) -> tuple[Replay, Kept]:
        self.recorded += 1
        kept = run()
        kept = replace(kept, states=kept.states.clone())

        def replay() -> None:
            self.replayed += 1
            kept.states.copy_(run().states + self.wrong)

        return replay, kept


class Undrafted(Replayed):
    """As on a GPU, where nothing is drafted."""

    @property
    def invariance(self) -> Invariance:
        return Invariance()


def engine_with(
    monkeypatch: pytest.MonkeyPatch,
    record: Callable[[Callable[[], Kept]], tuple[Replay, Kept]],
    model: Any,
    keeps: int = 0,
) -> LocalEngine:
    """keeps: bytes of slabs that stay when keys and values are forgotten."""

    def made(*given: object) -> Decoder:
        return Undrafted(decoder_for(*given), record, lambda: tuple(p.data_ptr() for p in model.parameters()))  # type: ignore[arg-type]

    monkeypatch.setattr(local_engine, "decoder_for", made)
    monkeypatch.setattr(local_engine, "kept_at_rest", lambda _: keeps)
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


def refuse(_: Callable[[], Kept]) -> tuple[Replay, Kept]:
    raise RuntimeError("operation not permitted when stream is capturing\nmore of it")


@pytest.mark.parametrize(
    ("record", "said"),
    [(refuse, "operation not permitted when stream is capturing"), (Again(wrong=3.0), "do not give what the forward")],
)
def test_what_cannot_be_replayed_is_computed(
    monkeypatch: pytest.MonkeyPatch, record: Callable[[Callable[[], Kept]], tuple[Replay, Kept]], said: str
) -> None:
    plain = converse(LocalEngine(model_of("qwen3"), max_len=MAX_LEN))
    engine = engine_with(monkeypatch, record, model_of("qwen3"))
    got = converse(engine)
    assert [[g.ids for g in turns] for turns in got] == [[g.ids for g in turns] for turns in plain]
    assert said in engine.decoding
    assert "more of it" not in engine.decoding
