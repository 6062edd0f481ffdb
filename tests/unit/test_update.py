"""The update on a real model: what accumulates, what is skipped, and what is refused."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from retcon.config.schema import Recipe
from retcon.core.errors import TrainingDiverged, UnscoredTokens
from retcon.core.types import RepairRecord, Sample, Segment, ToolCall, Trajectory, Turn
from retcon.train.algorithms.dapo import Dapo
from retcon.train.batch import collate
from retcon.train.kernels.computing import Computing
from retcon.train.kernels.logprobs import token_logprobs
from retcon.train.update import minibatch_update, rewards_of, to_samples, update

pytestmark = pytest.mark.torch
CONFIG = Dapo(max_grad_norm=1e9, lr=0.1)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=31, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=1,
            num_key_value_heads=1, head_dim=32, max_position_embeddings=64, tie_word_embeddings=True,
        )
    ).eval()  # fmt: skip


def sample(length, advantage, learnt=4, spliced=0, first=1):
    ids = tuple((first + 7 * i) % 31 for i in range(length))
    mask = (0,) * (length - learnt) + (1,) * learnt
    kinds = (0,) * (length - spliced) + (1,) * spliced
    return Sample(ids, mask, tuple(-3.4 if m else None for m in mask), kinds, (advantage,) * length)


def moved(model, samples, config=CONFIG, **kwargs):
    """What one step of plain gradient descent adds to each weight, and the step's metrics."""
    trained = copy.deepcopy(model)
    metrics = minibatch_update(trained, torch.optim.SGD(trained.parameters()), samples, config, **kwargs)
    before = model.state_dict()
    return {k: v - before[k] for k, v in trained.state_dict().items()}, metrics


def assert_moved_alike(one, other):
    assert any(v.abs().max() > 1e-4 for v in one.values())
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=1e-6, rtol=1e-4)


def test_logprobs_equal_a_plain_forward_whatever_the_padding(model):
    samples = [sample(9, 1.0), sample(13, 1.0, first=3)]
    batch = collate(samples, pad_id=5)
    with torch.no_grad():
        found = token_logprobs(model, batch.ids, batch.mask)
        for row, one in enumerate(samples):
            ids = torch.tensor([one.ids])
            plain = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
            torch.testing.assert_close(found[row, 1 : len(one.ids)], plain * torch.tensor(one.mask[1:]))
    assert not found[~batch.mask].any()


@pytest.mark.parametrize("algorithm", ["dapo", "grpo"])
def test_micro_batches_equal_one_batch(model, algorithm):
    samples = [sample(n, a, learnt=k, first=n) for n, a, k in ((9, 1.0, 4), (14, -0.5, 7), (20, 2.0, 2), (11, -1.0, 5))]
    config = CONFIG.model_copy(update={"algorithm": algorithm})
    whole, metrics = moved(model, samples, config, computing=Computing(micro_batch_tokens=1000))
    parts, of_parts = moved(model, samples, config, computing=Computing(micro_batch_tokens=20))
    assert_moved_alike(whole, parts)
    assert metrics | {"padding": 0} == pytest.approx(of_parts | {"padding": 0}, rel=1e-4)


def test_without_an_advantage_a_sample_only_counts_in_the_mean(model):
    alone, _ = moved(model, [sample(9, 1.0)])
    with_flat, _ = moved(model, [sample(9, 1.0), sample(12, 0.0)])
    assert_moved_alike(alone, {k: 2 * v for k, v in with_flat.items()})


def test_where_nothing_has_an_advantage_nothing_moves(model):
    trained = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(trained.parameters())
    minibatch_update(trained, optimizer, [sample(9, 1.0)], CONFIG)
    before = copy.deepcopy(trained.state_dict())
    assert minibatch_update(trained, optimizer, [sample(9, 0.0)], CONFIG)["grad_norm"] == 0.0
    assert all(torch.equal(v, before[k]) for k, v in trained.state_dict().items())


def test_muted_spliced_ids_are_an_option(model):
    muting = CONFIG.model_copy(update={"mask_negative_spliced": True})
    wholly_spliced = [sample(9, -1.0, learnt=4, spliced=4)]
    assert moved(model, wholly_spliced)[1]["grad_norm"] > 0
    assert moved(model, wholly_spliced, muting)[1]["grad_norm"] == 0
    right = [sample(9, 1.0, learnt=4, spliced=4)]
    assert_moved_alike(moved(model, right)[0], moved(model, right, muting)[0])


def test_weights_of_a_sample_scale_its_gradient(model):
    half, none = replace(sample(9, 1.0), weights=(None,) * 5 + (0.5,) * 4), sample(9, 1.0)
    assert_moved_alike(moved(model, [none])[0], {k: 2 * v for k, v in moved(model, [half])[0].items()})
    ones = replace(none, weights=(None,) * 9)
    one, other = moved(model, [none])[0], moved(model, [ones])[0]
    assert all(torch.equal(one[k], other[k]) for k in one)


def test_unscored_ids_are_refused_before_anything_moves(model):
    good, bad = sample(9, 1.0), sample(9, 1.0)
    bad = Sample(bad.ids, bad.mask, (None,) * 9, bad.spliced, bad.advantages)
    trained = copy.deepcopy(model)
    optimizer = torch.optim.SGD(trained.parameters())
    with pytest.raises(UnscoredTokens):
        update(trained, optimizer, [good, bad], CONFIG, seed=0, step=1)
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in trained.state_dict().items())


def test_a_gradient_that_is_not_finite_is_refused_before_anything_moves(model):
    trained = copy.deepcopy(model)
    with pytest.raises(TrainingDiverged, match="nan"):
        minibatch_update(trained, torch.optim.SGD(trained.parameters()), [sample(9, float("nan"))], CONFIG)
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in trained.state_dict().items())


def trajectory(reward, logprobs=(-1.0,)):
    turn = Turn((Segment("sampled", "b", (2,), logprobs),))
    return Trajectory("t/0", "t", (Segment("prompt", "a", (1,)),), (turn,), reward=reward)


def test_a_group_becomes_samples_with_advantages():
    group = [trajectory(1.0), trajectory(-1.0)]
    samples = to_samples(group, CONFIG.advantages(rewards_of(group)), CONFIG)
    assert [s.advantages for s in samples] == [pytest.approx((0.5**0.5,) * 2), pytest.approx((-(0.5**0.5),) * 2)]
    assert [s.weights for s in samples] == [None, None]
    with pytest.raises(ValueError, match="no reward"):
        rewards_of([trajectory(1.0), trajectory(None)])
    with pytest.raises(UnscoredTokens):
        to_samples([trajectory(1.0), trajectory(-1.0, None)], [1.0, -1.0], CONFIG)


def test_spliced_ids_of_a_group_are_weighed_where_the_recipe_says_so():
    call = ToolCall("0", "python", {"code": "x"}, char=0, start=0)
    fix = Turn((Segment("sampled", "c", (3,), (-2.0,)),), (call,), stop="call")
    turn = Turn((Segment("spliced", "c", (3,), (-1.0,)),), (call,), abandoned=(fix,), repair=RepairRecord("deep", 1))
    group = [replace(trajectory(1.0), turns=(turn,)), trajectory(-1.0)]
    assert [s.weights for s in to_samples(group, [1.0, -1.0], CONFIG)] == [None, None]
    config = CONFIG.model_copy(update={"splice_weight": "truncated", "splice_weight_cap": 1.5})
    assert [s.weights for s in to_samples(group, [1.0, -1.0], config)] == [(None, 1.5), (None, None)]
    config = config.model_copy(update={"splice_weight_cap": 9.0})
    assert to_samples(group, [1.0, -1.0], config)[0].weights[1] == pytest.approx(math.e)


@pytest.mark.parametrize(
    ("config", "clipped"),
    [
        ({"algorithm": "grpo"}, (1.0, 1.0)),
        ({"algorithm": "dapo"}, (0.0, 1.0)),
        ({"algorithm": "grpo", "clip_high": 0.28}, (0.0, 1.0)),
        ({"algorithm": "dapo", "clip_high": 0.2}, (1.0, 1.0)),
        ({"algorithm": "dapo", "clip_low": 0.3}, (0.0, 0.0)),
    ],
)
def test_each_algorithm_has_a_clip_of_its_own(model, config, clipped):
    """Ratios of 1.24 with a positive and of .76 with a negative advantage: beyond ε = .2, and .28 above alone."""
    section = Recipe.model_validate({"rl": {"max_grad_norm": 1e9, "lr": 0.1, **config}}).rl
    for ratio, advantage, expected in ((1.24, 1.0, clipped[0]), (0.76, -1.0, clipped[1])):
        one = sample(9, advantage)
        batch = collate([one])
        with torch.no_grad():
            own = token_logprobs(model, batch.ids, batch.mask)[0].tolist()
        old = tuple(p - math.log(ratio) if m else None for p, m in zip(own, one.mask, strict=True))
        metrics = moved(model, [replace(one, logprobs=old)], section)[1]
        assert metrics["clip_fraction"] == expected
