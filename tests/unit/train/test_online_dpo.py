"""Online masked DPO: the adjustment on numbers worked out by hand and against autograd, and where it is put."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from playing import call, play
from retcon.config.load import load_recipe
from retcon.config.schema import RLSection
from retcon.core.errors import UnscoredTokens
from retcon.core.types import Branch as Left
from retcon.core.types import RepairRecord, Sample, Segment, ToolCall, Trajectory, Turn, to_sample
from retcon.purify.kinds.branch import Branch
from retcon.purify.pairs import preference_pairs
from retcon.purify.saar import Saar
from retcon.train.batch import check_scored, collate
from retcon.train.objective.contrast import dpo_adjustments, dpo_metrics, with_online_dpo
from retcon.train.objective.loss import clip_terms, token_ratio
from retcon.train.update import to_samples

BAD, GOOD, OTHER, DONE = "print(6 * valu)", "print(6 * value)", "import math\nx = math.factorial(3)", "It is 42."
WORSE = "print(6 * vlue)"
FAILS = {BAD: "error", WORSE: "error"}
NO_LIMIT = 1e9

logprobs = st.lists(st.floats(-5, 0), min_size=1, max_size=8)


def rl(*overrides: str) -> RLSection:
    return load_recipe(None, list(overrides)).rl


def dpo_loss(chosen: torch.Tensor, rejected: torch.Tensor, beta: float) -> torch.Tensor:
    return -torch.nn.functional.logsigmoid(beta * (chosen.mean() - rejected.mean()))


def test_equally_likely_calls_are_adjusted_by_half_of_beta_over_their_length():
    assert dpo_adjustments([-1.0, -3.0], [-2.0], beta=1.0, limit=9.0) == (0.25, 0.5)  # σ(0) = 1/2


def test_the_likelier_the_rejected_call_the_more_is_adjusted():
    up, down = dpo_adjustments([-2.0] * 4, [-1.0, -1.0], beta=math.log(3), limit=9.0)  # σ(log 3) = 3/4
    assert (up, down) == pytest.approx((math.log(3) * 3 / 16, math.log(3) * 3 / 8))
    up, down = dpo_adjustments([-1.0, -1.0], [-2.0] * 4, beta=math.log(3), limit=9.0)  # σ(-log 3) = 1/4
    assert (up, down) == pytest.approx((math.log(3) / 8, math.log(3) / 16))


def test_the_limit_holds_for_each_side_by_itself():
    assert dpo_adjustments([-1.0, -3.0], [-2.0], beta=1.0, limit=0.3) == (0.25, 0.3)
    assert dpo_adjustments([-1.0, -3.0], [-2.0], beta=15.0, limit=0.1) == (0.1, 0.1)


def test_a_margin_beyond_what_exp_can_hold_is_no_error():
    assert dpo_adjustments([-1.0], [-1001.0], beta=15.0, limit=9.0) == (0.0, 0.0)
    assert dpo_adjustments([-1001.0], [-1.0], beta=15.0, limit=99.0) == (15.0, 15.0)


@given(logprobs, logprobs, st.floats(0.01, 20))
def test_adjustments_are_minus_the_gradient_of_the_dpo_loss(chosen, rejected, beta):
    right, wrong = (torch.tensor(one, dtype=torch.float64, requires_grad=True) for one in (chosen, rejected))
    dpo_loss(right, wrong, beta).backward()
    up, down = dpo_adjustments(chosen, rejected, beta=beta, limit=NO_LIMIT)
    assert right.grad.tolist() == pytest.approx([-up] * len(chosen), abs=1e-12)
    assert wrong.grad.tolist() == pytest.approx([down] * len(rejected), abs=1e-12)


def test_what_the_policy_loss_adds_is_the_gradient_of_the_dpo_loss():
    """Through samples, batch and clip: the sum over tokens with the pair less the sum without it."""
    p = play([call("1"), call(BAD, "So. "), call(GOOD, "Oops. "), DONE], FAILS, repair=Saar())
    config = rl("rl.dpo_beta=2.5", f"rl.dpo_limit={NO_LIMIT}")
    batch = collate(to_samples([p.trajectory], [0.7], config))
    now = batch.old_logprobs.double().requires_grad_()
    ratio = token_ratio((now - batch.old_logprobs).masked_fill(~batch.mask, 0.0))
    clip_terms(ratio, batch.advantages.double(), low=0.2, high=0.28).value.masked_fill(
        ~batch.mask, 0.0
    ).sum().backward()

    (pair,) = preference_pairs(p.trajectory)
    wanted = batch.old_logprobs.double().requires_grad_()
    sides = []
    for row, completion in zip(wanted, (pair.chosen, pair.rejected), strict=True):
        start = len(pair.prompt_ids)
        sides.append(row[start : start + len(completion.ids)][torch.tensor(completion.mask, dtype=torch.bool)])
    (dpo_loss(*sides, 2.5) - 0.7 * wanted[0][batch.mask[0]].sum()).backward()
    assert torch.allclose(now.grad, wanted.grad, atol=1e-6)
    assert now.grad[1].any()


def test_only_the_tokens_of_the_call_are_adjusted():
    p = play([call("1"), call(BAD, "So. "), call(GOOD, "Oops. "), DONE], FAILS, repair=Saar())
    sample = own(p.trajectory, 0.5)
    adjusted, rejected = with_online_dpo(p.trajectory, sample, beta=1.0, limit=0.001)
    (pair,) = preference_pairs(p.trajectory)
    start = len(pair.prompt_ids)
    assert adjusted == replace(sample, advantages=adjusted.advantages)
    risen = [a > 0.5 for a in adjusted.advantages]
    assert risen == padded(start, pair.chosen.mask, len(sample.ids))
    assert {*adjusted.advantages} == {0.5, 0.501}
    assert {*rejected.advantages} == {-0.001}
    called = [p for p, m in zip(sample.logprobs, risen, strict=True) if m]
    failed = [p for p, m in zip(rejected.logprobs, rejected.mask, strict=True) if m]
    assert rejected.margin == pytest.approx(sum(called) / len(called) - sum(failed) / len(failed))
    assert adjusted.margin is None
    assert sum(pair.chosen.mask) < len(pair.chosen.mask), "the reasoning before the call is left alone"


def test_the_rejected_call_follows_the_clean_history():
    tries = [call(BAD, "a. "), call(GOOD, "b. "), call(WORSE, "c. "), call(OTHER, "d. "), DONE]
    p = play(tries, FAILS, repair=Saar())
    _, *rejected = with_online_dpo(p.trajectory, own(p.trajectory), beta=1.0, limit=0.1)
    for sample, pair, n in zip(rejected, preference_pairs(p.trajectory), (0, 2), strict=True):
        assert sample.ids == pair.prompt_ids + pair.rejected.ids
        assert pair.prompt_ids == p.engine.seen[n][1] if n == 0 else BAD not in pair.prompt
        assert sample.mask == (0,) * len(pair.prompt_ids) + pair.rejected.mask
        failure = next(turn for turn in p.turns if turn.text == pair.chosen.written).abandoned[0]
        assert sample.logprobs[len(pair.prompt_ids) :] == failure.segments[0].logprobs
        assert sample.source == "t/0/0"
        check_scored(sample)


def test_the_first_failure_alone_is_rejected():
    p = play([call(BAD), call(WORSE), call(GOOD), DONE], FAILS, repair=Saar())
    _, rejected = with_online_dpo(p.trajectory, own(p.trajectory), beta=1.0, limit=0.1)
    written = [i for s in p.turns[0].abandoned[0].generated for i in s.ids]
    assert list(rejected.ids[-len(written) :]) == written


@pytest.mark.parametrize("repair", [Saar(gamma=1.0), Branch(fresh=1)])
def test_deep_repairs_and_fresh_tries_are_pairs_too(repair):
    p = play([call(BAD), call(OTHER, "Then. "), DONE], FAILS, repair=repair)
    assert p.turns[0].repair.decision in ("deep", "resampled")
    assert len(with_online_dpo(p.trajectory, own(p.trajectory), beta=1.0, limit=0.1)) == 2


@pytest.mark.parametrize(
    ("replies", "repair"),
    [([BAD, DONE], None), ([BAD, WORSE, DONE], Saar(attempts=1)), ([BAD, WORSE, DONE], Saar()), ([GOOD, DONE], Saar())],
)
def test_without_a_repair_nothing_changes(replies, repair):
    p = play([call(one) if one != DONE else one for one in replies], FAILS, repair=repair)
    assert with_online_dpo(p.trajectory, own(p.trajectory), beta=1.0, limit=0.1) == [own(p.trajectory)]


def test_beta_0_is_off_and_rollouts_come_before_what_they_rejected():
    p = play([call(BAD), call(GOOD), DONE], FAILS, repair=Saar())
    raw = play([call(BAD), DONE], FAILS).trajectory
    group = [p.trajectory, raw]
    assert to_samples(group, [1.0, -1.0], rl()) == [own(p.trajectory, 1.0), own(raw, -1.0)]
    first, second, rejected = to_samples(group, [1.0, -1.0], rl("rl.dpo_beta=15"))
    assert max(first.advantages) == pytest.approx(1.1)
    assert second == own(raw, -1.0)
    assert {*rejected.advantages} == {-0.1}
    assert len(to_samples(group, [1.0, -1.0], rl("rl.dpo_beta=15", "rl.contrast=1", "rl.contrast_rollouts=all"))) == 5


def test_what_is_masked_stays_masked_and_is_preferred_to_nothing():
    p = play([call(BAD), call(GOOD), DONE], FAILS, repair=Saar())
    cut_off = replace(p.trajectory, stop="length")
    (sample,) = to_samples([cut_off], [1.0], rl("rl.dpo_beta=15", "rl.truncated=mask"))
    assert not any(sample.mask)
    assert {*sample.advantages} == {1.0}


def turn_with(start: int | None, *scores: float) -> Turn:
    """Three ids of which the call begins at `start`, in place of two."""
    calls = (ToolCall("0", "p", {}, char=0, start=0),)
    failure = Turn((Segment("sampled", "ab", (2, 3), scores or None),), calls)
    return Turn(
        (Segment("spliced", "cde", (4, 5, 6), (-1.0, -1.0, -1.0)),), (replace(calls[0], start=start),),
        abandoned=(failure,), repair=RepairRecord("deep", 1),
    )  # fmt: skip


def test_turns_that_a_branch_shares_are_pairs_of_the_rollout_that_sampled_them():
    turn = turn_with(1, -1.0, -1.0)
    trajectory = Trajectory("t", "task", (Segment("prompt", "?", (1,)),), (turn, turn))
    branched = replace(trajectory, branch=Left("s", "s", turns=1, tokens=4, uncertainty=0.0, rise=0.0))
    counts = [len(with_online_dpo(t, own(t), beta=1.0, limit=0.1)) for t in (trajectory, branched)]
    assert counts == [3, 2]
    adjusted, _ = with_online_dpo(branched, own(branched), beta=1.0, limit=0.1)
    assert adjusted.advantages == (0.0,) * 5 + (0.1, 0.1)


def test_a_call_that_begins_within_a_token_gives_no_pair():
    trajectory = Trajectory("t", "task", (Segment("prompt", "?", (1,)),), (turn_with(None, -1.0, -1.0),))
    assert with_online_dpo(trajectory, own(trajectory), beta=1.0, limit=0.1) == [own(trajectory)]


def test_a_failed_call_without_log_probs_is_refused_by_name():
    trajectory = Trajectory("t", "task", (Segment("prompt", "?", (1,)),), (turn_with(1),))
    with pytest.raises(UnscoredTokens, match=r"trajectory t: 2 tokens.*rl\.dpo_beta"):
        with_online_dpo(trajectory, own(trajectory), beta=1.0, limit=0.1)
    with pytest.raises(ValueError, match="trajectory t: its sample has no advantages"):
        with_online_dpo(trajectory, to_sample(trajectory), beta=1.0, limit=0.1)


def own(trajectory: Trajectory, advantage: float = 0.0) -> Sample:
    """The sample of a rollout, as it is where nothing is adjusted."""
    sample = to_sample(trajectory)
    return replace(sample, advantages=(advantage,) * len(sample.ids))


def padded(start: int, mask: tuple[int, ...], length: int) -> list[bool]:
    return [bool(m) for m in ((0,) * start + mask + (0,) * length)[:length]]


def test_pairs_are_counted_with_the_loss_that_their_margins_have() -> None:
    none = Sample((1,), (0,), (None,), (0,))
    pairs = [none, *(replace(none, margin=margin) for margin in (math.log(3), -math.log(3), 0.0, 2000.0, -2000.0))]
    assert dpo_metrics([none]) == {"dpo_pairs": 0, "dpo_loss": None, "dpo_margin": None, "dpo_accuracy": None}
    found = dpo_metrics(pairs)
    assert (found["dpo_pairs"], found["dpo_margin"], found["dpo_accuracy"]) == (5, 0.0, 0.4)
    assert found["dpo_loss"] == pytest.approx((math.log(4 / 3) + math.log(4) + math.log(2) + 0 + 2000) / 5)
