"""Several engines as one: the same tokens as one gives, a small budget, and one that dies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest

from engines import GREEDY, MAX_LEN, TOKENIZER, model_of, prompts, run
from retcon.chat.chat import Chat
from retcon.core.errors import EngineError, InfrastructureFault
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.engine.pool.engine import PoolEngine
from retcon.engine.pool.policy import PoolSettings
from retcon.engine.types import Generation, Generator, SamplingParams
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.rollout.group import rollout_group
from retcon.tasks.types import Task

T = TypeVar("T")
LONG = SamplingParams(temperature=0, max_tokens=30)


class Mortal:
    """An engine that dies while it generates, after so many calls, and can be revived."""

    def __init__(self, engine: Generator, after: int | None = None) -> None:
        self.engine, self.left, self.asked = engine, after, 0

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        self.asked += 1
        made = await self.engine.generate(request_id, ids, params)
        self._live()
        return made

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> Sequence[float] | None:
        self._live()
        return await self.engine.score(request_id, ids, start)

    async def release(self, request_id: str) -> None:
        await self.engine.release(request_id)

    def _live(self) -> None:
        if self.left is not None:
            if self.left <= 0:
                raise InfrastructureFault("it is dead")
            self.left -= 1


def within(pool: PoolEngine, work: Callable[[], Awaitable[T]]) -> T:
    async def connected() -> T:
        async with pool, pool.connected():
            return await work()

    return run(connected())


async def converse(engine: Generator, prompts: Sequence[Sequence[int]], turns: int) -> list[list[int]]:
    """Some turns of each, an observation of two tokens after each turn."""

    async def one(name: str, prompt: Sequence[int]) -> list[int]:
        ids = list(prompt)
        for _ in range(turns):
            ids.extend((await engine.generate(name, ids, GREEDY)).ids)
            await asyncio.sleep(0)
            ids.extend((1, 2))
        await engine.release(name)
        return ids

    return await asyncio.gather(*(one(f"t{n}", prompt) for n, prompt in enumerate(prompts)))


def local() -> Any:
    from retcon.engine.local.engine import LocalEngine

    return LocalEngine(model_of("qwen3"), max_len=MAX_LEN, max_requests=4, tokenizer=TOKENIZER)


@pytest.mark.torch
@pytest.mark.parametrize("capacity", [None, 2 * MAX_LEN, MAX_LEN + 1])
def test_two_local_engines_give_the_tokens_of_one_however_small_their_budget(capacity: int | None) -> None:
    asked = prompts(1, (5, 9, 5, 12, 7, 8, 20, 3, 9, 11))
    alone = run(converse(local(), asked, 3))
    engines = [local(), local()]
    pool = PoolEngine(engines, [capacity, capacity])
    assert within(pool, lambda: converse(pool, asked, 3)) == alone
    assert all(engine.stats.generated > 0 for engine in engines)
    assert pool.stats.retried == 0


@pytest.mark.torch
def test_scores_come_from_the_pool_too() -> None:
    ((first, second),) = [prompts(2, (9, 12))]
    pool = PoolEngine([local(), local()], [None, None])

    async def scores() -> list[Any]:
        return [await pool.score(name, ids, 4) for name, ids in (("a", first), ("b", second))]

    one = local()
    expected = [run(one.score(name, ids, 4)) for name, ids in (("a", first), ("b", second))]
    for got, wanted in zip(within(pool, scores), expected, strict=True):
        assert got == pytest.approx(wanted, abs=1e-4)


@pytest.mark.torch
def test_an_engine_that_dies_costs_nothing_but_its_own_calls() -> None:
    asked = prompts(3, (5, 9, 5, 12, 7, 8))
    alone = run(converse(local(), asked, 3))
    dying = Mortal(local(), after=4)
    pool = PoolEngine([dying, local()], [None, None], patience=0.001)
    assert within(pool, lambda: converse(pool, asked, 3)) == alone
    assert pool.stats.retried >= 1
    assert pool.stats.moved >= 1


def scripted(*_: object) -> ScriptedEngine:
    return ScriptedEngine(TOKENIZER, lambda request_id, text, n: f"{request_id} {n}")


def test_where_all_are_dead_rollouts_end_without_reward_once_patience_is_at_its_end() -> None:
    pool = PoolEngine([Mortal(scripted(), 0), Mortal(scripted(), 0)], [None, None], patience=0.05)
    context = RolloutContext(pool, Chat(TOKENIZER), {}, RolloutLimits(60, 3))

    async def rollouts() -> Any:
        return await rollout_group(Task("t", "go", "1"), context, count=3, seed=0, step=0, grade=lambda _, t: t)

    made = within(pool, rollouts)
    assert [(t.stop, t.reward, t.turns) for t in made] == [("infrastructure", None, ())] * 3


def test_what_an_engine_refuses_is_the_callers_and_asked_of_no_other() -> None:
    engines = [ScriptedEngine(TOKENIZER, [EngineError("no such token")]) for _ in range(2)]
    pool = PoolEngine(engines, [None, None])
    with pytest.raises(EngineError, match="no such token"):
        within(pool, lambda: pool.generate("a", [5], GREEDY))
    assert sum(len(engine.seen) for engine in engines) == 1


def test_a_caller_that_is_gone_gives_its_place_up() -> None:
    """Room for one: the second is served because the first was cancelled."""
    pool = PoolEngine([Stuck()], [100.0])

    async def work() -> Generation:
        first = asyncio.create_task(pool.generate("first", [1] * 40, LONG))
        while not Stuck.asked:
            await asyncio.sleep(0)
        second = asyncio.create_task(pool.generate("second", [2] * 40, LONG))
        await asyncio.sleep(0)
        assert Stuck.asked == ["first"]
        first.cancel()
        return await second

    Stuck.asked.clear()
    assert within(pool, work).ids == (7,)


class Stuck:
    """An engine that never answers a request named first."""

    asked: list[str] = []  # noqa: RUF012

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        self.asked.append(request_id)
        if request_id == "first":
            await asyncio.get_running_loop().create_future()
        return Generation((7,), None, "length")

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> None:
        return None

    async def release(self, request_id: str) -> None:
        return None


def test_one_that_gives_way_is_generated_anew_and_comes_out_the_same() -> None:
    """The policy thinks that calls grow by 10,000 tokens a second, so that two that were let in must part."""
    slow = Slow()
    pool = PoolEngine([slow], [100.0], settings=PoolSettings(admit=2.0, fastest=10_000.0))

    async def work() -> list[Generation]:
        asking = [asyncio.create_task(pool.generate(name, [1] * 40, LONG)) for name in "ab"]
        while not pool.stats.evicted:
            await asyncio.sleep(0)
        slow.go.set()
        return await asyncio.gather(*asking)

    assert [made.ids for made in within(pool, work)] == [(40,), (40,)]
    assert slow.asked == ["a", "b", "b"]


class Slow(Stuck):
    """An engine that answers once it may."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asked = []

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        self.asked.append(request_id)
        await self.go.wait()
        return Generation((len(ids),), None, "length")


def test_a_call_whose_trajectory_is_released_ends_wherever_it_is() -> None:
    """One that waits for a place, and one that an engine computes which knows nothing of it."""
    pool = PoolEngine([Stuck()], [100.0])

    async def work() -> Generation:
        asking = [asyncio.create_task(pool.generate(name, [1] * 40, LONG)) for name in ("first", "second")]
        while not Stuck.asked:
            await asyncio.sleep(0)
        for name, call in zip(("second", "first"), reversed(asking), strict=True):
            await pool.release(name)
            with pytest.raises(EngineError, match=f"request {name} was released"):
                await call
        return await pool.generate("third", [1] * 40, LONG)

    Stuck.asked.clear()
    assert within(pool, work).ids == (7,)


def test_a_caller_that_is_gone_does_not_keep_an_engine_from_forgetting() -> None:
    """The second call waits until what the engine kept of the first is gone, and is cancelled meanwhile."""

    class Forgetful(Slow):
        forgot = 0

        async def release(self, request_id: str) -> None:
            await self.go.wait()
            self.forgot += 1

    slow = Forgetful()
    pool = PoolEngine([slow], [None])

    async def work() -> None:
        pool._forget("a", 0)
        call = asyncio.create_task(pool.generate("a", [1], LONG))
        await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.wait([call])
        slow.go.set()

    within(pool, work)
    assert slow.forgot == 2  # and once more when the pool was left


def test_an_engine_forgets_who_lost_its_room_there_while_its_tool_ran() -> None:
    engine = scripted()
    pool = PoolEngine([engine], [100.0], settings=PoolSettings(prefill=1e9))  # no room is worth keeping

    async def work() -> list[str]:
        for name in "ab":
            await pool.generate(name, [1] * 60, LONG)
        return list(engine.released)

    assert within(pool, work) == ["a"]


def test_new_weights_reach_all_engines_that_take_some() -> None:
    class Told(Stuck):
        def __init__(self) -> None:
            self.told: list[str] = []

        def invalidate(self) -> None:
            self.told.append("invalidate")

        async def follow(self) -> None:
            self.told.append("follow")

    first, last = Told(), Told()
    pool = PoolEngine([first, Stuck(), last], [None] * 3)
    pool.invalidate()
    run(pool.follow())
    assert first.told == last.told == ["invalidate", "follow"]


def test_where_one_engine_cannot_be_entered_the_others_are_left() -> None:
    class Entered(Stuck):
        def __init__(self, fails: bool) -> None:
            self.fails, self.inside = fails, False

        async def __aenter__(self) -> Entered:
            if self.fails:
                raise EngineError("no room")
            self.inside = True
            return self

        async def __aexit__(self, *_: object) -> None:
            self.inside = False

    engines = [Entered(fails=False), Entered(fails=True)]
    pool = PoolEngine(engines, [None, None])
    with pytest.raises(EngineError, match="no room"):
        within(pool, lambda: pool.generate("a", [5], GREEDY))
    assert not engines[0].inside


def test_it_is_asked_within_its_connections_alone_and_one_call_at_a_time() -> None:
    pool = PoolEngine([scripted()], [None])
    with pytest.raises(EngineError, match="request a: the pool is not connected"):
        run(pool.generate("a", [5], GREEDY))
    with pytest.raises(EngineError, match="2 engines with 1 capacities"):
        PoolEngine([scripted(), scripted()], [None])

    async def twice() -> None:
        await asyncio.gather(pool.generate("a", [5], GREEDY), pool.generate("a", [5], GREEDY))

    with pytest.raises(EngineError, match="request a already waits"):
        within(pool, twice)
