"""The policy loss against cases worked out by hand, and its gradient against what the clip should let through."""

import math

import pytest
import torch

from retcon.config.schema import RLSection
from retcon.train.algorithms.aepo import Aepo
from retcon.train.algorithms.cispo import Cispo
from retcon.train.algorithms.dapo import Dapo
from retcon.train.algorithms.grpo import Grpo
from retcon.train.batch import Batch
from retcon.train.objective.credit import entropy_weights
from retcon.train.objective.loss import Totals, batch_loss, clip_terms, imitation_loss, negative_spliced

pytestmark = pytest.mark.torch
CLIP = (0.2, 0.28)


def surrogate(new, old, advantages, mask, *, clip, aggregate="token", totals=None, masked=None, weights=None):
    batch = Batch(mask.long(), mask, mask, old, advantages, weights)
    return batch_loss(new, batch, totals or Totals.of(mask), clip=clip, aggregate=aggregate, masked=masked)


def loss_of(ratios, advantages, mask=None, **kwargs):
    """The loss where π/π_old are `ratios`, (B, T), and the gradient of its value with respect to log π."""
    ratios = torch.tensor(ratios)
    old = torch.full_like(ratios, -1.0)
    new = (old + ratios.log()).requires_grad_()
    mask = torch.ones_like(ratios, dtype=torch.bool) if mask is None else torch.tensor(mask, dtype=torch.bool)
    found = surrogate(new, old, torch.tensor(advantages), mask, **{"clip": CLIP, **kwargs})
    (gradient,) = torch.autograd.grad(found.value, new)
    return found, gradient


@pytest.mark.parametrize(
    ("ratio", "advantage", "term", "cut"),
    [
        (1.0, 2.0, -2.0, False),
        (1.5, 2.0, -1.28 * 2, True),  # pushed up far enough
        (0.5, 2.0, -0.5 * 2, False),  # below the range, but wanted: the clip must not act
        (1.5, -2.0, 1.5 * 2, False),  # above the range, and unwanted: nor here
        (0.5, -2.0, 0.8 * 2, True),  # pushed down far enough
        (1.27, 2.0, -1.27 * 2, False),  # DAPO's clip is higher above than below
        (0.79, -2.0, 0.8 * 2, True),
    ],
)
def test_clip_on_each_side_for_each_sign(ratio, advantage, term, cut):
    found, gradient = loss_of([[ratio]], [[advantage]])
    assert found.value.item() == pytest.approx(term, rel=1e-5)
    assert found.clipped.item() == float(cut)
    # d(ρ Â)/d log π = ρ Â, and nothing where the clip cut it off
    assert gradient.item() == pytest.approx(0.0 if cut else -ratio * advantage, rel=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "term", "gradient"),
    [
        (1.1, 2.0, -1.1 * 2, -1.1 * 2),  # within the range: as PPO
        (1.5, 2.0, -1.28 * 2, -1.28 * 2),  # pushed up far enough: PPO's value, but not without a gradient
        (1.5, 0.5, -1.28 / 2, -1.28 / 2),
        (0.5, 2.0, -0.5 * 2, -0.5 * 2),
        (1.5, -2.0, 1.5 * 2, 1.5 * 2),
        (0.5, -2.0, 0.8 * 2, 0.0),  # pushed down far enough
        (4.0, -2.0, 3.0 * 2, 0.0),  # the dual clip, c = 3
    ],
)
def test_aepo_keeps_the_gradient_of_what_its_clip_would_cut_off_above(ratio, advantage, term, gradient):
    """F of the paper: 1 + ε_high above it with Â > 0, 0 below 1 - ε_low with Â < 0, else the ratio."""
    config = Aepo(clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    mask = torch.ones(1, 1, dtype=torch.bool)
    old = torch.full((1, 1), -1.0)
    new = (old + math.log(ratio)).requires_grad_()
    found = config.loss(new, Batch(mask.long(), mask, mask, old, torch.tensor([[advantage]]), None), Totals.of(mask))
    assert found.value.item() == pytest.approx(term, rel=1e-5)
    (of_new,) = torch.autograd.grad(found.value, new)
    assert of_new.item() == pytest.approx(gradient, rel=1e-5)
    assert found.clipped.item() == float(gradient == 0)


@pytest.mark.parametrize(
    ("ratio", "weight", "cut"), [(0.5, 0.8, 1.0), (0.9, 0.9, 0.0), (1.2, 1.2, 0.0), (1.5, 1.28, 1.0)]
)
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_cispo_weighs_by_a_ratio_that_is_clipped_on_both_sides_and_has_no_gradient(ratio, weight, cut, advantage):
    mask = torch.ones(1, 1, dtype=torch.bool)
    old = torch.full((1, 1), -1.0)
    new = (old + math.log(ratio)).requires_grad_()
    batch = Batch(mask.long(), mask, mask, old, torch.tensor([[advantage]]), None)
    found = Cispo(clip_low=0.2, clip_high=0.28).loss(new, batch, Totals.of(mask))
    (gradient,) = torch.autograd.grad(found.value, new)
    assert gradient.item() == pytest.approx(-weight * advantage)
    assert found.clipped.item() == cut


def test_aepo_weighs_a_token_by_how_far_its_entropy_is_above_the_mean():
    """Of 0, 1, 2 the mean is 1 and the deviation 1: 1 - .2, 1, 1 + .2."""
    assert entropy_weights([0.0, 1.0, 2.0], 0.2) == pytest.approx([0.8, 1.0, 1.2])
    assert entropy_weights([0.0, 2.0], 0.2) == pytest.approx([1 - 0.2 / 2**0.5, 1 + 0.2 / 2**0.5])
    assert entropy_weights([3.0, 3.0], 0.2) == [1.0, 1.0]
    assert entropy_weights([3.0], 0.2) == [1.0]
    assert min(entropy_weights([0.0, 1.0, 2.0], 5.0)) == 0.0, "no token is unlearnt for being sure"


def test_no_advantage_no_loss_and_no_gradient():
    found, gradient = loss_of([[1.5, 0.5]], [[0.0, 0.0]])
    assert found.value.item() == 0.0
    assert found.clipped.item() == 0.0
    assert not gradient.any()
    assert not clip_terms(torch.tensor([[4.0]]), torch.zeros(1, 1), low=0.2, high=0.28, dual=3.0).cut.any()


@pytest.mark.parametrize(("ratio", "advantage"), [(1.5, 1.0), (0.5, -1.0), (3.0, -1.0)])
def test_a_ratio_at_a_bound_is_not_cut(ratio, advantage):
    """Bounds that a float holds exactly."""
    found = clip_terms(torch.tensor([[ratio]]), torch.tensor([[advantage]]), low=0.5, high=0.5, dual=3.0)
    assert found.value.item() == -ratio * advantage
    assert not found.cut.any()


@pytest.mark.parametrize("algorithm", [Dapo, Aepo])
def test_tokens_that_the_dual_clip_bounds_are_counted(algorithm) -> None:
    """Of ratios 1, 4, 4, 4, 4: not that of a right token, one outside the loss mask, or one that is left out."""
    advantages = torch.tensor([[-1.0, 1.0, -1.0, -1.0, -1.0]])
    mask = torch.tensor([[True, True, True, False, True]])
    old = torch.full((1, 5), -2.0)
    new = old + torch.tensor([[1.0, 4.0, 4.0, 4.0, 4.0]]).log()
    batch = Batch(mask.long(), mask, mask, old, advantages, None)
    left_out = torch.tensor([[False, False, False, False, True]])
    counts = [
        algorithm(dual_clip=c).loss(new, batch, Totals.of(mask), masked=masked).counts
        for c, masked in ((3.0, None), (3.0, left_out), (5.0, None), (0.0, None))
    ]
    assert counts == [{"dual_clip_tokens": 2}, {"dual_clip_tokens": 1}, {"dual_clip_tokens": 0}, {}]


ROWS = [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
ADVANTAGES = [[3.0, 3.0, 3.0], [-1.0, -1.0, -1.0]]
MASK = [[1, 0, 0], [1, 1, 1]]


def test_token_mean_weighs_ids_alike():
    found, gradient = loss_of(ROWS, ADVANTAGES, MASK)
    assert found.value.item() == pytest.approx((-3 + 1 + 1 + 1) / 4)
    assert gradient.tolist() == [pytest.approx([-3 / 4, 0, 0]), pytest.approx([1 / 4] * 3)]


def test_sequence_mean_weighs_sequences_alike():
    found, gradient = loss_of(ROWS, ADVANTAGES, MASK, aggregate="sequence")
    assert found.value.item() == pytest.approx((-3 + 1) / 2)
    assert gradient.tolist() == [pytest.approx([-3 / 2, 0, 0]), pytest.approx([1 / 6] * 3)]
    assert loss_of(ROWS[:1], ADVANTAGES[:1], MASK[:1], aggregate="sequence")[0].value.item() == pytest.approx(-3)


def test_masked_ids_count_for_nothing_whatever_they_hold():
    found, gradient = loss_of([[1.0, math.inf]], [[1.0, 1.0]], [[1, 0]])
    assert found.value.item() == pytest.approx(-1.0)
    assert found.kl.item() == pytest.approx(0.0)
    assert found.entropy_estimate.item() == pytest.approx(1.0)
    assert gradient[0, 1].item() == 0.0


def test_kl_and_surprise():
    found, _ = loss_of([[1.0, 2.0]], [[1.0, 1.0]])
    assert found.kl.item() == pytest.approx((0 + (2 - 1 - math.log(2))) / 2, rel=1e-5)
    assert found.entropy_estimate.item() == pytest.approx((1 + 1 - math.log(2)) / 2, rel=1e-5)


@pytest.mark.parametrize("aggregate", ["token", "sequence"])
def test_parts_of_a_minibatch_add_up(aggregate):
    ratios, advantages = [[1.1, 0.7, 1.4], [0.9, 1.2, 0.5]], [[2.0] * 3, [-1.0] * 3]
    whole, gradient = loss_of(ratios, advantages, MASK, aggregate=aggregate)
    totals = Totals(tokens=4, sequences=2)
    parts = [
        loss_of(ratios[i : i + 1], advantages[i : i + 1], MASK[i : i + 1], aggregate=aggregate, totals=totals)
        for i in range(2)
    ]
    for name in ("value", "clipped", "kl", "entropy_estimate"):
        assert sum(getattr(p, name).item() for p, _ in parts) == pytest.approx(getattr(whole, name).item())
    assert torch.cat([g for _, g in parts]).numpy() == pytest.approx(gradient.numpy(), abs=1e-6)


@pytest.mark.parametrize("aggregate", ["token", "sequence"])
def test_muting_takes_negative_spliced_ids_out_and_leaves_the_others_their_weight(aggregate):
    advantages = [[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]]
    spliced = torch.tensor([[False, True, False], [False, True, False]])
    masked = negative_spliced(torch.tensor(advantages), spliced)
    assert not negative_spliced(torch.zeros(2, 3), spliced).any()
    assert masked.tolist() == [[False] * 3, [False, True, False]]
    _, plain = loss_of(ROWS, advantages, aggregate=aggregate)
    found, gradient = loss_of(ROWS, advantages, aggregate=aggregate, masked=masked)
    assert found.value.item() == pytest.approx((-3 + 2) / 6)
    assert gradient.numpy() == pytest.approx(plain.masked_fill(masked, 0.0).numpy(), abs=1e-6)


def test_weights_multiply_terms_and_leave_the_denominators():
    ratios, advantages = [[1.0, 1.5, 0.9], [1.0, 0.5, 1.0]], [[2.0] * 3, [-1.0] * 3]
    weights = torch.tensor([[1.0, 0.5, 1.0], [1.0, 0.25, 2.0]])
    found, gradient = loss_of(ratios, advantages, weights=weights)
    # -(2 + .5 · 1.28 · 2 + 1.8) + (1 + .25 · .8 + 2 · 1), over six ids
    assert found.value.item() == pytest.approx((-5.08 + 3.2) / 6)
    # ρ Â w / 6, and nothing where the clip cut it off
    wanted = torch.tensor([[-2.0, 0.0, -1.8], [1.0, 0.0, 2.0]]) / 6
    assert gradient.numpy() == pytest.approx(wanted.numpy(), abs=1e-6)
    plain, _ = loss_of(ratios, advantages)
    assert (found.clipped, found.kl, found.entropy_estimate) == (plain.clipped, plain.kl, plain.entropy_estimate)


def test_weights_of_one_change_no_bit():
    ratios, advantages = [[1.1, 0.7, 1.4], [0.9, 1.2, 0.5]], [[2.0] * 3, [-1.0] * 3]
    (one, of_one), (none, of_none) = (loss_of(ratios, advantages, weights=w) for w in (torch.ones(2, 3), None))
    assert one.value.item() == none.value.item()
    assert torch.equal(of_one, of_none)


@pytest.mark.parametrize(("algorithm", "aggregate"), [(Dapo, "token"), (Grpo, "sequence")])
def test_an_algorithm_has_its_own_mean_its_clip_and_the_tokens_that_are_masked(algorithm, aggregate):
    torch.manual_seed(0)
    mask = torch.tensor([[True, True, True, True], [True, False, False, False]])
    logprobs, old = -torch.rand(2, 4), -torch.rand(2, 4)
    advantages = torch.tensor([[1.0, -1.0, 1.0, -1.0], [1.0, 1.0, 1.0, 1.0]])
    batch = Batch(mask.long(), mask, mask, old, advantages, None)
    masked = torch.tensor([[True, False, False, False], [False] * 4])
    config = algorithm(clip_low=0.05, clip_high=0.2)
    for muting in (None, masked):
        found = config.loss(logprobs, batch, Totals.of(mask), masked=muting)
        wanted = surrogate(logprobs, old, advantages, mask, clip=(0.05, 0.2), aggregate=aggregate, masked=muting)
        assert (found.value, found.clipped) == (wanted.value, wanted.clipped)


@pytest.mark.parametrize("algorithm", RLSection.kinds.names)
def test_no_algorithm_has_a_term_of_what_is_masked(algorithm):
    """Of tokens that are all alike, half leaves half."""
    mask, logprobs = torch.ones(2, 4, dtype=torch.bool), torch.full((2, 4), -1.0)
    batch = Batch(mask.long(), mask, mask, logprobs, torch.ones(2, 4), None)
    config = RLSection.kinds.find(algorithm)(**({"loss_tokens": 4} if algorithm == "dr_grpo" else {}))
    whole, half = (
        config.loss(logprobs, batch, Totals.of(mask), masked=m) for m in (None, torch.tensor([0, 1, 0, 1]) > 0)
    )
    assert half.value.item() == pytest.approx(whole.value.item() / 2) != 0


def test_totals_count_the_sequences_that_are_learnt_somewhere():
    mask = torch.tensor([[True, True, False], [False, False, False], [False, False, True]])
    assert Totals.of(mask) == Totals(tokens=3, sequences=2)


def test_imitation_is_a_cross_entropy_on_spliced_tokens_of_what_did_well():
    logprobs = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, -2.0, -3.0]], requires_grad=True)
    mask = torch.tensor([[True, True, True], [True, True, True]])
    spliced = torch.tensor([[False, True, True], [False, True, True]])
    advantages = torch.tensor([[0.5] * 3, [-0.5] * 3])
    terms = imitation_loss(logprobs, Batch(mask, mask, spliced, logprobs.detach() + 9.0, advantages, None))
    assert terms.tolist() == [[0.0, 1.0, 1.5], [0.0, 0.0, 0.0]]  # whatever the old log-probs: no ratio, no clip
    terms.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[0.0, -0.5, -0.5], [0.0, 0.0, 0.0]]


def test_imitation_is_weighed_like_other_terms():
    """By importance weights, say, of an engine in another dtype."""
    mask = torch.ones(1, 2, dtype=torch.bool)
    weights = torch.tensor([[0.5, 2.0]])
    batch = Batch(mask.long(), mask, mask, torch.zeros(1, 2), torch.ones(1, 2), weights)
    assert imitation_loss(torch.tensor([[-1.0, -3.0]]), batch).tolist() == [[0.5, 6.0]]
