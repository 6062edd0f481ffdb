"""The local engine on a GPU: what transformers says there, whatever is cached and whoever else decodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from engines import GREEDY, MAX_LEN, MODELS, WINDOW, assert_exact, make_model, plain, plain_logits, prompts, run
from retcon.engine.local.engine import LocalEngine
from retcon.engine.types import Generation, SamplingParams
from retcon.models.placing import move_model

pytestmark = pytest.mark.torch
HOT = SamplingParams(temperature=1.3, top_p=0.9, max_tokens=8, seed=7)


def moved(name: str, device: str, dtype: torch.dtype = torch.float32) -> Any:
    model = make_model(name).to(dtype)
    move_model(model, device)
    return model


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, device: str) -> Any:
    return moved(request.param, device)


@pytest.fixture(scope="module")
def qwen3(device: str) -> Any:
    return moved("qwen3", device)


def generated(model: Any, batch: Sequence[Sequence[int]], params: SamplingParams, **how: Any) -> list[Generation]:
    """All at once."""

    async def main() -> list[Generation]:
        engine = LocalEngine(model, max_len=WINDOW, **how)
        return await asyncio.gather(*(engine.generate(str(i), ids, params) for i, ids in enumerate(batch)))

    return run(main())


def test_it_decodes_with_the_lean_forward_where_it_knows_the_model_and_promises_no_bits(model: Any) -> None:
    engine = LocalEngine(model, max_len=MAX_LEN)
    assert engine.decoding.startswith("the fused forward") == (model.config.model_type != "gpt2")
    assert "replayed as CUDA graphs" in engine.decoding
    assert not engine.invariance.exact
    assert engine.invariance.drafted == 0


def test_greedy_equals_transformers_generate(model: Any) -> None:
    """Requests of many lengths, of which some outgrow their slots of 64 and of 128 ids."""
    batch = prompts(1, (3, 17, 9, 9, 30, 1, 12, 60, 64, 65, 120, 140))
    for ids, generation in zip(
        batch, generated(model, batch, SamplingParams(temperature=0, max_tokens=70)), strict=True
    ):
        given = torch.tensor([ids], device=model.device)
        expected = model.generate(given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=70,
                                  eos_token_id=None, pad_token_id=0)  # fmt: skip
        assert list(generation.ids) == expected[0, len(ids) :].tolist()
        assert_exact(model, ids, generation)


def test_logprobs_are_exact_over_turns_rollbacks_and_scores(model: Any) -> None:
    first, shown, other = prompts(2, (14, 6, 9))

    async def rollout(engine: LocalEngine, name: str, prompt: list[int]) -> None:
        one = await engine.generate(name, prompt, HOT)
        assert_exact(model, prompt, one)
        failed = [*prompt, *one.ids, *shown]
        assert_exact(model, failed, await engine.generate(name, failed, HOT))
        spliced = [*prompt, *one.ids[:3], *other]  # a rollback to within what was generated
        scores = await engine.score(name, spliced, len(prompt) + 3)
        assert scores == pytest.approx(plain(model, spliced, len(prompt) + 3), abs=1e-4)
        assert_exact(model, spliced, await engine.generate(name, spliced, HOT))
        assert_exact(model, prompt, await engine.generate(name, prompt, HOT))  # all of it is cached
        await engine.release(name)

    async def main() -> LocalEngine:
        engine = LocalEngine(model, max_len=MAX_LEN)
        await asyncio.gather(*(rollout(engine, f"r{i}", first[: 14 - i]) for i in range(4)))
        return engine

    assert run(main()).stats.reused > 0


def test_an_equal_prompt_is_computed_once(model: Any) -> None:
    shared, single = prompts(4, (15, 11))
    batch = [shared, single, shared, shared]

    async def main() -> tuple[LocalEngine, list[Generation]]:
        engine = LocalEngine(model, max_len=MAX_LEN)
        calls = (engine.generate(str(i), ids, SamplingParams(max_tokens=6, seed=i)) for i, ids in enumerate(batch))
        return engine, await asyncio.gather(*calls)

    engine, generations = run(main())
    assert (engine.stats.prefilled, engine.stats.copied) == (15 + 11, 2 * 15)
    for ids, generation in zip(batch, generations, strict=True):
        assert_exact(model, ids, generation)


def test_a_fork_goes_on_from_the_keys_and_values_of_another(model: Any) -> None:
    (prompt,) = prompts(5, (20,))

    async def main() -> tuple[Generation, Generation, int]:
        engine = LocalEngine(model, max_len=MAX_LEN)
        source = await engine.generate("source", prompt, HOT)
        engine.fork("branch", "source", len(prompt))
        before = engine.stats.prefilled
        branch = await engine.generate("branch", prompt, SamplingParams(max_tokens=6, seed=2))
        fed = engine.stats.prefilled - before
        return branch, await engine.generate("source", [*prompt, *source.ids], HOT), fed

    branch, more, fed = run(main())
    assert fed <= 1
    assert_exact(model, prompt, branch)
    assert len(more.ids) == HOT.max_tokens


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "drawn"])
def test_requests_that_give_way_to_others_lose_nothing(qwen3: Any, greedy: bool) -> None:
    """1 MiB holds 2,048 ids of this model; 40 requests grow to 4,320."""
    batch = prompts(4, [8] * 40)

    async def main() -> tuple[LocalEngine, list[Generation]]:
        engine = LocalEngine(qwen3, max_len=WINDOW, max_requests=40, kv_memory_mb=1)

        async def one(index: int) -> Generation:
            params = SamplingParams(temperature=0.0 if greedy else 1.0, max_tokens=100, seed=index)
            generation = await engine.generate(str(index), batch[index], params)
            await engine.release(str(index))
            return generation

        return engine, await asyncio.gather(*map(one, range(40)))

    engine, generations = run(main())
    assert engine.stats.preempted > 0
    assert engine.stats.kv_peak <= 2**20
    for ids, generation in zip(batch, generations, strict=True):
        assert len(generation.ids) == 100
        assert_exact(qwen3, ids, generation)


def test_entropies_are_those_of_the_models_own_distributions(qwen3: Any) -> None:
    (prompt,) = prompts(6, (12,))
    params = SamplingParams(temperature=0.7, top_k=5, max_tokens=8, seed=3, entropies=3)
    (found,) = generated(qwen3, [prompt], params)
    logits = plain_logits(qwen3, [*prompt, *found.ids[:2]])[-3:]
    wanted = torch.distributions.Categorical(logits=logits).entropy().tolist()
    assert found.entropies == pytest.approx(wanted, abs=1e-4)


def test_a_generation_goes_on_under_other_weights(device: str) -> None:
    model = moved("qwen3", device)
    old = moved("qwen3", device)
    batch = prompts(13, (12, 7))

    async def main() -> list[Generation]:
        engine = LocalEngine(model, max_len=MAX_LEN)
        engine.version = 3
        long = SamplingParams(temperature=0.0, max_tokens=24)
        tasks = [asyncio.create_task(engine.generate(str(i), ids, long)) for i, ids in enumerate(batch)]
        while engine.stats.steps < 9:
            await asyncio.sleep(0)
        async with engine.suspended():
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.5)
            engine.invalidate()
            engine.version = 4
        return await asyncio.gather(*tasks)

    for ids, generation in zip(batch, run(main()), strict=True):
        assert generation.versions is not None
        before, logprobs = generation.versions.count(3), generation.logprobs or ()
        assert 0 < before < 24
        assert_exact(old, ids, Generation(generation.ids[:before], logprobs[:before], "stop"))
        rest = Generation(generation.ids[before:], logprobs[before:], "stop")
        assert_exact(model, [*ids, *generation.ids[:before]], rest)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_half_precision_is_the_plain_forward_except_for_rounding(name: str, dtype: torch.dtype, device: str) -> None:
    """By as much as transformers' own forward in that dtype is off from float32, and not much more."""
    wide, narrow = moved(name, device), moved(name, device, dtype)
    batch = prompts(8, (3, 17, 40, 90, 9, 120))
    ours, theirs = [], []
    for ids, generation in zip(batch, generated(narrow, batch, SamplingParams(max_tokens=60, seed=3)), strict=True):
        whole = [*ids, *generation.ids]
        exact, rounded = (torch.tensor(plain(one, whole, len(ids))) for one in (wide, narrow))
        ours.append((torch.tensor(generation.logprobs) - exact).abs())
        theirs.append((rounded - exact).abs())
    mean, of_theirs = torch.cat(ours).mean(), torch.cat(theirs).mean()
    assert mean < 1.5 * of_theirs + 1e-3, f"{mean:.4f} nats a token, and {of_theirs:.4f} of transformers'"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_half_precision_scores_what_it_generated_alike(dtype: torch.dtype, device: str) -> None:
    model = moved("qwen3", device, dtype)
    (ids,) = prompts(9, (50,))

    async def main() -> tuple[Generation, Sequence[float]]:
        engine = LocalEngine(model, max_len=WINDOW)
        made = await engine.generate("a", ids, SamplingParams(max_tokens=80, seed=1))
        return made, await engine.score("b", [*ids, *made.ids], len(ids))

    made, scores = run(main())
    off = (torch.tensor(made.logprobs) - torch.tensor(scores)).abs().mean()
    assert off < (0.15 if dtype == torch.bfloat16 else 0.03)


def test_in_other_company_nearly_all_requests_get_the_same_ids(qwen3: Any) -> None:
    batch = prompts(10, range(5, 45))
    params = SamplingParams(max_tokens=20, seed=11)
    together = generated(qwen3, batch, params)
    apart = [one for start in range(0, 40, 8) for one in generated(qwen3, batch[start : start + 8], params)]
    assert sum(one.ids == other.ids for one, other in zip(together, apart, strict=True)) >= 38


def test_a_model_that_is_broken_says_so(device: str) -> None:
    from retcon.core.errors import EngineError

    model = moved("qwen3", device)
    with torch.no_grad():
        model.get_input_embeddings().weight[3] = float("nan")
    with pytest.raises(EngineError, match="nan"):
        run(LocalEngine(model, max_len=MAX_LEN).generate("a", [1, 2, 3], GREEDY))
