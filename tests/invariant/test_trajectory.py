"""The trajectory's invariants, as far as core alone can show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retcon.core.errors import MissingIds, UnscoredTokens
from retcon.core.types import KINDS, Provenance, RepairRecord, Segment, Trajectory, Turn, history_ids, to_sample
from strategies import repaired_turns, segments, trajectories

LEARNT = {"prompt": 0, "scaffold": 0, "observation": 0, "sampled": 1, "spliced": 1}


@given(trajectories())
def test_ids_are_those_of_the_prompt_and_of_every_turn_in_order(trajectory: Trajectory) -> None:
    seen = [i for s in trajectory.prompt for i in s.ids or ()]
    for turn in trajectory.turns:
        seen += [i for s in turn.segments for i in s.ids or ()]
    assert history_ids(trajectory) == tuple(seen)


@given(trajectories())
def test_sample_follows_from_the_kinds(trajectory: Trajectory) -> None:
    sample = to_sample(trajectory)
    assert sample.ids == history_ids(trajectory)
    assert sample.advantages is None
    at = 0
    for segment in trajectory.segments:
        count = len(segment.ids or ())
        here = slice(at, at + count)
        assert sample.mask[here] == (LEARNT[segment.kind],) * count
        assert sample.spliced[here] == (int(segment.kind == "spliced"),) * count
        assert sample.logprobs[here] == (segment.logprobs or (None,) * count)
        at += count
    assert at == len(sample.ids) == len(sample.mask) == len(sample.logprobs) == len(sample.spliced)


@given(trajectories(scored=False))
def test_unscored_ids_are_refused_for_training_and_are_unknown_otherwise(trajectory: Trajectory) -> None:
    unscored = any(s.kind == "spliced" for s in trajectory.segments)
    if not unscored:
        to_sample(trajectory)
        return
    with pytest.raises(UnscoredTokens, match=r"t1: \d+ spliced tokens?"):
        to_sample(trajectory)
    sample = to_sample(trajectory, scored=False)
    for spliced, logprob in zip(sample.spliced, sample.logprobs, strict=True):
        assert not spliced or logprob is None  # None, not zero


@given(trajectories(), st.data())
def test_text_without_ids_gives_no_sample(trajectory: Trajectory, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(trajectory.prompt) - 1))
    prompt = list(trajectory.prompt)
    prompt[at] = replace(prompt[at], ids=None)
    with pytest.raises(MissingIds, match="t1: a prompt segment has no ids"):
        to_sample(replace(trajectory, prompt=tuple(prompt)))


@given(repaired_turns("0.0"))
def test_no_sampled_id_is_lost_in_a_repair(turn: Turn) -> None:
    attempts = turn.raw()
    assert turn.repair is not None
    assert len(attempts) == turn.repair.attempts + 1
    for attempt in attempts:
        assert [s.kind for s in attempt.generated] == ["sampled"]  # as it happened: nothing spliced
        assert attempt.raw() == (attempt,)
    trajectory = Trajectory("t", "task", (), (turn,))
    assert trajectory.sampled_tokens == sum(len(s.ids or ()) for a in attempts for s in a.generated)
    assert trajectory.raw_calls == len(attempts)
    assert trajectory.raw_seconds == pytest.approx(sum(o.seconds for a in attempts for o in a.observations))
    fixed = turn.repair.decision != "unrepaired"
    assert trajectory.failures == int(not fixed)
    assert trajectory.raw_failures == len(attempts) - int(fixed)


def test_a_turn_that_answered_stands_for_itself_after_the_raw_history() -> None:
    turn = Turn((Segment("sampled", "7", (1,)),), repair=RepairRecord("answered", 1))
    assert turn.raw() == (replace(turn, repair=None),)


@given(trajectories())
def test_records_are_frozen(trajectory: Trajectory) -> None:
    records = [trajectory, trajectory.provenance, *trajectory.segments, *trajectory.turns]
    records += [c for t in trajectory.turns for c in (*t.calls, *t.observations)]
    for record in records:
        for field in fields(record):
            with pytest.raises(AttributeError):
                setattr(record, field.name, None)
            assert not isinstance(getattr(record, field.name), list)
        with pytest.raises((AttributeError, TypeError)):
            record.unheard_of = 1  # type: ignore[union-attr]


@given(st.sampled_from(KINDS), st.data())
def test_only_generated_ids_have_log_probs_and_each_has_one(kind: str, data: st.DataObject) -> None:
    segment = data.draw(segments(kind))
    if not LEARNT[kind]:
        with pytest.raises(ValueError, match="has no log-probs"):
            replace(segment, logprobs=(0.0,) * len(segment.ids))
    else:
        with pytest.raises(ValueError, match=r"log-probs? for"):
            replace(segment, logprobs=(*segment.logprobs, 0.0))
        with pytest.raises(ValueError, match=r"log-probs? for 0 tokens"):
            replace(segment, ids=None)


def test_what_is_not_known_is_none() -> None:
    trajectory = Trajectory("t", "task", (Segment("prompt", "hi"),), ())
    assert trajectory.reward is None
    assert trajectory.answer is None
    assert trajectory.provenance == Provenance(seed=None, step=None, index=None, model=None)
    assert Segment("sampled", "x", (1,)).logprobs is None
    assert isinstance(trajectory.extra, Mapping)
