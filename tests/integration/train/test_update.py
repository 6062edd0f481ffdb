"""The update on a real model: what accumulates, what is skipped, and what is refused."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Qwen3Config, Qwen3ForCausalLM

from retcon.core.errors import TrainingDiverged, UnscoredTokens
from retcon.core.types import Sample, Segment, Trajectory, Turn
from retcon.models.devices import Computing
from retcon.train.algorithms.dapo import Dapo
from retcon.train.algorithms.grpo import Grpo
from retcon.train.batch import collate, minibatches
from retcon.train.kernels.logprobs import token_logprobs
from retcon.train.objective import old_logprobs as reference
from retcon.train.objective.shaping import rewards_of
from retcon.train.optim import adamw, step_optimizer
from retcon.train.update import minibatch_update, to_samples, update

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


@pytest.mark.parametrize("algorithm", [Dapo, Grpo])
def test_micro_batches_equal_one_batch(model, algorithm):
    samples = [sample(n, a, learnt=k, first=n) for n, a, k in ((9, 1.0, 4), (14, -0.5, 7), (20, 2.0, 2), (11, -1.0, 5))]
    config = algorithm(max_grad_norm=1e9, lr=0.1)
    whole, metrics = moved(model, samples, config, computing=Computing(micro_batch_tokens=1000))
    parts, of_parts = moved(model, samples, config, computing=Computing(micro_batch_tokens=20))
    assert_moved_alike(whole, parts)
    assert metrics | {"padding": 0} == pytest.approx(of_parts | {"padding": 0}, rel=1e-4)


@pytest.mark.parametrize("algorithm", [Dapo, Grpo])
def test_what_is_added_to_the_loss_is_that_of_all_micro_batches(model, algorithm):
    torch.manual_seed(1)
    other = Qwen3ForCausalLM(model.config).eval()
    samples = [sample(n, a, spliced=2, first=n) for n, a in ((9, 1.0), (14, -0.5), (20, 2.0))]
    samples = [replace(one, predicted=(0, 1, 1, *[0] * (len(one.ids) - 3))) for one in samples]
    samples = reference.with_reference(other, samples, Computing())
    config = algorithm(max_grad_norm=1e9, lr=0.1, imitate_spliced=0.5, kl=0.1, entropy_coefficient=0.1, echo=0.3)
    whole, metrics = moved(model, samples, config, computing=Computing(micro_batch_tokens=1000))
    parts, of_parts = moved(model, samples, config, computing=Computing(micro_batch_tokens=20))
    assert_moved_alike(whole, parts)
    for figure in ("loss", "imitation", "kl_reference", "entropy", "echo"):
        assert of_parts[figure] == pytest.approx(metrics[figure], rel=1e-4)
        assert metrics[figure]


def test_echo_is_the_mean_cross_entropy_of_outputs_beside_an_unchanged_policy_loss(model):
    plain = [sample(9, 1.0), sample(13, 0.0, first=3)]
    outputs = [(0, 1, 1, 0, 0, 0, 0, 0, 0), (0, 0, 0, 1, *[0] * 9)]
    echoing = [replace(one, predicted=marks) for one, marks in zip(plain, outputs, strict=True)]
    logits = [model(torch.tensor([one.ids])).logits[0, :-1].log_softmax(-1) for one in plain]
    surprise = -(logits[0][0, plain[0].ids[1]] + logits[0][1, plain[0].ids[2]] + logits[1][2, plain[1].ids[3]]) / 3
    _, before = moved(model, plain)
    _, found = moved(model, echoing, Dapo(max_grad_norm=1e9, lr=0.1, echo=0.25))
    assert found["echo"] == pytest.approx(surprise.item(), rel=1e-5)
    assert found["loss"] == pytest.approx(before["loss"] + 0.25 * surprise.item(), rel=1e-5)


def test_without_an_advantage_a_sample_only_counts_in_the_mean(model):
    alone, _ = moved(model, [sample(9, 1.0)])
    with_flat, _ = moved(model, [sample(9, 1.0), sample(12, 0.0)])
    assert_moved_alike(alone, {k: 2 * v for k, v in with_flat.items()})


def test_the_figures_of_log_probs_are_of_what_was_computed(model):
    alone, with_flat = (moved(model, samples)[1] for samples in ([sample(9, 1.0)], [sample(9, 1.0), sample(12, 0.0)]))
    assert with_flat["loss"] == pytest.approx(alone["loss"] / 2)
    for figure in ("kl", "entropy_estimate"):
        assert alone[figure] > 0
        assert with_flat[figure] == pytest.approx(alone[figure], rel=1e-4)
    batch = collate([sample(9, 1.0)], pad_id=0)
    with torch.no_grad():
        found = token_logprobs(model, batch.ids, batch.mask)[batch.mask]
    assert alone["entropy_estimate"] == pytest.approx(-found.mean().item(), rel=1e-4)


def test_dropout_tells_no_log_prob_apart():
    torch.manual_seed(0)
    sizes = {"vocab_size": 31, "n_positions": 64, "n_embd": 32, "n_layer": 1, "n_head": 1}
    dropping = GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.5, embd_pdrop=0.5)).train()
    one, other = (moved(dropping, [sample(9, 1.0)])[1]["loss"] for _ in range(2))
    assert one == other


def dealt(model, **draw):
    """The first weights after an update in two minibatches."""
    samples = [sample(n, a, first=n) for n, a in ((9, 1.0), (14, -0.5), (20, 2.0), (11, -1.0))]
    trained = copy.deepcopy(model)
    config = Dapo(max_grad_norm=1e9, lr=0.1, minibatches=2)
    update(trained, torch.optim.SGD(trained.parameters()), samples, config, **draw)
    return next(trained.parameters()).detach()


@pytest.mark.filterwarnings("ignore::retcon.core.errors.ComputeWarning")  # log-probs are made up
def test_minibatches_are_dealt_by_seed_and_step(model):
    first = dealt(model, seed=0, step=1)
    assert torch.equal(first, dealt(model, seed=0, step=1))
    assert not all(torch.equal(first, dealt(model, seed=seed, step=1)) for seed in range(1, 5))
    assert not all(torch.equal(first, dealt(model, seed=0, step=step)) for step in range(2, 6))


@pytest.mark.filterwarnings("ignore::retcon.core.errors.ComputeWarning")  # log-probs are made up
def test_the_figures_of_an_update_are_the_means_over_its_minibatches(model):
    samples = [sample(n, a, first=n) for n, a in ((9, 1.0), (14, -0.5), (20, 2.0), (11, -1.0))]
    still = Dapo(max_grad_norm=1e9, lr=1e-12, minibatches=2)
    trained = copy.deepcopy(model)
    whole = update(trained, torch.optim.SGD(trained.parameters()), samples, still, seed=0, step=1)
    parts = [moved(model, part, still)[1] for part in minibatches(samples, 2, seed=0, step=1)]
    for figure in ("loss", "kl", "entropy_estimate", "grad_norm"):
        assert whole[figure] == pytest.approx(sum(part[figure] for part in parts) / 2, rel=1e-5)


def test_where_nothing_has_an_advantage_nothing_moves(model):
    trained = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(trained.parameters())
    minibatch_update(trained, optimizer, [sample(9, 1.0)], CONFIG)
    before = copy.deepcopy(trained.state_dict())
    assert minibatch_update(trained, optimizer, [sample(9, 0.0)], CONFIG)["grad_norm"] == 0.0
    assert all(torch.equal(v, before[k]) for k, v in trained.state_dict().items())


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


def test_a_minibatch_that_is_skipped_leaves_no_gradient_to_the_next(model):
    trained = copy.deepcopy(model)
    far = replace(sample(9, -1.0), logprobs=(None,) * 5 + (-9.0,) * 4)
    metrics = minibatch_update(
        trained, torch.optim.SGD(trained.parameters()), [far], CONFIG.model_copy(update={"max_kl": 1e-3})
    )
    assert (metrics["skipped"], metrics["grad_norm"]) == (1.0, 0.0)
    assert not any(p.grad is not None and p.grad.any() for p in trained.parameters())


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


def test_matrices_decay_and_norms_and_biases_do_not() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    model[0].bias.requires_grad_(False)
    optimizer = adamw(model, 0.1, weight_decay=0.5, betas=(0.8, 0.9))
    decaying, others = optimizer.param_groups
    assert [p is model[0].weight for p in decaying["params"]] == [True]
    assert [id(p) for p in others["params"]] == [id(model[1].weight), id(model[1].bias)]
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.5, 0.0)
    assert {(group["lr"], group["betas"]) for group in optimizer.param_groups} == {(0.1, (0.8, 0.9))}


def test_a_step_has_its_own_rate_cuts_the_gradient_and_drops_it() -> None:
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=7.0)
    before = model.weight.item()
    model.weight.grad = torch.full_like(model.weight, 4.0)
    assert step_optimizer(model, optimizer, lr=0.5, max_grad_norm=2.0) == pytest.approx(4.0)
    assert before - model.weight.item() == pytest.approx(0.5 * 2.0, rel=1e-4)
    assert model.weight.grad is None
