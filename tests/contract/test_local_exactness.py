"""The local engine against transformers: the same ids and log-probs, whatever is cached and whoever else decodes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from engines import GREEDY, MAX_LEN, MODELS, assert_exact, kept_ids, model_of, plain, plain_logits, prompts, run
from retcon.engine.local.engine import LocalEngine
from retcon.engine.types import Generation, SamplingParams

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return model_of(request.param)


@pytest.fixture(scope="module")
def qwen3() -> Any:
    return model_of("qwen3")


def test_greedy_equals_transformers_generate(model: Any) -> None:
    batch = prompts(1, (3, 17, 9, 9, 30, 1, 12))

    async def main() -> list[Generation]:
        engine = LocalEngine(model, max_len=MAX_LEN)
        return await asyncio.gather(*(engine.generate(str(i), ids, GREEDY) for i, ids in enumerate(batch)))

    for ids, generation in zip(batch, run(main()), strict=True):
        expected = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), do_sample=False,
                                  max_new_tokens=12, eos_token_id=None, pad_token_id=0)  # fmt: skip
        assert list(generation.ids) == expected[0, len(ids) :].tolist()
        assert generation.stop == "length"
        assert_exact(model, ids, generation)


def test_logprobs_are_exact_over_turns_rollbacks_and_scores(model: Any) -> None:
    first, shown, other = prompts(2, (14, 6, 9))

    async def rollout(engine: LocalEngine, name: str, prompt: list[int]) -> None:
        hot = SamplingParams(temperature=1.3, top_p=0.9, max_tokens=8, seed=7)
        one = await engine.generate(name, prompt, hot)
        assert_exact(model, prompt, one)
        failed = [*prompt, *one.ids, *shown]
        assert_exact(model, failed, await engine.generate(name, failed, hot))
        retried = [*prompt, *one.ids[:3], *shown]  # a rollback to within what was generated
        assert_exact(model, retried, await engine.generate(name, retried, hot))
        spliced = [*prompt, *one.ids[:3], *other]  # the rollback: what followed one.ids[:3] never happened
        scores = await engine.score(name, spliced, len(prompt) + 3)
        assert scores == pytest.approx(plain(model, spliced, len(prompt) + 3), abs=1e-4)
        assert_exact(model, spliced, await engine.generate(name, spliced, hot))
        assert_exact(model, prompt, await engine.generate(name, prompt, hot))  # all of it is cached
        await engine.release(name)

    async def main() -> LocalEngine:
        engine = LocalEngine(model, max_len=MAX_LEN)
        await asyncio.gather(*(rollout(engine, f"r{i}", first[: 14 - i]) for i in range(4)))
        return engine

    stats = run(main()).stats
    ids = 14 + 13 + 12 + 11
    assert stats.scored == 4 * len(other)
    assert stats.copied == 0
    # Reused: in the second turn the prompt and all but the last id; then what the rollback leaves, of
    # which a score feeds one id again; then all but the last id, whose logits are needed; and so for the last turn.
    assert stats.reused == (ids + 4 * 7) + (ids + 4 * 3) + (ids + 4 * 2) + (ids + 4 * (3 + 9 - 1)) + (ids - 4)


def test_rows_at_the_very_end_of_the_cache(model: Any) -> None:
    full, *batch = prompts(13, (MAX_LEN, 5, 6, 7, 8, 9))

    async def main() -> None:
        engine = LocalEngine(model, max_len=MAX_LEN)
        # One row of six ends at max_len and stays in the batch while the others go on.
        first, *others = await asyncio.gather(
            engine.generate("full", full[:62], SamplingParams(max_tokens=5)),
            *(engine.generate(str(i), ids, GREEDY) for i, ids in enumerate(batch)),
        )
        assert_exact(model, full[:62], first)
        for ids, generation in zip(batch, others, strict=True):
            assert_exact(model, ids, generation)
        # A row that lacks two ids to max_len is padded to another's three.
        scores = await asyncio.gather(
            engine.score("full", full, 63),
            *(engine.score(str(i), [*ids, 3, 4, 5], len(ids) + 1) for i, ids in enumerate(batch)),
        )
        for ids, start, score in zip(
            [full, *([*ids, 3, 4, 5] for ids in batch)], [63, *(len(ids) + 1 for ids in batch)], scores, strict=True
        ):
            assert score == pytest.approx(plain(model, ids, start), abs=1e-4)

    run(main())


def test_what_is_fed_in_many_pieces_comes_out_as_in_one(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long texts are."""
    monkeypatch.setattr("retcon.engine.local.forward.CHUNK_IDS", 7)
    monkeypatch.setattr("retcon.engine.local.scheduler.FORWARD_IDS", 20)
    scored, asked, short = prompts(15, (40, 33, 5))

    async def main() -> list[Any]:
        engine = LocalEngine(model, max_len=MAX_LEN)
        return await asyncio.gather(
            engine.score("whole", scored, 1),
            engine.score("part", scored, 18),
            engine.generate("long", asked, GREEDY),
            engine.generate("short", short, GREEDY),
        )

    whole, part, long, brief = run(main())
    assert whole == pytest.approx(plain(model, scored, 1), abs=1e-4)
    assert part == pytest.approx(plain(model, scored, 18), abs=1e-4)
    assert_exact(model, asked, long)
    assert_exact(model, short, brief)


def test_a_score_that_is_set_back_begins_anew(qwen3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retcon.engine.local.forward.CHUNK_IDS", 4)
    (ids,) = prompts(16, (40,))

    async def main() -> Sequence[float]:
        engine = LocalEngine(qwen3, max_len=MAX_LEN)
        scoring = asyncio.create_task(engine.score("a", ids, 1))
        while engine.stats.scored < 8:
            await asyncio.sleep(0)
        assert not scoring.done()
        async with engine.suspended():
            pass
        return await scoring

    assert run(main()) == pytest.approx(plain(qwen3, ids, 1), abs=1e-4)


def test_an_equal_prompt_is_computed_once(model: Any) -> None:
    (shared, single) = prompts(4, (15, 11))
    batch = [shared, single, shared, shared]

    async def main() -> tuple[LocalEngine, list[Generation]]:
        engine = LocalEngine(model, max_len=MAX_LEN)
        calls = (engine.generate(str(i), ids, SamplingParams(max_tokens=6, seed=i)) for i, ids in enumerate(batch))
        return engine, await asyncio.gather(*calls)

    engine, generations = run(main())
    assert (engine.stats.prefilled, engine.stats.copied) == (15 + 11, 2 * 15)
    assert len({g.ids for g in generations}) == 4
    for ids, generation in zip(batch, generations, strict=True):
        assert_exact(model, ids, generation)


TRUNCATIONS = (
    SamplingParams(temperature=2, top_p=0.5),
    SamplingParams(temperature=1.5, top_k=7),
    SamplingParams(temperature=3, min_p=0.2),
    SamplingParams(temperature=2.5, top_p=0.8, top_k=40, min_p=0.02),
)


@pytest.mark.parametrize("params", TRUNCATIONS, ids=repr)
def test_only_ids_that_the_parameters_keep_are_sampled(qwen3: Any, params: SamplingParams) -> None:
    (ids,) = prompts(6, (8,))

    async def main() -> list[Generation]:
        engine = LocalEngine(qwen3, max_len=MAX_LEN, max_requests=400)
        calls = (engine.generate(str(s), ids, replace(params, max_tokens=1, seed=s)) for s in range(400))
        return await asyncio.gather(*calls)

    logits = plain_logits(qwen3, ids)[-1]
    kept = kept_ids(logits, params)
    probability = {g.ids[0]: math.exp((g.sampling_logprobs or ())[0]) for g in run(main())}
    assert len(probability) > 1
    assert set(probability) <= set(kept)
    # Together with the few that 400 draws left out, they sum to one.
    assert sum(probability.values()) == pytest.approx(
        1 - sum(p for i, p in zip(kept, distribution(logits, params), strict=True) if i not in probability), abs=1e-4
    )


@pytest.mark.parametrize("params", [*TRUNCATIONS, SamplingParams(), GREEDY], ids=repr)
def test_sampling_logprobs_are_of_what_was_sampled_from(model: Any, params: SamplingParams) -> None:
    (ids,) = prompts(14, (11,))
    generation = run(LocalEngine(model, max_len=MAX_LEN).generate("a", ids, replace(params, max_tokens=20, seed=4)))
    logits = plain_logits(model, [*ids, *generation.ids])[len(ids) - 1 : -1]
    if params.temperature == 0:
        assert generation.sampling_logprobs == (0.0,) * 20
        return
    expected = [
        math.log(distribution(row, params)[kept_ids(row, params).index(token)])
        for row, token in zip(logits, generation.ids, strict=True)
    ]
    assert generation.sampling_logprobs == pytest.approx(expected, abs=1e-4)
    assert (generation.sampling_logprobs == generation.logprobs) == (params == SamplingParams())


def distribution(logits: torch.Tensor, params: SamplingParams) -> list[float]:
    """Probabilities of the ids that are kept of one row (V,), in the order of `kept_ids`."""
    return (logits[kept_ids(logits, params)].double() / params.temperature).softmax(0).tolist()
