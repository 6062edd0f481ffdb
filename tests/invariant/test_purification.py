"""The invariants of a trajectory, over random rollouts with failures, repairs, cuts and faults."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from itertools import accumulate

from hypothesis import event, given
from hypothesis import strategies as st

from playing import Play, call, play
from retcon.core.sample import history_ids, to_sample
from retcon.core.types import Segment, Status, Turn
from retcon.purify.saar import Saar
from retcon.purify.splice import purify
from retcon.rollout.limits import Limits

FINE: dict[str, Status] = {"x = 1": "ok", "x = 1 + 1": "ok", "print('some other program')": "ok"}
FAILING: dict[str, Status] = {
    "x = l": "error",
    "y": "error",
    "while True: x = 1": "timeout",
    "print('some other progam')": "error",
    "x = 'ab' * 10**9": "limit",
}
STRANGE: dict[str, Status] = {"pass": "ok", "lost()": "infrastructure"}
OUTCOMES = FINE | FAILING | STRANGE
DONE = "It is 42."


def calls(programs: dict[str, Status]) -> st.SearchStrategy[str]:
    one = st.builds(call, st.sampled_from(list(programs)), st.sampled_from(["", "Hm. ", "Lét me see: "]))
    return st.one_of(one, one, one, st.tuples(one, one).map("\n".join))


odd = st.one_of(calls(OUTCOMES), st.sampled_from([DONE, "```python\nx = (", "x" * 300, ""]))
any_reply = st.one_of(calls(FAILING), calls(FINE), calls(FAILING), calls(FINE), odd)


@dataclass(frozen=True)
class Script:
    """replies: of the first generations; after them the model answers. breaks: the one at which the engine goes."""

    replies: tuple[str, ...]
    breaks: int | None = None

    def __call__(self, request_id: str, text: str, n: int) -> str:
        if n == self.breaks:
            raise ConnectionError("gone")
        return self.replies[n] if n < len(self.replies) else DONE


def scripts(reply: st.SearchStrategy[str]) -> st.SearchStrategy[Script]:
    replies = st.lists(reply, min_size=5, max_size=12).map(tuple)
    return st.builds(Script, replies, st.sampled_from([None] * 12 + [0, 1, 2, 4]))


limits = st.builds(Limits, st.integers(150, 1200), st.sampled_from([5, 3, 1]), st.sampled_from([600, 100, 0]))
attempts = st.sampled_from([3, 2, 1, 0])
repairs = st.builds(Saar, attempts, st.sampled_from([0.5, 0.0, 1.0]), st.sampled_from(["all", "latest"]))


@st.composite
def plays(draw: st.DrawFn) -> Play:
    made = play(draw(scripts(any_reply)), OUTCOMES, repair=draw(repairs), limits=draw(limits), max_tokens=200)
    for turn in made.turns:
        event(turn.repair.decision if turn.repair else "as sampled")
    event(made.trajectory.stop)
    return made


def raw(p: Play) -> list[Turn]:
    return [attempt for turn in p.turns for attempt in turn.raw()]


@given(plays())
def test_the_history_is_exactly_what_the_engine_saw(p: Play):
    given_to_engine = {ids for _, ids in p.engine.seen}
    pieces = [[i for s in p.trajectory.prompt for i in s.ids]]
    pieces += [[i for s in turn.segments for i in s.ids] for turn in p.turns]
    for prefix in list(accumulate(pieces))[: len(p.turns)]:
        assert tuple(prefix) in given_to_engine
    assert history_ids(p.trajectory) == tuple(i for piece in pieces for i in piece)


@given(plays())
def test_the_mask_follows_from_where_an_id_comes_from(p: Play):
    sample = to_sample(p.trajectory)
    kinds = [s.kind for s in p.trajectory.segments for _ in s.ids]
    assert list(sample.mask) == [int(kind in ("sampled", "spliced")) for kind in kinds]
    assert list(sample.spliced) == [int(kind == "spliced") for kind in kinds]
    assert [lp is None for lp in sample.logprobs] == [not m for m in sample.mask]


@given(plays())
def test_all_logprobs_are_those_of_a_fresh_scoring_under_the_purified_history(p: Play):
    ids = history_ids(p.trajectory)
    fresh = (0.0, *asyncio.run(p.engine.score("", ids, 1)))
    sample = to_sample(p.trajectory)
    assert sample.logprobs == tuple(lp if m else None for lp, m in zip(fresh, sample.mask, strict=True))


@given(plays())
def test_nothing_that_was_sampled_or_executed_is_lost(p: Play):
    attempts = raw(p)
    for n, attempt in enumerate(attempts):
        reply = p.engine.replies(p.trajectory.id, "", n) + "<|im_end|>"
        assert attempt.text == reply if attempt.stop != "length" else reply.encode().startswith(ids_of(attempt))
        assert [s.kind for s in attempt.generated] == ["sampled"]
        assert [o.call_id for o in attempt.observations] == [c.id for c in attempt.calls]
    ids = [c.id for a in attempts for c in a.calls]
    assert len(set(ids)) == len(ids)
    faults = int(p.engine.replies.breaks is not None and p.engine.replies.breaks < len(p.engine.seen))
    assert len(attempts) == len(p.engine.seen) - faults
    executed = [c for a in attempts for c, o in zip(a.calls, a.observations, strict=True) if o.error_type is None]
    assert [c.code for c in executed] == p.tool.executed
    assert len({params.seed for params in p.engine.params}) == len(p.engine.params)
    assert p.engine.released == [p.trajectory.id]


def ids_of(turn: Turn) -> bytes:
    return bytes(i for s in turn.generated for i in s.ids if i < 256)


def unscored(turn: Turn) -> Turn:
    def strip(segment: Segment) -> Segment:
        return replace(segment, logprobs=None) if segment.kind == "spliced" else segment

    return replace(turn, segments=tuple(map(strip, turn.segments)))


@given(plays(), st.sampled_from([0.0, 0.5, 1.0]))
def test_purifying_is_a_pure_function_of_the_attempts_and_twice_is_once(p: Play, gamma: float):
    for turn in p.turns:
        if turn.repair and turn.repair.decision in ("shallow", "deep"):
            once = purify(turn.raw(), gamma)
            assert purify(once.raw(), gamma) == once
            assert once.raw() == turn.raw()
            assert unscored(turn) == once or turn.repair.decision != once.repair.decision
            assert turn.failures == 0
        if turn.repair:
            assert not Saar().failed(turn)


@given(plays())
def test_calls_of_a_repaired_turn_point_at_their_markers(p: Play):
    for turn in p.turns:
        ids = [i for s in turn.generated for i in s.ids]
        for made in turn.calls:
            assert turn.text[made.char :].startswith("```python")
            assert bytes(ids[made.start : made.start + 9]) == b"```python"


@given(scripts(st.one_of(calls(FINE), st.just("x" * 300))), repairs, limits)
def test_without_a_failure_purification_changes_nothing(script: Script, repair: Saar, limit: Limits):
    off, on = (play(script, OUTCOMES, repair=r, limits=limit, max_tokens=200) for r in (None, repair))
    assert on.trajectory == replace(off.trajectory, provenance=on.trajectory.provenance)
    assert to_sample(on.trajectory) == to_sample(off.trajectory)
    assert (on.engine.seen, on.engine.params, on.engine.scored) == (off.engine.seen, off.engine.params, [])


@given(scripts(any_reply), repairs, limits)
def test_limits_hold(script: Script, repair: Saar, limit: Limits):
    p = play(script, OUTCOMES, repair=repair, limits=limit, max_tokens=200)
    assert len(p.turns) <= limit.max_turns
    assert all(len(turn.raw()) <= 1 + repair.attempts for turn in p.turns)
    room = limit.max_ids + limit.lookahead_ids
    for (_, ids), params in zip(p.engine.seen, p.engine.params, strict=True):
        assert 0 < params.max_tokens <= room - len(ids)
    trailing = [s for s in p.turns[-1].segments if s not in p.turns[-1].generated] if p.turns else []
    assert len(history_ids(p.trajectory)) - sum(len(s.ids) for s in trailing) <= max(
        limit.max_ids, sum(len(s.ids) for s in p.trajectory.prompt)
    )
