"""Branch and repair: fresh tries from the clean history first, then SAAR. Over the scripted engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from playing import LIMITS, Play, call, play, run_python, written
from retcon.core.types import history_ids, to_sample
from retcon.purify.kinds.branch import Branch
from retcon.purify.saar import Saar
from retcon.tools.scripted import ScriptedSessions

BAD, WORSE = "print(6 * valu)", "print(6 * vlue)"
GOOD = "print(6 * value)"
DONE = "It is 42."
FAILS = {BAD: "error", WORSE: "error"}


def branched(replies: list[str], repair: Branch | None = None, **how: object) -> Play:
    return play(replies, FAILS, repair=repair or Branch(fresh=2, saar=Saar(attempts=1)), **how)


def test_a_fresh_try_takes_the_place_of_the_failure_as_it_was_sampled():
    p = branched([call(BAD, "First. "), call(GOOD, "So. "), DONE])
    turn = p.turns[0]
    assert p.texts == [call(GOOD, "So. "), DONE]
    assert [s.kind for s in turn.generated] == ["sampled"]
    assert (turn.repair.decision, turn.repair.attempts, turn.repair.fresh) == ("resampled", 1, 1)
    assert [written(a) for a in turn.abandoned] == [call(BAD, "First. "), call(GOOD, "So. ")]
    assert turn.segments == turn.abandoned[-1].segments
    assert p.engine.scored == []  # its log-probs are those that it was sampled with
    assert (p.trajectory.raw_failures, p.trajectory.failures) == (1, 0)
    assert to_sample(p.trajectory).spliced == (0,) * len(history_ids(p.trajectory))


def test_a_fresh_try_is_asked_for_as_if_nothing_had_failed():
    p = branched([call(BAD), call(WORSE), call(WORSE), call(GOOD, "Again: "), DONE])
    first, fresh, again, fix = (p.prompt(n) for n in range(4))
    assert first == fresh == again
    assert fix.startswith(first + call(BAD))


def test_every_try_has_a_random_stream_of_its_own():
    p = branched([call(BAD), call(WORSE), call(WORSE), call(GOOD), DONE])
    seeds = [params.seed for params in p.engine.params]
    assert len(set(seeds)) == len(seeds) == 5


def test_where_no_fresh_try_works_saar_repairs_and_keeps_the_tries_on_record():
    p = branched([call(BAD, "First. "), call(WORSE), call(WORSE), call(GOOD, "Oops. "), DONE])
    turn = p.turns[0]
    assert p.texts[0] == call(GOOD, "First. ")  # shallow: of the failure and its fix, whatever was tried between
    assert (turn.repair.decision, turn.repair.attempts, turn.repair.fresh) == ("shallow", 3, 2)
    tried = [call(BAD, "First. "), call(WORSE), call(WORSE), call(GOOD, "Oops. ")]
    assert [written(a) for a in turn.abandoned] == tried
    assert (p.prompt(3).count(BAD), p.prompt(3).count(WORSE)) == (1, 0)  # SAAR is shown the failure, no fresh try
    assert p.trajectory.raw_failures == 3


def test_where_nothing_works_the_failure_stays():
    p = branched([call(BAD), call(WORSE), call(WORSE), call(BAD), DONE])
    turn = p.turns[0]
    assert (written(turn), turn.repair.decision, turn.repair.attempts) == (call(BAD), "unrepaired", 3)
    assert [written(a) for a in turn.raw()] == [call(BAD), call(WORSE), call(WORSE), call(BAD)]


def test_without_attempts_of_saar_the_fresh_tries_are_all():
    p = branched([call(BAD), call(WORSE), DONE], Branch(fresh=1, saar=Saar(attempts=0)))
    repair = p.turns[0].repair
    assert (repair.decision, repair.reason, repair.attempts) == ("unrepaired", "no fresh try worked", 1)
    assert [written(a) for a in p.turns[0].raw()] == [call(BAD), call(WORSE)]
    assert p.texts == [call(BAD), DONE]


def test_a_fresh_try_with_a_status_that_starts_no_repair_is_not_committed():
    only_errors = Branch(fresh=2, saar=Saar(attempts=0, failures=frozenset({"error"})))
    p = play([call(BAD), call("slow()"), call(GOOD), DONE], {BAD: "error", "slow()": "timeout"}, repair=only_errors)
    assert p.texts == [call(GOOD), DONE]


def test_a_fresh_try_that_calls_nothing_is_not_committed():
    p = branched([call(BAD), DONE, call(GOOD), DONE])
    assert p.texts == [call(GOOD), DONE]
    assert p.turns[0].repair.fresh == 2


def test_a_fresh_try_that_does_not_fit_is_not_committed():
    limits = replace(LIMITS, max_tokens=700)
    p = branched([call(BAD), call(GOOD, "x" * 800), call(GOOD), DONE], limits=limits)
    assert p.texts[0] == call(GOOD)
    assert p.turns[0].repair.fresh == 2
    assert len(history_ids(p.trajectory)) <= limits.max_tokens


def test_a_fresh_try_runs_in_the_state_before_the_failure_and_its_own_stays():
    cells = [call("a = 5"), call("a = 6; oops"), call("b = a"), call("b, a"), DONE]
    p = play(cells, tool=ScriptedSessions(run_python), repair=Branch(fresh=1))
    assert p.texts == [call("a = 5"), call("b = a"), call("b, a"), DONE]
    assert [o.text for t in p.turns for o in t.observations] == ["", "", "(5, 5)"]


def test_fresh_tries_alone_have_the_state_before_the_failure_too():
    cells = [call("a = 5"), call("a = 6; oops"), call("b = a"), call("b, a"), DONE]
    p = play(cells, tool=ScriptedSessions(run_python), repair=Branch(fresh=1, saar=Saar(attempts=0)))
    assert p.turns[2].observations[0].text == "(5, 5)"


def test_the_same_rollout_twice_is_the_same():
    script = [call(BAD), call(WORSE), call(GOOD), DONE]
    assert branched(script).trajectory == branched(script).trajectory


def test_where_the_lookahead_has_no_room_nothing_is_tried():
    class Full:
        async def attempt(self, shown):
            return None

    (failure,) = play([call(BAD)], FAILS, limits=replace(LIMITS, max_turns=1)).turns
    (turn,) = asyncio.run(Branch(fresh=2).repair(failure, Full()))
    assert turn.segments == failure.segments
    assert (turn.repair.decision, turn.repair.attempts, turn.repair.fresh) == ("unrepaired", 0, 0)
    assert turn.repair.reason == "no budget for another attempt"


def test_at_least_one_fresh_try():
    with pytest.raises(ValueError, match="fresh must be 1 or more"):
        Branch(fresh=0)
