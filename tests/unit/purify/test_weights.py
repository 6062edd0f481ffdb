"""Truncated importance weights of spliced ids, on numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from playing import call, play
from retcon.core.errors import UnscoredTokens
from retcon.core.types import RepairRecord, Segment, ToolCall, Trajectory, Turn, to_sample
from retcon.purify.saar import Saar
from retcon.purify.splice import accepted_splices, splice_weights

PROMPT = (Segment("prompt", "?", (1,)),)
CALL = ToolCall("0", "python", {"code": "x"}, char=1, start=1)


def repaired(*, now: tuple[float, ...] | None, was: tuple[float, ...] | None) -> Trajectory:
    """A shallow repair: two ids of reasoning kept, three spliced; the fix was sampled with one id before its call."""
    failure = Turn((Segment("sampled", "rrcc", (2, 3, 4, 5), (-1.0,) * 4),), (CALL,), stop="call")
    fix = Turn((Segment("sampled", "sCCC", (6, 7, 8, 9), was),), (CALL,), stop="call")
    kept, spliced = Segment("sampled", "rr", (2, 3), (-1.0, -1.0)), Segment("spliced", "CCC", (7, 8, 9), now)
    turn = Turn(
        (kept, spliced, Segment("observation", "o", (0,))), (CALL,), stop="call", abandoned=(failure, fix),
        repair=RepairRecord("shallow", 1),
    )  # fmt: skip
    return Trajectory("t", "task", PROMPT, (turn, Turn((Segment("sampled", "42", (8,), (-0.5,)),))))


def test_ratios_are_of_the_same_ids_and_cut_at_the_cap():
    trajectory = repaired(now=(-2.0, -1.0, -3.0), was=(-9.0, -1.0, -1.5, -0.5))
    expected = [None, None, None, math.exp(-1), math.exp(0.5), math.exp(-2.5), None, None]
    assert splice_weights(trajectory, 2.0) == (*expected[:3], *map(pytest.approx, expected[3:6]), None, None)
    assert splice_weights(trajectory, 1.2)[4] == 1.2
    assert splice_weights(trajectory, 0.1)[3:6] == (0.1, 0.1, pytest.approx(math.exp(-2.5)))


def test_the_fix_is_the_last_of_several_attempts():
    once = repaired(now=(-2.0, -1.0, -3.0), was=(-9.0, -1.0, -1.5, -0.5))
    failure, fix = once.turns[0].abandoned
    twice = replace(once, turns=(replace(once.turns[0], abandoned=(failure, failure, failure, fix)), once.turns[1]))
    assert splice_weights(twice, 2.0) == splice_weights(once, 2.0)


def test_a_ratio_beyond_what_a_float_holds_is_cut_too():
    assert splice_weights(repaired(now=(-1.0,) * 3, was=(-2000.0,) * 4), 2.0)[3:6] == (2.0,) * 3


@pytest.mark.parametrize(
    ("now", "was", "message"),
    [(None, (-1.0,) * 4, "turn 0.*under the purified prefix"), ((-1.0,) * 3, None, "from when it was sampled")],
)
def test_what_is_not_known_is_not_one(now, was, message):
    with pytest.raises(UnscoredTokens, match=message):
        splice_weights(repaired(now=now, was=was), 2.0)


def test_a_splice_whose_attempts_are_gone_cannot_be_weighed():
    trajectory = repaired(now=(-1.0,) * 3, was=(-1.0,) * 4)
    turn = replace(trajectory.turns[0], abandoned=())
    with pytest.raises(UnscoredTokens, match="from when it was sampled"):
        splice_weights(replace(trajectory, turns=(turn,)), 2.0)


@pytest.mark.parametrize("cap", [0.0, -1.0, math.nan])
def test_a_cap_is_above_zero(cap):
    with pytest.raises(ValueError, match="cap must be above 0"):
        splice_weights(repaired(now=(-1.0,) * 3, was=(-1.0,) * 4), cap)


@pytest.mark.parametrize("fix", ["print(6 * value)", "import math\nx = math.factorial(3)"])
def test_a_played_repair_has_a_weight_on_each_spliced_id_alone(fix):
    bad = "print(6 * valu)"
    p = play([call(bad, "First. "), call(fix, "Oops. "), "42"], {bad: "error"}, repair=Saar())
    sample, weights = to_sample(p.trajectory), splice_weights(p.trajectory, 1e9)
    assert [w is not None for w in weights] == [bool(s) for s in sample.spliced]
    sampled = p.turns[0].abandoned[-1].segments[0].logprobs
    now = [lp for lp, s in zip(sample.logprobs, sample.spliced, strict=True) if s]
    was = sampled[-len(now) :]
    assert [w for w in weights if w is not None] == [
        pytest.approx(math.exp(a - b)) for a, b in zip(now, was, strict=True)
    ]


def test_a_splice_that_became_likelier_is_always_accepted():
    trajectory = repaired(now=(-1.0,) * 3, was=(-2.0,) * 4)
    for number in range(20):
        assert accepted_splices(replace(trajectory, id=f"t/{number}")) == (None,) * 3 + (1.0,) * 3 + (None,) * 2


def test_a_splice_is_accepted_as_often_as_it_is_likely():
    """The ratio of the whole splice is e^-.9 = .407, whatever that of its tokens."""
    trajectory = repaired(now=(-2.0, -1.0, -1.0), was=(-9.0, -1.1, -1.0, -1.0))
    drawn = [accepted_splices(replace(trajectory, id=f"t/{number}"))[3:6] for number in range(4000)]
    assert {*drawn} == {(0.0,) * 3, (1.0,) * 3}
    assert drawn.count((1.0,) * 3) / 4000 == pytest.approx(math.exp(-0.9), abs=0.03)  # 4 standard errors
    assert accepted_splices(trajectory) == accepted_splices(trajectory)


def test_whether_a_splice_is_accepted_is_drawn_by_the_seed_of_its_rollout():
    one = repaired(now=(-2.0, -1.0, -1.0), was=(-9.0, -1.1, -1.0, -1.0))
    seeded = (replace(one, provenance=replace(one.provenance, seed=seed)) for seed in range(20))
    assert len({accepted_splices(trajectory) for trajectory in seeded}) == 2


def test_splices_of_a_trajectory_are_accepted_apart():
    one = repaired(now=(-2.0, -1.0, -1.0), was=(-9.0, -1.1, -1.0, -1.0))
    both = [
        tuple(w for w in accepted_splices(replace(one, id=f"t/{n}", turns=one.turns[:1] * 2)) if w is not None)
        for n in range(60)
    ]
    assert {(0.0,) * 3 + (1.0,) * 3, (1.0,) * 3 + (0.0,) * 3} <= {*both}
