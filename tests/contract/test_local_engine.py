"""What only the local engine has: a model with a window and a mode, weights that change, an event loop, a queue."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, Phi3Config, Qwen2Config

from engines import GREEDY, MAX_LEN, VOCAB, assert_exact, make_model, model_of, plain_logits, prompts, run
from retcon.core.errors import ComputeWarning, EngineError
from retcon.engine.local.engine import LocalEngine
from retcon.engine.types import Generation, SamplingParams

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def qwen3() -> Any:
    return model_of("qwen3")


def test_a_request_that_cannot_be_served_fails_alone(qwen3: Any) -> None:
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
            "64 tokens leave no room",
            "65 tokens are more than max_len 64",
            "no tokens",
            f"vocabulary of {VOCAB}",
            "temperature",
            "start 0",
            "already waits",
        ),
        strict=True,
    ):
        assert words in str(error)


def test_a_cancelled_caller_blocks_no_other(qwen3: Any) -> None:
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


@pytest.mark.parametrize("how", ["cancelled", "released"])
def test_siblings_do_not_wait_for_one_that_is_gone(qwen3: Any, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first computes the prompt that the others begin with; where it does not come to an end, another one does."""
    monkeypatch.setattr("retcon.engine.local.forward.CHUNK_IDS", 4)
    monkeypatch.setattr("retcon.engine.local.scheduler.FORWARD_IDS", 4)
    (ids,) = prompts(10, (30,))

    async def main() -> tuple[LocalEngine, list[Generation]]:
        engine = LocalEngine(qwen3, max_len=MAX_LEN)
        first, *others = (asyncio.create_task(engine.generate(name, ids, GREEDY)) for name in "abc")
        while engine.stats.prefilled < 8:
            await asyncio.sleep(0)
        if how == "cancelled":
            first.cancel()
        else:
            await engine.release("a")
        made = await asyncio.wait_for(asyncio.gather(*others), 50)
        await asyncio.gather(first, return_exceptions=True)
        return engine, made

    engine, made = run(main())
    for generation in made:
        assert_exact(qwen3, ids, generation)
    assert engine.stats.copied == len(ids)


def test_weights_do_not_change_under_a_request(qwen3: Any) -> None:
    (ids,) = prompts(14, (9,))

    async def main() -> Generation:
        engine = LocalEngine(qwen3, max_len=MAX_LEN)
        task = asyncio.create_task(engine.generate("a", ids, SamplingParams(max_tokens=30, seed=2)))
        while engine.stats.steps < 3:
            await asyncio.sleep(0)
        with pytest.raises(EngineError, match="must not change while requests are being computed"):
            engine.invalidate()
        return await task

    assert_exact(qwen3, ids, run(main()))


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


def test_a_generation_goes_on_under_other_weights() -> None:
    """What was sampled stays; what follows is what the new weights say after it, from keys and values of their own."""
    model = make_model("qwen3")
    old = copy.deepcopy(model)
    batch = prompts(13, (12, 7))
    long = SamplingParams(temperature=0.0, max_tokens=24)

    async def main() -> None:
        engine = LocalEngine(model, max_len=MAX_LEN)
        engine.version = 3
        tasks = [asyncio.create_task(engine.generate(str(i), ids, long)) for i, ids in enumerate(batch)]
        while engine.stats.steps < 9:
            await asyncio.sleep(0)
        async with engine.suspended():
            scored = asyncio.create_task(engine.score("late", batch[0], 1))
            for _ in range(5):
                await asyncio.sleep(0)
            assert not scored.done(), "computed while it was suspended"
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.5)
            engine.invalidate()
            engine.version = 4
        for ids, generation in zip(batch, await asyncio.gather(*tasks), strict=True):
            assert len(generation.ids) == 24
            assert generation.versions is not None
            before = generation.versions.count(3)
            assert generation.versions == (3,) * before + (4,) * (24 - before)
            assert 0 < before < 24
            logprobs = generation.logprobs or ()
            assert_exact(old, ids, Generation(generation.ids[:before], logprobs[:before], "stop"))
            rest = Generation(generation.ids[before:], logprobs[before:], "stop")
            assert_exact(model, [*ids, *generation.ids[:before]], rest)
        assert engine.stats.carried == 2
        assert len(await scored) == len(batch[0]) - 1
        fresh = await engine.generate("new", batch[0], GREEDY)
        assert fresh.versions == (4,) * len(fresh.ids)

    run(main())


def test_a_fork_goes_on_from_the_keys_and_values_of_another(qwen3: Any) -> None:
    """Only the last token of what both begin with is computed again; the source goes on as it would have."""
    (prompt,) = prompts(5, (20,))
    two, other = SamplingParams(max_tokens=6, seed=1), SamplingParams(max_tokens=6, seed=2)

    async def main(forks: bool) -> tuple[Generation, Generation, int]:
        engine = LocalEngine(qwen3, max_len=MAX_LEN)
        first = await engine.generate("source", prompt, two)
        if forks:
            engine.fork("branch", "source", len(prompt))
        before = engine.stats.prefilled
        branch = await engine.generate("branch", prompt, other)
        fed = engine.stats.prefilled - before
        await engine.release("branch")
        await engine.generate("source", [*prompt, *first.ids], two)
        await engine.release("source")
        assert not any(slab.places for slab in engine._scheduler._memory.slabs)
        return first, branch, fed

    (first, branch, fed), (_, alone, _) = run(main(True)), run(main(False))
    assert fed <= 1
    assert branch.ids == alone.ids
    assert_exact(qwen3, prompt, branch)
    assert branch.ids != first.ids


def test_a_fork_of_nobody_computes_all_of_it(qwen3: Any) -> None:
    (prompt,) = prompts(5, (20,))

    async def main() -> Generation:
        engine = LocalEngine(qwen3, max_len=MAX_LEN)
        engine.fork("branch", "nobody", 20)
        found = await engine.generate("branch", prompt, GREEDY)
        engine.fork("branch", "branch", 20)
        return found

    assert_exact(qwen3, prompt, run(main()))


def test_entropies_are_those_of_the_models_own_distributions(qwen3: Any) -> None:
    (prompt,) = prompts(6, (12,))
    params = SamplingParams(temperature=0.7, top_k=5, max_tokens=8, seed=3, entropies=3)

    async def main() -> tuple[Generation, Generation]:
        engine = LocalEngine(qwen3, max_len=MAX_LEN)
        return await asyncio.gather(engine.generate("a", prompt, params), engine.generate("b", prompt, GREEDY))

    found, unasked = run(main())
    logits = plain_logits(qwen3, [*prompt, *found.ids[:2]])[-3:]
    wanted = torch.distributions.Categorical(logits=logits).entropy().tolist()
    assert found.entropies == pytest.approx(wanted, abs=1e-4)
    assert unasked.entropies is None


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


@pytest.mark.parametrize("how", ["cancelled", "released", "gives way", "scored", "cancelled in its prompt"])
def test_what_is_broken_in_one_request_reaches_no_other(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of nan leaves nan in its request's slot, which the next one there must not attend to."""
    model = make_model("qwen3")
    embedding = model.get_input_embeddings().weight
    model.lm_head.weight = torch.nn.Parameter(embedding.detach().clone())  # else no logits are sound
    with torch.no_grad():
        embedding[3] = float("nan")
    if how.endswith("prompt"):
        monkeypatch.setattr("retcon.engine.local.forward.CHUNK_IDS", 4)
        monkeypatch.setattr("retcon.engine.local.scheduler.FORWARD_IDS", 4)
    monkeypatch.setattr("retcon.engine.local.engine.GATHER_FORWARDS", 0.0)
    ids, healthy = [1, 2, 3] * 6, [5, 6, 7, 8]

    async def main() -> Generation:
        engine = LocalEngine(model, max_len=MAX_LEN)
        if how == "scored":
            with pytest.raises(EngineError, match="nan"):
                await engine.score("a", ids, 1)
            assert await engine.score("b", ids, len(ids)) == []
        else:
            broken = asyncio.create_task(engine.generate("a", ids, SamplingParams(temperature=0, max_tokens=40)))
            while not (engine.stats.prefilled >= 12 if how.endswith("prompt") else engine.stats.steps):
                await asyncio.sleep(0)
            if how == "gives way":
                async with engine.suspended():
                    pass
            elif how == "released":
                await engine.release("a")
            else:
                broken.cancel()
            await engine.release("a")
            await asyncio.gather(broken, return_exceptions=True)
        return await engine.generate("c", healthy, GREEDY)

    assert_exact(model, healthy, run(main()))


def test_a_fault_in_the_model_reaches_every_caller() -> None:
    model = make_model("gpt2")

    async def main() -> list[Any]:
        engine = LocalEngine(model, max_len=MAX_LEN)
        model.lm_head = torch.nn.Linear(7, VOCAB)  # of the wrong width
        return await asyncio.gather(*(engine.generate(n, [1, 2], GREEDY) for n in "abc"), return_exceptions=True)

    for error in run(main()):
        assert isinstance(error, EngineError)
        assert "RuntimeError" in str(error)


def test_closing_ends_what_waits(qwen3: Any) -> None:
    async def main() -> None:
        async with LocalEngine(qwen3, max_len=MAX_LEN) as engine:
            task = asyncio.create_task(engine.generate("a", [1, 2], GREEDY))
            await asyncio.sleep(0)
        with pytest.raises(EngineError, match="closed"):
            await task
        with pytest.raises(EngineError, match="closed"):
            await engine.generate("a", [1, 2], GREEDY)

    run(main())


def test_an_engine_outlives_its_event_loop(qwen3: Any) -> None:
    engine = LocalEngine(qwen3, max_len=MAX_LEN)
    for _ in range(2):  # "a" is never released: the first loop's request must not hold up the second loop's
        for name in "ab":
            assert_exact(qwen3, [4, 5, 6], run(engine.generate(name, [4, 5, 6], GREEDY)))


def test_more_tokens_than_a_model_has_positions_are_refused() -> None:
    config = GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=1, n_positions=32)
    with pytest.raises(EngineError, match=r"32 positions .*; lower max_len .*to 32"):
        LocalEngine(AutoModelForCausalLM.from_config(config), max_len=MAX_LEN)


def test_a_window_of_any_layer_counts_unless_it_holds_a_request() -> None:
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, use_sliding_window=True, sliding_window=16,
        layer_types=["full_attention", "sliding_attention"],
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    (ids,) = prompts(18, (10,))
    with pytest.warns(ComputeWarning, match="own forward: .*window of 16 tokens, less than max_len 60;"):
        engine = LocalEngine(model, max_len=60)
    assert_exact(model, ids, run(engine.generate("a", ids, replace(GREEDY, max_tokens=40))))
    assert_exact(model, ids, run(LocalEngine(model, max_len=16).generate("a", ids, GREEDY)))


def test_positions_that_a_longer_text_in_the_forward_rotates_otherwise_are_refused() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [3.0, 5.0, 2.0, 7.0],
            "original_max_position_embeddings": 16}  # fmt: skip
    config = Phi3Config(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, original_max_position_embeddings=16, rope_parameters=rope,
        pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(
        EngineError, match=r"more than 16 tokens \(longrope\), and max_len is 17; lower max_len .*to 16"
    ):
        LocalEngine(model, max_len=17)
    (ids,) = prompts(18, (10,))
    assert_exact(model, ids, run(LocalEngine(model, max_len=16).generate("a", ids, GREEDY)))
