from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retcon.core.types import Observation, RepairRecord, Segment, Trajectory, Turn
from retcon.select.kinds.none import NoSelection
from retcon.select.kinds.roc import RocSection, penalty, roc


def made(name: str, reward: float | None, *statuses: str, answers: int = 1) -> Trajectory:
    """A rollout with a call for each status and a last turn that gives `answers` answers."""
    turns = [Turn((Segment("sampled", "run"),), observations=(Observation("0", "", s),), stop="call") for s in statuses]
    turns.append(Turn((Segment("sampled", r"\boxed{1}" * answers),)))
    return Trajectory(name, "t", (), tuple(turns), reward)


def names(group: list[Trajectory]) -> list[str]:
    return [t.id for t in group]


def positives(group: list[Trajectory]) -> int:
    return sum(t.reward > 0 for t in group)


@pytest.mark.parametrize(
    ("trajectory", "expected"),
    [
        (made("clean", 1, "ok", "ok"), 0.0), (made("half failed", 1, "ok", "error"), 0.5), (made("no call", 1), 0.5),
        (made("no answer", 1, "ok", answers=0), 1.0), (made("two answers in two turns", 1, "ok", answers=2), 0.5),
        (made("answers without end", 1, "ok", answers=9), 1.0), (made("the worst", 1, "error", answers=0), 2.0),
    ],
    ids=lambda value: value.id if isinstance(value, Trajectory) else None,
)  # fmt: skip
def test_penalty(trajectory, expected):
    assert penalty(trajectory) == expected


def test_answers_in_observations_do_not_count():
    quoted = made("quoted", 1, "ok")
    first = replace(quoted.turns[0], segments=(Segment("sampled", "run"), Segment("observation", r"\boxed{2}")))
    assert penalty(replace(quoted, turns=(first, *quoted.turns[1:]))) == 0


def test_what_counts_as_an_answer_can_be_given():
    assert penalty(made("none", 1, "ok", answers=0), count_answers=lambda _: 1) == 0


def test_a_failure_that_was_replaced_is_none():
    """What is learnt is the purified history; the failures that it no longer has cost nothing."""
    fixed = made("fixed", 1, "ok")
    failed = replace(fixed.turns[0], observations=(Observation("0", "", "error"),))
    failed_too = replace(failed, segments=())
    repaired = replace(fixed.turns[0], abandoned=(failed, fixed.turns[0]), repair=RepairRecord("deep", 1))
    purified = replace(fixed, turns=(repaired, *fixed.turns[1:]))
    assert (purified.raw_calls, purified.raw_failures) == (2, 1)
    assert penalty(purified) == 0
    assert penalty(replace(purified, turns=(fixed.turns[0], failed_too, *purified.turns))) == 1 / 3
    group = [made("p", 1, "ok", "error"), purified, made("n0", 0), made("n1", 0)]
    assert all("fixed" in names(roc(group, 2, seed=seed)) for seed in range(10))


def test_a_failure_that_was_replaced_counts_where_raw_ones_do():
    clean = made("clean", 1, "ok", "ok")
    failed = replace(clean.turns[0], observations=(Observation("0", "", "error"),))
    repaired = replace(clean.turns[0], abandoned=(failed, clean.turns[0]), repair=RepairRecord("deep", 1))
    purified = replace(clean, id="purified", turns=(repaired, *clean.turns[1:]))
    assert penalty(purified, failures="raw") == 1 / 3
    assert penalty(clean, failures="raw") == penalty(purified) == 0
    group = [clean, purified, made("n0", 0), made("n1", 0)]
    assert {one for seed in range(20) for one in names(roc(group, 2, seed=seed))} >= {"clean", "purified"}
    assert all("purified" not in names(roc(group, 2, seed=seed, failures="raw")) for seed in range(20))


def test_the_clean_positives_are_kept_in_the_groups_order():
    group = [made("n0", 0), made("p0", 1, "error"), made("p1", 1, "ok"), made("n1", 0), made("p2", 1, "ok", "error")]
    group += [made("p3", 1, "ok"), made("n2", 0), made("n3", 0)]
    for seed in range(20):
        kept = roc(group, 4, seed=seed)
        assert [name for name in names(kept) if name[0] == "p"] == ["p1", "p3"]
        assert names(kept) == sorted(names(kept), key=names(group).index)


def test_ties_and_negatives_are_drawn_by_the_seed():
    group = [made(f"p{n}", 1, "ok") for n in range(4)] + [made(f"n{n}", 0, answers=n) for n in range(4)]
    drawn = Counter(name for seed in range(200) for name in names(roc(group, 4, seed=seed)))
    assert all(60 < drawn[t.id] < 140 for t in group)
    assert names(roc(group, 4, seed=3)) == names(roc(group, 4, seed=3))


def test_weighted_draws_prefer_clean_positives_but_not_always():
    group = [made("clean", 1, "ok"), made("worst", 1, "error", answers=0)] + [made(f"n{n}", 0) for n in range(2)]
    drawn = Counter(name for seed in range(300) for name in names(roc(group, 2, seed=seed, draw="weighted")))
    # Weights 1 / 0.1 and 1 / 2.1: one in 22 is the worst.
    assert 2 < drawn["worst"] < 30
    assert drawn["clean"] + drawn["worst"] == 300


@pytest.mark.parametrize(
    ("right", "wrong", "keep", "minima", "expected"),
    [
        (8, 8, 8, (0, 0), 4),
        (3, 5, 4, (0, 0), 2),  # 1.5 rounds up
        (1, 15, 8, (0, 0), 1),
        (1, 31, 8, (0, 0), 0),
        (1, 31, 8, (2, 0), 1),  # no more than there are
        (3, 29, 8, (2, 0), 2),
        (29, 3, 8, (0, 2), 6),
        (16, 0, 8, (0, 0), 8),
        (0, 16, 8, (2, 2), 0),
        (16, 1, 8, (0, 2), 7),
    ],
)
def test_each_side_keeps_its_share_and_its_minimum(right, wrong, keep, minima, expected):
    group = [made(f"p{n}", 1) for n in range(right)] + [made(f"n{n}", 0) for n in range(wrong)]
    kept = roc(group, keep, seed=0, min_positive=minima[0], min_negative=minima[1])
    assert (len(kept), positives(kept)) == (keep, expected)


def test_without_minima_a_side_may_go_empty():
    lone = made("lone", 1)
    assert lone not in roc([lone, *(made(f"n{n}", 0) for n in range(31))], 8, seed=0)


def test_selection_counts_answers_as_it_is_asked_to():
    group = [made("boxed", 1, "ok"), made("bare", 1, "ok", answers=0), made("n0", 0), made("n1", 0)]
    bare = {"count_answers": lambda trajectory: int(trajectory.id == "bare")}
    for seed in range(10):
        assert names(roc(group, 2, seed=seed))[0] == "boxed"
        assert names(roc(group, 2, seed=seed, **bare))[0] == "bare"


def test_a_group_that_is_not_oversampled_is_kept_whole():
    group = [made("a", 1), made("b", 0)]
    assert roc(group, 2, seed=0) == roc(group, 3, seed=0) == group


def test_what_cannot_be_selected_is_refused():
    with pytest.raises(ValueError, match="min_positive 3 \\+ min_negative 2 exceed the 4"):
        roc([], 4, seed=0, min_positive=3, min_negative=2)
    with pytest.raises(ValueError, match="trajectory lost has no reward"):
        roc([made("a", 1), made("lost", None)], 1, seed=0)


@st.composite
def groups(draw: st.DrawFn) -> list[Trajectory]:
    statuses = st.lists(st.sampled_from(["ok", "error", "timeout", "malformed"]), max_size=3)
    return [
        made(f"t{n}", draw(st.sampled_from([-1.0, 0.0, 0.5, 1.0])), *draw(statuses), answers=draw(st.integers(0, 3)))
        for n in range(draw(st.integers(1, 24)))
    ]


@st.composite
def selections(draw: st.DrawFn) -> dict[str, object]:
    keep = draw(st.integers(1, 12))
    least = draw(st.integers(0, keep))
    minima = {"min_positive": least, "min_negative": draw(st.integers(0, keep - least))}
    return {
        "keep": keep, "seed": draw(st.integers(0, 99)), "draw": draw(st.sampled_from(["rank", "weighted"])), **minima,
    }  # fmt: skip


@given(groups(), selections())
def test_it_keeps_exactly_g_of_what_there_is_in_order_and_repeats(group, how):
    kept = roc(group, **how)
    assert len(kept) == min(how["keep"], len(group))
    assert [id(t) for t in group if t in kept] == [id(t) for t in kept], "no copies, nothing twice, the group's order"
    assert roc(group, **how) == kept


@given(groups(), selections())
def test_each_side_keeps_its_share_unless_a_minimum_or_a_lack_says_otherwise(group, how):
    kept = roc(group, **how)
    right, keep = positives(group), len(kept)
    low, high = how["min_positive"], how["min_negative"]
    assert positives(kept) >= min(low, right)
    assert keep - positives(kept) >= min(high, len(group) - right)
    if not low and not high:
        assert abs(positives(kept) - keep * right / len(group)) <= 0.5


@given(groups(), selections(), st.randoms(use_true_random=False))
def test_the_order_of_the_group_decides_nothing_but_ties(group, how, rng):
    how["draw"] = "rank"
    other = rng.sample(group, len(group))

    def penalties(kept: list[Trajectory]) -> list[float]:
        return sorted(penalty(t) for t in kept if t.reward > 0)

    one, two = roc(group, **how), roc(other, **how)
    assert positives(one) == positives(two)
    assert penalties(one) == penalties(two)
    dropped = [penalty(t) for t in group if t.reward > 0 and t not in one]
    assert max(penalties(one), default=0) <= min(dropped, default=2), "the cleanest"


@given(st.integers(1, 10), st.integers(0, 20), st.integers(0, 9))
def test_of_2g_half_of_the_wrong_ones_stay_rounded_down(keep, wrong, seed):
    """The paper's shares; a single success is therefore never lost."""
    wrong = min(wrong, 2 * keep)
    group = [made(f"n{n}", 0) for n in range(wrong)] + [made(f"p{n}", 1) for n in range(2 * keep - wrong)]
    assert positives(roc(group, keep, seed=seed)) == keep - wrong // 2


def test_failures_are_drawn_whatever_they_look_like():
    group = [made(f"p{n}", 1) for n in range(4)] + [
        made("tidy", 0, "ok"),
        *(made(f"n{n}", 0, "error") for n in range(3)),
    ]
    drawn = Counter(name for seed in range(400) for name in names(roc(group, 4, seed=seed)))
    assert all(150 < drawn[name] < 250 for name in ("tidy", "n0", "n1", "n2"))


def test_no_selection_takes_the_first():
    assert names(NoSelection().select([made("a", 0), made("b", 1), made("c", 1)], 2, seed=0)) == ["a", "b"]


@pytest.mark.parametrize(
    ("keep", "oversample", "made"),
    [(8, 2.0, 16), (2, 1.2, 3), (50, 1.1, 55), (25, 2.2, 55), (7, 1.0, 7), (3, 1.0001, 4), (1, 2.0000004, 2)],
)
def test_what_is_made_is_g_times_as_many_rounded_up_and_no_more(keep: int, oversample: float, made: int) -> None:
    """50 × 1.1 is 55.00000000000001 to the machine."""
    assert RocSection(oversample=oversample).made(keep) == made


@pytest.mark.parametrize("failures", ["purified", "raw"])
@pytest.mark.parametrize("draw", ["rank", "weighted"])
def test_a_recipe_s_draw_and_its_failures_reach_the_selection(draw, failures):
    """Of two that look alike, `raw` ranks the one first that had nothing to repair; a weighted draw may take either."""
    clean = made("clean", 1, "ok")
    failed = replace(clean.turns[0], observations=(Observation("0", "", "error"),))
    repaired = replace(clean.turns[0], abandoned=(failed,) * 9, repair=RepairRecord("deep", 1))
    group = [clean, replace(clean, id="repaired", turns=(repaired, *clean.turns[1:]))]
    section = RocSection(draw=draw, failures=failures)
    kept = Counter(names(section.select(group, 1, seed=seed))[0] for seed in range(200))
    if failures == "purified":
        assert 60 < kept["clean"] < 140
    else:  # a penalty of 0 against one of .9: weights of 10 and 1 where drawn
        assert kept["repaired"] == 0 if draw == "rank" else 0 < kept["repaired"] < 60
