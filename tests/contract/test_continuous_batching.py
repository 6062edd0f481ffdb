"""Requests join and leave the local engine at any step, wait for nobody's tool, and get what each gets alone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from engines import GREEDY, MAX_LEN, MODELS, TOKENIZER, VOCAB, WINDOW, assert_exact, model_of, prompts, run
from retcon.engine.local.engine import LocalEngine
from retcon.engine.types import Generation, SamplingParams

pytestmark = pytest.mark.torch

Turns = list[tuple[list[int], SamplingParams, Generation]]


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return model_of(request.param)


@pytest.fixture(scope="module")
def qwen3() -> Any:
    return model_of("qwen3")


def alone(model: Any, ids: Sequence[int], params: SamplingParams) -> Generation:
    """What an engine gives that serves nobody else."""
    return run(LocalEngine(model, max_len=MAX_LEN, tokenizer=TOKENIZER).generate("alone", ids, params))


async def until(condition: Callable[[], bool]) -> None:
    """Let the others go on until the condition holds; `run` ends a wait that is in vain."""
    while not condition():
        await asyncio.sleep(0)


def mixed(index: int, max_tokens: int) -> SamplingParams:
    """Parameters of all kinds side by side."""
    kinds: tuple[dict[str, Any], ...] = (
        {"temperature": 0}, {}, {"temperature": 0.8, "top_p": 0.9}, {"top_k": 20, "min_p": 0.01},
        {"temperature": 1.5},
    )  # fmt: skip
    return SamplingParams(**kinds[index % len(kinds)], max_tokens=max_tokens, seed=index)


def test_requests_that_join_while_others_decode_get_what_they_get_alone(model: Any) -> None:
    arrivals = (0, 0, 1, 2, 2, 5, 9, 17, 18, 30)
    batch = prompts(1, (10, 3, 17, 17, 1, 30, 12, 9, 5, 22))
    params = [mixed(i, n) for i, n in enumerate((40, 3, 20, 1, 35, 12, 2, 25, 8, 10))]

    async def main() -> tuple[LocalEngine, list[Generation]]:
        engine = LocalEngine(model, max_len=MAX_LEN)

        async def join(index: int) -> Generation:
            await until(lambda: engine.stats.steps >= arrivals[index])
            return await engine.generate(str(index), batch[index], params[index])

        return engine, await asyncio.gather(*map(join, range(len(batch))))

    engine, generations = run(main())
    for ids, how, generation in zip(batch, params, generations, strict=True):
        assert generation == alone(model, ids, how)  # bit for bit
        assert_exact(model, ids, generation)
    total = sum(len(g.ids) for g in generations)
    assert engine.stats.generated == total
    assert engine.stats.steps < total / 2  # they were decoded together


def test_a_request_that_ends_is_answered_while_others_decode(qwen3: Any) -> None:
    long, short = prompts(2, (8, 8))

    async def main() -> None:
        engine = LocalEngine(qwen3, max_len=MAX_LEN)
        task = asyncio.create_task(engine.generate("long", long, SamplingParams(max_tokens=50, seed=1)))
        for turn in range(4):
            await engine.generate("short", short, mixed(turn, 4))
            assert not task.done()
        await task

    run(main())


def test_nobody_waits_for_the_tool_of_another(qwen3: Any) -> None:
    mine, theirs = prompts(3, (8, 11))

    async def main(others: str) -> list[Generation]:
        engine = LocalEngine(qwen3, max_len=MAX_LEN, max_requests=2)
        first = await engine.generate("a", mine, GREEDY)
        # The tool of "a" takes as long as it takes the others to live their whole lives, and none is ever released.
        for name in others:
            ids = theirs
            for _ in range(3):
                generation = await engine.generate(name, ids, SamplingParams(max_tokens=6))
                assert_exact(qwen3, ids, generation)
                ids = [*ids, *generation.ids, 7]
        return [first, await engine.generate("a", [*mine, *first.ids, 5], GREEDY)]

    assert [g.ids for g in run(main("bcd"))] == [g.ids for g in run(main(""))]


async def play(engine: LocalEngine, indices: Sequence[int], tools: random.Random, workers: int) -> dict[int, Turns]:
    """Rollouts of differing turns, with rollbacks, whose tools take as many passes of the loop as `tools` draws."""
    gate = asyncio.Semaphore(workers)
    done: dict[int, Turns] = {}

    async def rollout(index: int) -> None:
        draw, turns = random.Random(index), []
        async with gate:
            prompt = ids = prompts(index // 3, (draw.randint(4, 9),))[0]
            for turn in range(draw.randint(1, 4)):
                params = mixed(100 * index + turn, draw.randint(1, 9))
                turns.append((ids, params, await engine.generate(str(index), ids, params)))
                for _ in range(tools.choice((0, 0, 1, 5, 40))):
                    await asyncio.sleep(0)
                written = [*turns[-1][2].ids, draw.randrange(VOCAB)]
                ids = [*prompt, *written] if draw.random() < 0.3 else [*ids, *written]
            await engine.release(str(index))
        done[index] = turns

    await asyncio.gather(*map(rollout, indices))
    return done


@pytest.mark.parametrize(("max_requests", "workers"), [(10, 10), (4, 10), (10, 3)])
def test_results_do_not_depend_on_how_long_tools_take(qwen3: Any, max_requests: int, workers: int) -> None:
    def results(seed: int) -> dict[int, Turns]:
        engine = LocalEngine(qwen3, max_len=MAX_LEN, max_requests=max_requests)
        return run(play(engine, range(10), random.Random(seed), workers))

    first, *others = map(results, range(4))
    for other in others:
        assert other == first  # bit for bit
    for turns in first.values():
        for ids, params, generation in turns:
            assert_exact(qwen3, ids, generation)
            assert generation.ids == alone(qwen3, ids, params).ids


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "mixed"])
def test_requests_that_give_way_to_others_lose_nothing(qwen3: Any, greedy: bool) -> None:
    # 1 MiB holds 2,048 ids of this model; 40 requests grow to 4,320.
    count, length = 40, 100
    batch = prompts(4, [8] * count)
    params = [mixed(0 if greedy else i, length) for i in range(count)]

    async def main(kv_memory_mb: int) -> tuple[LocalEngine, list[Generation]]:
        engine = LocalEngine(qwen3, max_len=WINDOW, max_requests=count, kv_memory_mb=kv_memory_mb)

        async def one(index: int) -> Generation:
            generation = await engine.generate(str(index), batch[index], params[index])
            await engine.release(str(index))
            return generation

        return engine, await asyncio.gather(*map(one, range(count)))

    (short, under_short), (long, under_long) = run(main(1)), run(main(64))
    assert long.stats.preempted == 0 < short.stats.preempted
    assert short.stats.kv_peak <= 2**20
    assert short.stats.generated == long.stats.generated == count * length
    for ids, generation, expected in zip(batch, under_short, under_long, strict=True):
        assert_exact(qwen3, ids, generation)
        assert generation.ids == expected.ids


def test_who_is_cancelled_makes_room(qwen3: Any) -> None:
    batch = prompts(6, (10, 6, 13, 8))
    long = SamplingParams(max_tokens=30, seed=1)

    async def main() -> list[Generation]:
        engine = LocalEngine(qwen3, max_len=MAX_LEN, max_requests=2)
        running = [asyncio.create_task(engine.generate(str(i), batch[i], long)) for i in range(2)]
        await until(lambda: engine.stats.steps >= 5)
        waiting = [asyncio.create_task(engine.generate(str(i), batch[i], long)) for i in (2, 3)]
        await until(lambda: engine.stats.steps >= 7)
        running[0].cancel()  # 2 has its place
        before = engine.stats.prefilled
        await until(lambda: engine.stats.prefilled > before)
        assert not running[1].done()
        waiting[1].cancel()
        return [await running[1], await waiting[0], await engine.generate("0", batch[0], long)]

    for generation, ids in zip(run(main()), (batch[1], batch[2], batch[0]), strict=True):
        assert generation == alone(qwen3, ids, long)


async def live(engine: LocalEngine, index: int, pause: Callable[[], Any]) -> list[Any]:
    """A random life of one request: turns, observations, scores and rollbacks; all that it is answered."""
    draw = random.Random(index)
    ids = prompts(index // 4, (draw.randint(1, 40),))[0] if index % 4 else prompts(index, (30,))[0]
    answers: list[Any] = []
    for turn in range(draw.randint(1, 4)):
        if draw.random() < 0.25 and len(ids) > 2:
            answers.append(await engine.score(str(index), ids, draw.randint(1, len(ids) - 1)))
        params = mixed(index + turn, draw.randint(1, 40))
        generation = await engine.generate(str(index), ids, params)
        answers.append(generation)
        ids = [*ids, *generation.ids]
        if draw.random() < 0.3:
            ids = ids[: max(1, len(ids) - draw.randint(0, 30))]
        ids += [draw.randrange(VOCAB) for _ in range(draw.randint(0, 12))]
        if len(ids) > WINDOW - 60:
            break
        await pause()
    if draw.random() < 0.7:
        await engine.release(str(index))  # the others are never released, as some callers forget to
    return answers


@pytest.mark.parametrize("seed", range(2))
def test_many_lives_at_once_are_each_the_life_that_it_is_alone(qwen3: Any, seed: int) -> None:
    lives = range(100 * seed, 100 * seed + 24)

    async def together(kv_memory_mb: int) -> tuple[LocalEngine, list[list[Any]]]:
        engine = LocalEngine(qwen3, max_len=WINDOW, max_requests=24, kv_memory_mb=kv_memory_mb)
        draw = random.Random(seed)

        async def pause() -> None:
            for _ in range(draw.choice((0, 1, 5, 40))):
                await asyncio.sleep(0)

        return engine, await asyncio.gather(*(live(engine, i, pause) for i in lives))

    async def one(index: int) -> list[Any]:
        return await live(LocalEngine(qwen3, max_len=WINDOW), index, lambda: asyncio.sleep(0))

    expected = [run(one(index)) for index in lives]
    assert run(together(0))[1] == expected
    engine, short = run(together(1))
    assert engine.stats.preempted + engine.stats.evicted > 0
    assert engine.stats.kv_peak <= 2**20
    for answers, exact in zip(short, expected, strict=True):
        for answer, right in zip(answers, exact, strict=True):
            if isinstance(right, Generation):
                assert answer.ids == right.ids
                assert answer.logprobs == pytest.approx(right.logprobs, abs=1e-4)
            else:
                assert answer == pytest.approx(right, abs=1e-4)


def test_a_prompt_whose_last_holder_is_put_out_for_it_is_computed_anew(qwen3: Any) -> None:
    """The slot that a new request gets is that of the one which its prompt would have been copied from."""
    many = prompts(31, (40,) * 60)

    async def main() -> tuple[LocalEngine, Generation, Generation]:
        engine = LocalEngine(qwen3, max_len=WINDOW, max_requests=200, kv_memory_mb=1)
        first = {str(n): await engine.generate(str(n), ids, GREEDY) for n, ids in enumerate(many)}
        oldest = next(iter(engine._scheduler._resting))  # who goes first where there is no room
        again = await engine.generate("again", many[int(oldest)], GREEDY)
        return engine, first[oldest], again

    engine, first, again = run(main())
    assert engine.stats.evicted > 0
    assert again.ids == first.ids


def test_a_history_that_a_sibling_holds_is_copied_to_who_had_no_room_to_grow(qwen3: Any) -> None:
    """Its own slot, too small for the history, is given up for one into which the sibling's is copied."""
    (ids,) = prompts(32, (100,))
    first, second = mixed(1, 20), mixed(2, 20)

    async def main() -> tuple[LocalEngine, list[Generation]]:
        engine = LocalEngine(qwen3, max_len=WINDOW)
        memory = engine._scheduler._memory
        memory.budget = memory.slot_bytes(256)  # for two slots of 128, and for no third one
        await engine.generate("grows", ids[:40], mixed(0, 1))
        sibling = asyncio.create_task(engine.generate("sibling", ids, first))
        await until(lambda: engine.stats.steps > 0)
        answers = await asyncio.gather(sibling, engine.generate("grows", ids, second))
        await engine.release("grows")
        await engine.release("sibling")
        return engine, answers

    engine, answers = run(main())
    for params, generation in zip((first, second), answers, strict=True):
        assert generation == run(LocalEngine(qwen3, max_len=WINDOW).generate("alone", ids, params))
    assert engine.stats.copied == len(ids)
