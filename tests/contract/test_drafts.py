"""Several ids a forward: whatever is drafted, a request gets what it would have got without."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from engines import MAX_LEN, TOKENIZER, VOCAB, WINDOW, make_model, model_of, prompts, run
from retcon.engine.local import forward as invariance
from retcon.engine.local.engine import LocalEngine
from retcon.engine.local.forward import DRAFTED, Step, thin_drafts
from retcon.engine.local.requests import REMEMBERED, Drafts
from retcon.engine.local.scheduler import EngineStats
from retcon.engine.local.slabs import Place, Slab
from retcon.engine.types import Generation, SamplingParams

pytestmark = pytest.mark.torch

Propose = Callable[[Drafts, Sequence[int], int], list[int]]
HOT = SamplingParams(temperature=1.2, top_p=0.95, max_tokens=40)


def nothing(_: Drafts, __: Sequence[int], ___: int) -> list[int]:
    return []


def anything(seed: int) -> Propose:
    draw = random.Random(seed)
    return lambda _, __, most: [draw.randrange(VOCAB) for _ in range(draw.randint(0, most))]


def half_right(truth: dict[tuple[int, ...], list[int]], seed: int) -> Propose:
    """Drafts of what was really sampled after the last ids, cut and spoilt at random."""
    draw = random.Random(seed)

    def propose(_: Drafts, ids: Sequence[int], most: int) -> list[int]:
        draft = truth.get(tuple(ids[-6:]), [])[: draw.randint(0, most)]
        return [i if draw.random() < 0.8 else draw.randrange(VOCAB) for i in draft]

    return propose


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def model(request: pytest.FixtureRequest) -> Any:
    """Two heads of queries to one of keys."""
    found = model_of(request.param)
    if not LocalEngine(found, max_len=MAX_LEN).invariance.drafted:
        pytest.skip("on this CPU bits depend on drafts, so that there are none")
    return found


async def rollouts(engine: LocalEngine) -> list[list[Generation]]:
    """Eight of three turns each, the second after a rollback, with stop ids, limits and entropies of several kinds."""

    async def one(number: int, prompt: list[int]) -> list[Generation]:
        params = SamplingParams(
            temperature=(0.0, 0.7, 1.3)[number % 3],
            top_k=(0, 20)[number % 2],
            max_tokens=20 + 7 * number,
            stop_ids=tuple(range(number * 3)),
            seed=number,
            entropies=number % 4,
        )
        first = await engine.generate(str(number), prompt, params)
        rolled_back = [*prompt, *first.ids[: len(first.ids) // 2], *prompt[:3]]
        second = await engine.generate(str(number), rolled_back, params)
        third = await engine.generate(str(number), [*rolled_back, *second.ids, 5, 6], params)
        await engine.release(str(number))
        return [first, second, third]

    batch = prompts(3, (5, 9, 5, 17, 30, 2, 11, 44))
    return await asyncio.gather(*(one(n, prompt) for n, prompt in enumerate(batch)))


def told(model: Any, propose: Propose, monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[Generation]], EngineStats]:
    monkeypatch.setattr(Drafts, "propose", propose)
    engine = LocalEngine(model, max_len=WINDOW, max_requests=5)
    return run(rollouts(engine)), engine.stats


def test_no_draft_changes_a_bit(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, plain = told(model, nothing, monkeypatch)
    assert (plain.drafted, plain.accepted) == (0, 0)
    truth: dict[tuple[int, ...], list[int]] = {}
    for turns in expected:
        for turn in turns:
            for at in range(6, len(turn.ids)):
                truth[tuple(turn.ids[at - 6 : at])] = list(turn.ids[at : at + DRAFTED])
    for seed in range(3):
        assert told(model, anything(seed), monkeypatch)[0] == expected
        got, stats = told(model, half_right(truth, seed), monkeypatch)
        assert got == expected
        assert 0 < stats.accepted < stats.drafted
        assert stats.generated == plain.generated
        assert stats.steps < plain.steps


def test_what_was_generated_before_saves_forwards(model: Any) -> None:
    """The same requests once more: nearly all of it is drafted, and nothing else changes."""

    async def main() -> tuple[list[list[Generation]], list[list[Generation]], EngineStats, EngineStats]:
        engine = LocalEngine(model, max_len=WINDOW)
        first = await rollouts(engine)
        once = engine.stats.since(EngineStats())
        second = await rollouts(engine)
        return first, second, once, engine.stats.since(once)

    first, second, once, again = run(main())
    assert second == first
    assert again.accepted > 0.3 * again.generated
    assert again.accepted > 0.8 * again.drafted
    assert again.steps < 0.8 * once.steps


def test_drafts_end_where_the_engine_does(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """max_len is no multiple of what slots are padded to: a draft may not go on into the padding."""
    batch = prompts(6, (30, 44, 20))

    async def main() -> list[Generation]:
        engine = LocalEngine(model, max_len=45)
        return await asyncio.gather(*(engine.generate(str(n), ids, HOT) for n, ids in enumerate(batch)))

    monkeypatch.setattr(Drafts, "propose", nothing)
    expected = run(main())
    assert [len(one.ids) for one in expected] == [15, 1, 25]
    for seed in range(3):
        monkeypatch.setattr(Drafts, "propose", anything(seed))
        assert run(main()) == expected


def test_weights_that_change_keep_the_drafts_and_change_the_result() -> None:
    model, other = make_model("qwen3"), make_model("qwen3")
    with torch.no_grad():
        other.model.layers[0].mlp.down_proj.weight.mul_(1.5)
    prompt = prompts(5, (12,))[0]

    async def main() -> tuple[Generation, Generation, Generation]:
        engine = LocalEngine(model, max_len=WINDOW)
        before = await engine.generate("a", prompt, HOT)
        await engine.release("a")
        model.load_state_dict(other.state_dict())
        engine.invalidate()
        after = await engine.generate("b", prompt, HOT)
        return before, after, await LocalEngine(other, max_len=WINDOW).generate("c", prompt, HOT)

    before, after, fresh = run(main())
    assert before.ids != after.ids
    assert after == fresh


def test_stop_strings_end_within_a_draft(model: Any) -> None:
    prompt = prompts(8, (10,))[0]

    async def main() -> tuple[Generation, Generation]:
        engine = LocalEngine(model, max_len=WINDOW, tokenizer=TOKENIZER)
        whole = await engine.generate("a", prompt, HOT)
        text = TOKENIZER.decode(whole.ids[17:19])
        params = SamplingParams(temperature=1.2, top_p=0.95, max_tokens=40, stop=(text,))
        return whole, await engine.generate("b", prompt, params)

    whole, stopped = run(main())
    assert stopped.stop == "stop"
    assert stopped.ids == whole.ids[: len(stopped.ids)]
    assert len(stopped.ids) <= 19
    assert stopped.logprobs == whole.logprobs[: len(stopped.ids)]


def test_nothing_is_drafted_where_bits_were_not_tried_or_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    product, cpu = [(8, lambda x: x * 2)], torch.device("cpu")
    shapes = [(2, 2, 16, 16), (2, 4, 16, 16)]

    def drafted(answers: dict[int, int | None], dtype: torch.dtype = torch.float32, device: torch.device = cpu) -> int:
        monkeypatch.setattr(invariance, "least_queries", lambda _, groups, __, ___: answers[groups])
        return invariance.try_products(product, shapes, dtype, device).drafted

    assert drafted({2: 4, 4: 4}) == DRAFTED
    assert drafted({2: 4, 4: None}) == 0
    assert drafted({2: None, 4: 4}) == 0
    assert drafted({2: 4, 4: 8}) == 0
    assert drafted({2: 4, 4: 4}, torch.bfloat16) == 0
    assert drafted({2: 4, 4: 4}, device=torch.device("meta")) == 0


def test_a_mixture_of_experts_drafts_nothing() -> None:
    """How many rows an expert gets depends on the batch, which the trial at the start does not see."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, intermediate_size=32, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    engine = LocalEngine(Qwen3MoeForCausalLM(config).eval(), max_len=MAX_LEN)
    assert (engine.invariance.exact, engine.invariance.drafted) == (False, 0)


def test_a_slab_pays_for_drafts_only_where_enough_of_its_steps_have_one() -> None:
    one, other = (Slab(64, 8, {0: (1, 4, 4)}, torch.float32, torch.device("cpu")) for _ in range(2))
    steps = [Step(Place(one, n), (7, 8, 9) if n == 0 else (7,), 20) for n in range(5)]
    steps += [Step(Place(other, n), (7, 8) if n == 0 else (7,), 20) for n in range(4)]
    assert [len(step.ids) for step in thin_drafts(steps, 100)] == [1] * 5 + [2, 1, 1, 1]
    assert [len(step.ids) for step in thin_drafts(steps[5:], 5)] == [2, 1, 1, 1]
    assert [len(step.ids) for step in thin_drafts(steps[5:], 4)] == [1] * 4


def test_what_was_not_met_for_long_is_forgotten_and_what_was_is_not() -> None:
    drafts = Drafts()
    for _ in range(5):
        drafts.learn([1, 2, 3], [4])
        drafts.learn([5, 6, 7], [8])
    for number in range(2 * REMEMBERED):
        drafts.learn([100, 200, 1000 + number], [0])
        if number % 10_000 == 0:
            drafts.learn([5, 6, 7], [8])
    assert drafts.propose([1, 2, 3], 1) == []
    assert drafts.propose([5, 6, 7], 1) == [8]
    assert len(drafts._seen) <= REMEMBERED
