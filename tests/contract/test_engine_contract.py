"""What every engine does, the scripted one and the local one on three architectures."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from engines import GREEDY, SUBJECTS, TOKENIZER, VOCAB, Subject, assert_equal, prompts, run
from retcon.core.errors import EngineError
from retcon.engine.types import Generation, SamplingParams

HOT = SamplingParams(temperature=1.3, top_p=0.95, max_tokens=12, seed=7)


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Subject:
    made: Subject = request.param
    return made


def alone(subject: Subject, ids: Sequence[int], params: SamplingParams) -> Generation:
    """What a fresh engine gives that serves nobody else."""
    return run(subject.make().generate("alone", ids, params))


@pytest.mark.parametrize("params", [GREEDY, HOT], ids=["greedy", "sampled"])
def test_a_generation_has_max_tokens_and_a_logprob_for_each(subject: Subject, params: SamplingParams) -> None:
    (ids,) = prompts(1, (9,))
    for count in (1, 12):
        generation = alone(subject, ids, replace(params, max_tokens=count))
        assert (len(generation.ids), generation.stop) == (count, "length")
        assert all(0 <= i < VOCAB for i in generation.ids)
        for logprobs in (generation.logprobs, generation.sampling_logprobs):
            if logprobs is not None:
                assert len(logprobs) == count
                assert all(math.isfinite(p) and p <= 0 for p in logprobs)


@pytest.mark.parametrize("params", [GREEDY, HOT], ids=["greedy", "sampled"])
def test_a_generation_ends_at_the_first_stop_id(subject: Subject, params: SamplingParams) -> None:
    (ids,) = prompts(2, (9,))
    free = alone(subject, ids, params)
    stops = (free.ids[7], free.ids[4])
    end = min(map(free.ids.index, stops)) + 1
    stopped = alone(subject, ids, replace(params, stop_ids=stops))
    assert (stopped.ids, stopped.stop) == (free.ids[:end], "stop")
    assert stopped.logprobs == pytest.approx(free.logprobs[:end] if free.logprobs else None, abs=1e-4)
    # A stop id that is also the last that max_tokens allows is a stop.
    assert alone(subject, ids, replace(params, stop_ids=stops, max_tokens=end)).stop == "stop"
    if end > 1:
        assert alone(subject, ids, replace(params, stop_ids=stops, max_tokens=end - 1)).stop == "length"


def test_a_generation_ends_with_the_id_that_completes_a_stop_string(subject: Subject) -> None:
    (ids,) = prompts(3, (9,))
    params = SamplingParams(max_tokens=40, seed=5)
    free = alone(subject, ids, params)
    at = next(i for i in range(3, 39) if free.ids[i] < 128 and free.ids[i + 1] < 128)
    text = TOKENIZER.decode(free.ids[at : at + 2])
    end = next(n for n in range(1, 41) if text in TOKENIZER.decode(free.ids[:n]))
    stopped = alone(subject, ids, replace(params, stop=("never to be seen", text)))
    assert (stopped.ids, stopped.stop) == (free.ids[:end], "stop")
    # What stood in the prompt does not count.
    assert alone(subject, [*ids, *text.encode()], replace(GREEDY, max_tokens=1, stop=(text,))).stop == "length"


def test_the_seed_is_the_requests_own(subject: Subject) -> None:
    (ids,) = prompts(4, (10,))
    one, again, other = (alone(subject, ids, replace(HOT, seed=seed)) for seed in (11, 11, 12))
    assert one == again
    assert (one.ids != other.ids) == subject.samples


def test_requests_at_once_get_what_each_gets_alone(subject: Subject) -> None:
    batch = prompts(5, (10, 25, 3, 18, 10, 1))
    params = [replace(p, max_tokens=3 * i + 2, seed=i) for i, p in enumerate((HOT, GREEDY, HOT, HOT, GREEDY, HOT))]

    async def together() -> list[Generation]:
        engine = subject.make()
        calls = zip(map(str, range(len(batch))), batch, params, strict=True)
        return await asyncio.gather(*(engine.generate(*call) for call in calls))

    for ids, how, generation in zip(batch, params, run(together()), strict=True):
        assert_equal(subject, generation, alone(subject, ids, how))


def test_turns_and_rollbacks_with_parameters_of_their_own_get_what_a_fresh_engine_gives(subject: Subject) -> None:
    prompt, shown, other = prompts(6, (14, 6, 9))

    async def rollout() -> list[tuple[list[int], SamplingParams, Generation]]:
        engine, done = subject.make(), []

        async def turn(ids: list[int]) -> Generation:
            params = replace(HOT, seed=len(done)) if len(done) % 3 else GREEDY
            done.append((ids, params, await engine.generate("r", ids, params)))
            return done[-1][2]

        first = await turn(prompt)
        second = await turn([*prompt, *first.ids, *shown])
        await turn([*prompt, *first.ids, *shown, *second.ids[:5]])  # what followed never happened
        await turn([*prompt, *first.ids[:3], *other])  # a rollback, then something else
        await turn(prompt)  # all of it was seen
        await turn(prompt[:7])
        await turn(other)  # nothing in common
        return done

    for ids, params, generation in run(rollout()):
        assert_equal(subject, generation, alone(subject, ids, params))


def test_score_gives_the_logprobs_of_the_generation(subject: Subject) -> None:
    (ids,) = prompts(7, (10,))

    async def main() -> None:
        engine = subject.make()
        generation = await engine.generate("a", ids, HOT)
        whole = [*ids, *generation.ids]
        for name in ("a", "fresh"):
            scores = await engine.score(name, whole, len(ids))
            assert list(scores) == pytest.approx(list(generation.logprobs or ()), abs=1e-4)
            assert list(await engine.score(name, whole, len(ids) + 5)) == pytest.approx(list(scores)[5:], abs=1e-4)
            assert list(await engine.score(name, whole, len(whole))) == []
            await engine.release(name)
        assert_equal(subject, await engine.generate("a", ids, HOT), generation)

    run(main())


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (SamplingParams(temperature=-0.5), "temperature is -0.5; it must be a finite number"),
        (SamplingParams(temperature=math.nan), "temperature is nan"),
        (SamplingParams(temperature=math.inf), "temperature is inf"),
        (SamplingParams(top_p=0), r"top_p is 0; it must be in \(0, 1\]"),
        (SamplingParams(top_p=1.5), "top_p is 1.5"),
        (SamplingParams(top_k=-1), "top_k is -1; it must be ≥ 0"),
        (SamplingParams(min_p=1.1), r"min_p is 1.1; it must be in \[0, 1\]"),
        (SamplingParams(max_tokens=0), "max_tokens is 0; it must be ≥ 1"),
        (SamplingParams(stop=("a", "")), "stop is"),
        (SamplingParams(stop="ab"), "stop is 'ab'; it must be a tuple"),  # type: ignore[arg-type]
    ],
)
def test_parameters_that_cannot_be_served_are_refused_by_name(
    subject: Subject, params: SamplingParams, words: str
) -> None:
    async def main() -> tuple[Any, Generation]:
        engine = subject.make()
        wrong, right = await asyncio.gather(
            engine.generate("wrong", [1, 2], params), engine.generate("right", [1, 2], GREEDY), return_exceptions=True
        )
        assert isinstance(right, Generation)
        return wrong, right

    wrong, right = run(main())
    assert isinstance(wrong, EngineError)
    with pytest.raises(EngineError, match=f"request wrong: {words}"):
        raise wrong
    assert_equal(subject, right, alone(subject, [1, 2], GREEDY))


def test_a_released_request_may_come_back(subject: Subject) -> None:
    one, other = prompts(8, (12, 9))

    async def main() -> list[Generation]:
        engine = subject.make()
        await engine.release("never seen")
        generations = []
        for ids in (one, other, one):
            generations.append(await engine.generate("a", ids, HOT))
            await engine.release("a")
            await engine.release("a")
        return generations

    for ids, generation in zip((one, other, one), run(main()), strict=True):
        assert_equal(subject, generation, alone(subject, ids, HOT))


def test_a_cancelled_caller_leaves_the_others_right(subject: Subject) -> None:
    batch = prompts(9, (10, 6, 13))
    long = replace(HOT, max_tokens=30)

    async def main() -> None:
        engine = subject.make()
        tasks = [asyncio.create_task(engine.generate(str(i), ids, long)) for i, ids in enumerate(batch)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        for index in (0, 2):
            assert_equal(subject, await tasks[index], alone_of[index])
            await engine.release(str(index))
        assert_equal(subject, await engine.generate("1", batch[1], long), alone_of[1])  # and may come back

    alone_of = [alone(subject, ids, long) for ids in batch]
    run(main())
