"""The local engine against transformers: the same ids and log-probs, whatever is cached and whoever else decodes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen3Config,
)

from retcon.core.errors import EngineError
from retcon.engine.local import LocalEngine
from retcon.engine.types import Generation, SamplingParams

pytestmark = pytest.mark.torch

T = TypeVar("T")
VOCAB, MAX_LEN = 97, 64
ROPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": MAX_LEN,
}
CONFIGS = {
    "qwen3": Qwen3Config(**ROPE, tie_word_embeddings=True),
    "llama": LlamaConfig(**ROPE),
    "gpt2": GPT2Config(vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4, n_positions=MAX_LEN),
}
GREEDY = SamplingParams(temperature=0, max_tokens=12)


def make_model(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name])
    with torch.no_grad():
        # Weights as initialised give nearly uniform logits; larger ones give each context its own distribution.
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4)
    return model.eval()


@pytest.fixture(scope="module", params=list(CONFIGS))
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return make_model(request.param)


@pytest.fixture(scope="module")
def qwen3() -> PreTrainedModel:
    return make_model("qwen3")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; a stall is a failure and no hanging test session."""
    return asyncio.run(asyncio.wait_for(work, timeout=60))


def prompts(seed: int, lengths: Sequence[int]) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(VOCAB) for _ in range(n)] for n in lengths]


@torch.no_grad()
def plain(model: PreTrainedModel, ids: Sequence[int], start: int) -> list[float]:
    """Log-probs of ids[start:] from one forward without cache, padding or engine."""
    logits = model(torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
    return logits.gather(1, torch.tensor(ids[1:])[:, None])[start - 1 :, 0].tolist()


def assert_exact(model: PreTrainedModel, ids: Sequence[int], generation: Generation) -> None:
    expected = plain(model, [*ids, *generation.ids], len(ids))
    assert generation.logprobs == pytest.approx(expected, abs=1e-4)


def test_greedy_equals_transformers_generate(model: PreTrainedModel) -> None:
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


def test_logprobs_are_exact_over_turns_rollbacks_and_scores(model: PreTrainedModel) -> None:
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


def test_rows_at_the_very_end_of_the_cache(model: PreTrainedModel) -> None:
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


def test_score_of_a_first_call_and_of_nothing(model: PreTrainedModel) -> None:
    (ids,) = prompts(3, (20,))

    async def main() -> tuple[Sequence[float], Sequence[float], Sequence[float]]:
        engine = LocalEngine(model, max_len=20)
        return await engine.score("a", ids, 1), await engine.score("a", ids, 15), await engine.score("a", ids, 20)

    whole, part, none = run(main())
    assert whole == pytest.approx(plain(model, ids, 1), abs=1e-4)
    assert part == pytest.approx(plain(model, ids, 15), abs=1e-4)
    assert list(none) == []


def test_an_equal_prompt_is_computed_once(model: PreTrainedModel) -> None:
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


def test_a_seed_gives_the_same_ids_in_any_company(model: PreTrainedModel) -> None:
    ids, *others = prompts(5, (10, 25, 3, 18))
    params = SamplingParams(top_p=0.95, max_tokens=15, seed=11)

    async def main(company: list[list[int]]) -> Generation:
        engine = LocalEngine(model, max_len=MAX_LEN)
        # Some of the company is greedy, some ends early: the batch is mixed, and shrinks.
        mixed = [SamplingParams(temperature=i % 2, max_tokens=2 + 3 * i, seed=i) for i in range(len(company))]
        calls = [engine.generate(f"a{i}", other, p) for i, (other, p) in enumerate(zip(company, mixed, strict=True))]
        return (await asyncio.gather(*calls, engine.generate("b", ids, params)))[-1]

    alone, together = run(main([])), run(main(others))
    assert alone.ids == together.ids
    assert alone.logprobs == pytest.approx(together.logprobs, abs=1e-4)


def test_only_the_nucleus_is_sampled(qwen3: PreTrainedModel) -> None:
    (ids,) = prompts(6, (8,))

    async def main() -> list[Generation]:
        engine = LocalEngine(qwen3, max_len=MAX_LEN, max_requests=200)
        params = [SamplingParams(temperature=2, top_p=0.5, max_tokens=1, seed=s) for s in range(200)]
        return await asyncio.gather(*(engine.generate(str(p.seed), ids, p) for p in params))

    with torch.no_grad():
        probs, order = (qwen3(torch.tensor([ids])).logits[0, -1] / 2).softmax(-1).sort(descending=True)
    size = int((probs.cumsum(0) < 0.5).sum()) + 1
    drawn = {g.ids[0] for g in run(main())}
    assert drawn <= set(order[:size].tolist())
    assert len(drawn) > 1


def test_generation_ends_at_a_stop_id_at_max_tokens_and_at_max_len(qwen3: PreTrainedModel) -> None:
    (ids,) = prompts(7, (MAX_LEN - 20,))

    async def main() -> tuple[Generation, Generation, Generation]:
        engine = LocalEngine(qwen3, max_len=MAX_LEN)
        free = await engine.generate("a", ids, SamplingParams(max_tokens=500, seed=3))
        stops = SamplingParams(max_tokens=500, seed=3, stop_ids=(free.ids[4], free.ids[9]))
        return free, await engine.generate("a", ids, stops), await engine.generate("a", ids, GREEDY)

    free, stopped, short = run(main())
    assert (len(free.ids), free.stop) == (20, "length")
    end = min(free.ids.index(free.ids[4]), free.ids.index(free.ids[9])) + 1
    assert (stopped.ids, stopped.stop) == (free.ids[:end], "stop")
    assert len(short.ids) == 12


Schedule = dict[str, list[tuple[Generation, ...]]]


async def play(model: PreTrainedModel, tools: random.Random, max_requests: int, workers: int) -> Schedule:
    """Rollouts of differing turns whose tools take as many passes of the event loop as `tools` draws."""
    engine = LocalEngine(model, max_len=MAX_LEN, max_requests=max_requests)
    gate = asyncio.Semaphore(workers)
    done: Schedule = {}

    async def rollout(index: int) -> None:
        draw, name, generations = random.Random(index), f"{index:02}", []
        async with gate:
            ids = prompts(index // 3, (draw.randint(4, 9),))[0]
            for turn in range(draw.randint(1, 4)):
                params = SamplingParams(max_tokens=draw.randint(1, 9), seed=100 * index + turn)
                generations.append(await engine.generate(name, ids, params))
                for _ in range(tools.choice((0, 0, 1, 5, 40))):
                    await asyncio.sleep(0)
                ids = [*ids, *generations[-1].ids, draw.randrange(VOCAB)]
            await engine.release(name)
        done[name] = [tuple(generations)]

    await asyncio.gather(*(rollout(index) for index in range(10)))
    return done


@pytest.mark.parametrize(("max_requests", "workers"), [(10, 10), (4, 10), (10, 3)])
def test_results_do_not_depend_on_how_long_tools_take(qwen3: PreTrainedModel, max_requests: int, workers: int) -> None:
    first, *others = [run(play(qwen3, random.Random(seed), max_requests, workers)) for seed in range(4)]
    for other in others:
        assert other == first  # bit for bit


def test_a_request_that_cannot_be_served_fails_alone(qwen3: PreTrainedModel) -> None:
    good, long = prompts(8, (10, MAX_LEN))

    async def main() -> list[Any]:
        engine = LocalEngine(qwen3, max_len=MAX_LEN)
        calls = [
            engine.generate("good", good, GREEDY),
            engine.generate("long", long, GREEDY),
            engine.score("longer", [*long, 1], 3),
            engine.generate("empty", [], GREEDY),
            engine.generate("foreign", [1, VOCAB], GREEDY),
            engine.generate("hot", good, SamplingParams(temperature=-1)),
            engine.score("start", good, 0),
            engine.generate("good", good, GREEDY),
        ]
        return await asyncio.gather(*calls, return_exceptions=True)

    generation, *errors = run(main())
    assert_exact(qwen3, good, generation)
    assert all(isinstance(e, EngineError) for e in errors)
    for error, words in zip(
        errors,
        (
            "64 ids leave no room",
            "65 ids are more than max_len 64",
            "no ids",
            "vocabulary of 97",
            "temperature",
            "start 0",
            "already waits",
        ),
        strict=True,
    ):
        assert words in str(error)


def test_a_cancelled_caller_holds_up_nobody(qwen3: PreTrainedModel) -> None:
    batch = prompts(9, (10, 6, 13))

    async def main() -> None:
        engine = LocalEngine(qwen3, max_len=MAX_LEN)
        long = SamplingParams(max_tokens=30, seed=1)
        tasks = [asyncio.create_task(engine.generate(str(i), ids, long)) for i, ids in enumerate(batch)]
        while engine.stats.steps < 5:
            await asyncio.sleep(0)
        tasks[1].cancel()
        queued = asyncio.create_task(engine.generate("queued", batch[1], long))
        await asyncio.sleep(0)
        queued.cancel()
        one, three = await tasks[0], await tasks[2]
        assert tasks[1].cancelled()
        # The next phase needs the two others alone, and the request that was cancelled may come back.
        again = await asyncio.gather(
            engine.generate("0", [*batch[0], *one.ids, 5], GREEDY),
            engine.generate("2", [*batch[2], *three.ids, 5], GREEDY),
        )
        assert_exact(qwen3, [*batch[0], *one.ids, 5], again[0])
        assert_exact(qwen3, [*batch[2], *three.ids, 5], again[1])

    run(main())


def test_a_release_lets_the_others_go_on_and_the_queue_move_up(qwen3: PreTrainedModel) -> None:
    batch = prompts(10, (5, 6, 7))

    async def main() -> None:
        engine = LocalEngine(qwen3, max_len=MAX_LEN, max_requests=2)
        tasks = [asyncio.create_task(engine.generate(f"r{i}", ids, GREEDY)) for i, ids in enumerate(batch)]
        await asyncio.gather(*tasks[:2])
        again = asyncio.create_task(engine.generate("r1", batch[1], GREEDY))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not tasks[2].done()  # two slots, both taken
        assert not again.done()  # r0 is open and does not wait
        await engine.release("r0")
        await engine.release("never seen")
        assert_exact(qwen3, batch[1], await again)
        assert_exact(qwen3, batch[2], await tasks[2])

    run(main())


def test_the_queue_moves_up_in_the_order_of_ids(qwen3: PreTrainedModel) -> None:
    answered: list[str] = []

    async def main() -> None:
        engine = LocalEngine(qwen3, max_len=MAX_LEN, max_requests=1)

        async def rollout(name: str) -> None:
            await engine.generate(name, [1, 2], SamplingParams(max_tokens=1))
            answered.append(name)
            await engine.release(name)

        await asyncio.gather(*map(rollout, "bdac"))

    run(main())
    assert answered == ["a", "b", "c", "d"]


def test_new_weights_need_an_invalidate() -> None:
    model = make_model("qwen3")
    (ids,) = prompts(11, (12,))

    async def main() -> None:
        engine = LocalEngine(model, max_len=MAX_LEN)
        await engine.generate("a", ids, GREEDY)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        engine.invalidate()
        assert_exact(model, ids, await engine.generate("a", ids, GREEDY))
        assert engine.stats.reused == 0

    run(main())


def test_the_models_mode_is_restored_and_unused() -> None:
    model = make_model("gpt2").train()  # with dropout, were it not for the engine
    model.transformer.h[0].eval()
    (ids,) = prompts(12, (12,))

    async def main() -> Generation:
        return await LocalEngine(model, max_len=MAX_LEN).generate("a", ids, GREEDY)

    generation = run(main())
    assert model.training
    assert not model.transformer.h[0].training
    assert_exact(model.eval(), ids, generation)


def test_broken_weights_are_an_error_not_a_generation() -> None:
    model = make_model("qwen3")
    with torch.no_grad():
        model.get_input_embeddings().weight[3] = float("nan")

    async def main() -> None:
        engine = LocalEngine(model, max_len=MAX_LEN)
        with pytest.raises(EngineError, match="nan"):
            await engine.generate("a", [1, 2, 3], SamplingParams(max_tokens=1))

    run(main())


def test_a_fault_in_the_model_reaches_every_caller() -> None:
    model = make_model("qwen3")
    model.lm_head = torch.nn.Linear(7, VOCAB)  # of the wrong width

    async def main() -> list[Any]:
        engine = LocalEngine(model, max_len=MAX_LEN)
        return await asyncio.gather(*(engine.generate(n, [1, 2], GREEDY) for n in "abc"), return_exceptions=True)

    for error in run(main()):
        assert isinstance(error, EngineError)
        assert "RuntimeError" in str(error)


def test_closing_ends_what_waits(qwen3: PreTrainedModel) -> None:
    async def main() -> None:
        async with LocalEngine(qwen3, max_len=MAX_LEN) as engine:
            task = asyncio.create_task(engine.generate("a", [1, 2], GREEDY))
            await asyncio.sleep(0)
        with pytest.raises(EngineError, match="closed"):
            await task
        with pytest.raises(EngineError, match="closed"):
            await engine.generate("a", [1, 2], GREEDY)

    run(main())


def test_an_engine_outlives_its_event_loop(qwen3: PreTrainedModel) -> None:
    engine = LocalEngine(qwen3, max_len=MAX_LEN)
    for _ in range(2):  # "a" is never released: the first loop's request must not hold up the second loop's
        for name in "ab":
            assert_exact(qwen3, [4, 5, 6], run(engine.generate(name, [4, 5, 6], GREEDY)))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (MambaConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1), "recurrent"),
        (MistralConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
                       intermediate_size=8, sliding_window=16), "sliding window of 16"),
        (GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=1, n_positions=32), "32 positions"),
    ],
)  # fmt: skip
def test_a_model_that_the_cache_cannot_hold_is_refused(config: Any, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        LocalEngine(AutoModelForCausalLM.from_config(config), max_len=MAX_LEN)
