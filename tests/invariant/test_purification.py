"""The invariants of a purified trajectory, over random rollouts with failures, repairs, cuts and faults."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from playing import Play, play, run_python
from retcon.core.types import Segment, Turn, history_ids
from retcon.purify.saar import Saar
from retcon.purify.splice import purify
from retcon.rollout.context import RolloutLimits
from retcon.tools.scripted import ScriptedSessions, State
from scripts import OUTCOMES, Script, any_reply, limits, plays, raw, repairs, scripts, stateful_plays


@given(plays())
def test_the_history_is_exactly_what_the_engine_saw(p: Play):
    given_to_engine = {ids for _, ids in p.engine.seen}
    pieces = [[i for s in p.trajectory.prompt for i in s.ids]]
    pieces += [[i for s in turn.segments for i in s.ids] for turn in p.turns]
    for prefix in list(accumulate(pieces))[: len(p.turns)]:
        assert tuple(prefix) in given_to_engine
    assert history_ids(p.trajectory) == tuple(i for piece in pieces for i in piece)


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
            marker = "```python" if turn.text[made.char] == "`" else "<tool_call>"
            assert turn.text[made.char :].startswith(marker)
            assert bytes(ids[made.start : made.start + len(marker)]) == marker.encode()


@given(scripts(any_reply()), repairs, limits)
def test_limits_hold(script: Script, repair: Saar, limit: RolloutLimits):
    p = play(script, OUTCOMES, repair=repair, limits=limit, max_tokens=200)
    assert len(p.turns) <= limit.max_turns
    assert all(len(turn.raw()) <= 1 + repair.attempts for turn in p.turns)
    room = limit.max_tokens + limit.lookahead_tokens
    for (_, ids), params in zip(p.engine.seen, p.engine.params, strict=True):
        assert 0 < params.max_tokens <= room - len(ids)
    trailing = [s for s in p.turns[-1].segments if s not in p.turns[-1].generated] if p.turns else []
    assert len(history_ids(p.trajectory)) - sum(len(s.ids) for s in trailing) <= max(
        limit.max_tokens, sum(len(s.ids) for s in p.trajectory.prompt)
    )


@given(stateful_plays())
def test_state_is_that_of_the_committed_history(played: tuple[Play, ScriptedSessions]):
    p, tool = played
    assert p.trajectory.stop in ("answer", "turns")
    if any(t.repair and t.repair.decision == "answered" for t in p.turns):
        return  # every attempt began where the first one did, and nothing runs after the last
    expected: State = {}
    for turn in p.turns:
        for made, observation in zip(turn.calls, turn.observations, strict=True):
            text, status, _ = run_python(made.code, expected)
            assert (observation.text, observation.status) == (text, status)
    for session in tool.opened:
        assert session.state == expected
        assert session.events[-1] == "close"
