"""The tries at a repaired turn as samples: on numbers worked out by hand, and on rollouts of the scripted engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from playing import call, play
from retcon.core.types import Branch as Left
from retcon.core.types import Observation, RepairRecord, Segment, ToolCall, Trajectory, Turn, history_ids, to_sample
from retcon.purify.kinds.branch import Branch
from retcon.purify.saar import Saar
from retcon.train.algorithms.dapo import Dapo
from retcon.train.batch import check_scored
from retcon.train.objective.contrast import contrast_samples
from retcon.train.update import to_samples

BAD, WORSE, GOOD, DONE = "print(6 * valu)", "print(6 * vlue)", "print(6 * value)", "It is 42."
FAILS = {BAD: "error", WORSE: "error"}


def test_a_failure_loses_what_its_fix_gains():
    p = play([call(BAD, "So. "), call(GOOD, "Oops. "), DONE], FAILS, repair=Saar())
    failed, fixed = contrast_samples(p.trajectory, 0.4)
    assert {*failed.advantages} == {-0.2}
    assert {*fixed.advantages} == {0.2}
    assert sum(fixed.spliced) > 0 == sum(failed.spliced)


def test_a_try_is_masked_except_for_what_was_written_and_follows_the_clean_history():
    p = play([call("1"), call(BAD, "So. "), call(GOOD, "Oops. "), DONE], FAILS, repair=Saar())
    whole, failure = to_sample(p.trajectory), p.turns[1].abandoned[0]
    before = sum(len(s.ids or ()) for s in (*p.trajectory.prompt, *p.turns[0].segments))
    failed, fixed = contrast_samples(p.trajectory, 1.0)
    written = [i for s in failure.generated for i in s.ids or ()]
    assert failed.ids == (*whole.ids[:before], *written)
    assert failed.mask == (0,) * before + (1,) * len(written)
    assert failed.logprobs[before:] == tuple(x for s in failure.generated for x in s.logprobs or ())
    assert fixed.ids == whole.ids[: len(fixed.ids)]
    assert fixed.logprobs[before:] == whole.logprobs[before : len(fixed.ids)]
    for sample in (failed, fixed):
        check_scored(sample)
        assert sample.source == p.trajectory.id


def test_fresh_tries_that_failed_share_the_blame_and_the_advantages_sum_to_0():
    p = play([call(BAD), call(WORSE), call(GOOD), DONE], FAILS, repair=Branch(fresh=2))
    samples = contrast_samples(p.trajectory, 0.9)
    assert [s.advantages[0] for s in samples] == pytest.approx([-0.3, -0.3, 0.6])
    assert [sum(s.spliced) for s in samples] == [0, 0, 0]


def test_a_fresh_try_without_a_call_says_nothing():
    p = play([call(BAD), DONE, call(GOOD), DONE], FAILS, repair=Branch(fresh=2))
    assert [s.advantages[0] for s in contrast_samples(p.trajectory, 1.0)] == [-0.5, 0.5]


def test_lookahead_attempts_that_were_shown_the_failure_are_no_tries():
    p = play([call(BAD), call(WORSE), call(GOOD), DONE], FAILS, repair=Saar())
    assert [s.advantages[0] for s in contrast_samples(p.trajectory, 1.0)] == [-0.5, 0.5]


@pytest.mark.parametrize("repair", [None, Saar(attempts=1), Branch(fresh=1, saar=Saar(attempts=0))])
def test_what_was_not_repaired_gives_none(repair):
    p = play([call(BAD), call(WORSE), DONE] if repair else [call(BAD), DONE], FAILS, repair=repair)
    assert p.trajectory.failures == 1
    assert contrast_samples(p.trajectory, 1.0) == []


@pytest.mark.parametrize("masked", ["truncated", "void_turns"])
def test_a_rollout_that_is_left_out_of_learning_gives_none(masked: str) -> None:
    p = play([call(BAD), call(GOOD), call("x" * 3000)], FAILS, repair=Saar())
    rollout = replace(p.trajectory, reward=1.0)
    assert rollout.stop == "length"
    for how, contrasted in (("keep", 2), ("mask", 0)):
        own, *tries = to_samples([rollout], [1.0], Dapo(contrast=0.5, **{masked: how}))
        assert (any(own.mask), len(tries)) == (how == "keep", contrasted)


def test_a_sample_ends_with_what_the_model_wrote_in_its_turn():
    wrong = (Observation("0", "o", "error"),)
    failure = Turn((Segment("sampled", "cc", (2, 3), (-1.0, -2.0)),), (ToolCall("0", "p", {}, char=0),), wrong)
    turn = Turn(
        (Segment("spliced", "d", (4,), (-3.0,)), Segment("observation", "o", (5,))), abandoned=(failure, failure),
        repair=RepairRecord("deep", 1),
    )  # fmt: skip
    trajectory = Trajectory("t", "task", (Segment("prompt", "?", (1,)),), (turn, turn))
    samples = contrast_samples(trajectory, 2.0)
    assert [s.ids for s in samples] == [(1, 2, 3), (1, 4), (1, 4, 5, 2, 3), (1, 4, 5, 4)]
    assert [s.advantages[-1] for s in samples] == [-1.0, 1.0, -1.0, 1.0]
    assert history_ids(replace(trajectory, turns=(turn,))) == (1, 4, 5)


@pytest.mark.parametrize("how", ["accept", "truncated"])
def test_a_splice_weighs_as_much_where_it_is_compared_as_in_its_rollout(how: str) -> None:
    p = play([call("1"), call(BAD, "So. "), call(GOOD, "Oops. "), DONE], FAILS, repair=Saar(gamma=0.9))
    rollout = replace(p.trajectory, reward=1.0)
    own, failed, fixed = to_samples([rollout], [1.0], Dapo(contrast=0.5, splice_weight=how))
    assert own.weights is not None
    assert fixed.weights == own.weights[: len(fixed.ids)]
    assert [weight is not None for weight in fixed.weights] == [bool(one) for one in fixed.spliced]
    assert failed.weights is None  # it was sampled where it is learnt


@pytest.mark.parametrize(
    ("learnt", "compared"),
    [("01", "0"), ("12", "1"), ("2", "2"), ("3", ""), ("13", "1")],
    ids=["parent and branch", "two branches", "a branch of a branch", "one that left before", "that one and a branch"],
)
def test_a_turn_that_several_share_is_compared_once_and_where_it_is_learnt(learnt: str, compared: str) -> None:
    """Whichever of them was not selected, is not right, or was cut off."""
    p = play([call("1"), call(BAD, "So. "), call(GOOD, "Oops. "), call("2"), DONE], FAILS, repair=Saar())
    root = replace(p.trajectory, id="0")
    other = play([call("1"), call("2"), DONE]).trajectory
    left = {"0": None, "1": Left("0", "0", 2, 50, 1.0, 0.5), "2": Left("1", "0", 3, 50, 1.0, 0.5)}
    tree = [replace(root, id=id, branch=branch) for id, branch in left.items()]
    tree.append(replace(other, id="3", branch=Left("0", "0", 1, 50, 1.0, 0.5)))
    right = [replace(t, reward=1.0 if t.id in learnt else -1.0, answer="42") for t in tree]
    group = [replace(t, reward=1.0, stop="answer" if t.id in learnt else "length") for t in tree]
    for rollouts, how in ((right, {}), (group, {"truncated": "mask"}), ([t for t in right if t.reward == 1.0], {})):
        samples = to_samples(rollouts, [1.0] * len(rollouts), Dapo(contrast=0.5, **how))
        assert [s.source for s in samples[len(rollouts) :]] == [one for one in compared for _ in range(2)]
        pairs = to_samples(rollouts, [1.0] * len(rollouts), Dapo(dpo_beta=1.0, **how))[len(rollouts) :]
        assert [s.source for s in pairs] == (list(compared) if how or len(rollouts) < len(tree) else ["0"])
