"""Which rollouts are purified, and the schedule of how many."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from playing import LIMITS, TASK, call
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.types import Observation, Segment, Trajectory, Turn
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.purify.saar import Saar
from retcon.rollout.context import Probes, RolloutContext, Schedule, constant, is_purified, linear
from retcon.rollout.group import rollout_group
from retcon.tools.scripted import ScriptedTool


def drawn(probability: float, **changed: int) -> list[bool]:
    where = {"seed": 1, "step": 2} | changed
    return [is_purified(probability, where["seed"], where["step"], "p", index) for index in range(400)]


def test_mixing_is_reproducible_and_hits_its_share():
    assert drawn(0.7) == drawn(0.7)
    assert 0.62 < sum(drawn(0.7)) / 400 < 0.78
    assert drawn(0.7) != drawn(0.7, step=3)
    assert drawn(0.7) != drawn(0.7, seed=3)


def test_the_draw_is_the_same_in_every_version():
    """A run that was begun with an earlier one goes on with the same rollouts purified."""
    assert "".join("01"[it] for it in drawn(0.5)[:20]) == "01101011010011000110"


def test_mixing_at_its_ends():
    assert not any(drawn(0.0))
    assert all(drawn(1.0))


def test_a_higher_share_only_adds():
    assert all(more for less, more in zip(drawn(0.3), drawn(0.6), strict=True) if less)


def test_a_constant_and_a_line():
    assert [constant(0.7).at(step) for step in (0, 1, 99)] == [0.7] * 3
    assert [linear(1.0, 0.0, 5).at(step) for step in (0, 1, 2, 3, 5, 6)] == [1.0, 1.0, 0.75, 0.5, 0.0, 0.0]


def test_a_schedule_in_pieces_may_jump():
    pieces = Schedule(((1, 0.0), (3, 1.0), (5, 1.0), (5, 0.5), (9, 0.3)))
    assert [pieces.at(step) for step in (1, 2, 3, 4, 5, 7, 10)] == [0.0, 0.5, 1.0, 1.0, 0.5, pytest.approx(0.4), 0.3]


def test_the_draw_at_a_step_hangs_on_its_p_alone():
    falling = linear(1.0, 0.0, 11)
    draws = [[is_purified(falling.at(step), 1, step, "p", n) for n in range(400)] for step in (1, 6, 11)]
    shares = [sum(one) / 400 for one in draws]
    assert (shares[0], shares[2]) == (1.0, 0.0)
    assert 0.42 < shares[1] < 0.58
    assert drawn(falling.at(6), step=6) == drawn(0.5, step=6)


@pytest.mark.parametrize(
    ("points", "message"), [((), "at least one"), (((1, 1.5),), r"\[0, 1\]"), (((5, 0.1), (4, 0.2)), "not decrease")]
)
def test_a_schedule_that_is_none_is_refused(points, message):
    with pytest.raises(ValueError, match=message):
        Schedule(points)


def lived(*statuses: str, stop: str = "answer") -> Trajectory:
    """A rollout with a call of each status, a turn each."""
    turns = tuple(
        Turn((Segment("sampled", ""),), observations=(Observation("0", "", status),), stop="call")
        for status in statuses
    )
    return Trajectory("t/0", "t", (), turns, stop=stop)


@pytest.mark.parametrize(
    ("made", "share"),
    [
        ([lived("ok"), lived("ok")], 0.2),
        ([lived("error", "ok"), lived("error", "error")], 1.0),
        ([lived("ok", "error"), lived("ok")], 0.2 + 0.8 / 3),
        ([lived("error", "ok"), lived("ok", "ok")], 0.2 + 0.8 / 3),  # the second call repairs, and is no first try
        ([lived(), lived()], 0.2),
        ([lived("ok"), lived("error", stop="infrastructure")], 0.2),
    ],
)
def test_p_goes_from_least_to_most_by_the_first_tries_that_failed(made, share):
    assert Probes(2, least=0.2).share(1.0, made) == pytest.approx(share)


def test_least_is_no_more_than_p():
    assert Probes(1, least=0.5).share(0.3, [lived("ok")]) == 0.3


def grouped(
    probes: Probes | None, fails: Callable[[int], bool], *, reverse: bool = False, probability: float = 1.0
) -> list[Trajectory]:
    """A group of eight, of which those fail at first that `fails` names by index; with `reverse`, each generation of a
    rollout waits until those of later ones are done."""
    order: list[str] = []

    def reply(id: str, text: str, _n: int) -> str:
        order.append(id)
        if "tool" in text:
            return "42"
        return call("bad" if fails(int(id.rpartition("/")[2])) else "good")

    class Engine(ScriptedEngine):
        async def generate(self, request_id, ids, params):
            for _ in range(8 - int(request_id.rpartition("/")[2]) if reverse else 0):
                await asyncio.sleep(0)
            return await super().generate(request_id, ids, params)

    tokenizer = ByteTokenizer()
    tool = ScriptedTool(lambda code: ("", "error" if code == "bad" else "ok", None))
    context = RolloutContext(
        Engine(tokenizer, reply), Chat(tokenizer), {"python": tool}, LIMITS, repair=Saar(attempts=1), probes=probes,
        probability=probability,
    )  # fmt: skip
    made = asyncio.run(rollout_group(TASK, context, count=8, seed=3, step=1, grade=lambda _, t: replace(t, reward=1.0)))
    ended = [id for id in order if id.endswith(("0", "1"))]
    assert probes is None or order[: len(ended)] == ended, "the probes have ended before the others begin"
    return made


def test_the_probes_are_raw_and_the_others_purified_by_what_they_did():
    always, never = (grouped(Probes(2), lambda _, it=it: it) for it in (True, False))
    assert [t.provenance.purified for t in always] == [False] * 2 + [True] * 6
    assert not any(t.provenance.purified for t in never)
    half = grouped(Probes(2), lambda index: index % 2 == 0)
    assert [t.provenance.purified for t in half[2:]] == [is_purified(0.5, 3, 1, TASK.id, n) for n in range(2, 8)]


def test_where_all_first_tries_fail_the_others_are_purified_with_the_steps_own_p():
    group = grouped(Probes(2), lambda _: True, probability=0.5)
    assert [t.provenance.purified for t in group[2:]] == [is_purified(0.5, 3, 1, TASK.id, n) for n in range(2, 8)]
    assert len({t.provenance.purified for t in group[2:]}) == 2, "some are and some are not"


def test_p_does_not_depend_on_the_order_in_which_rollouts_end():
    there, back = (grouped(Probes(2), lambda index: index % 2 == 0, reverse=it) for it in (False, True))
    assert there == back


def test_without_probes_nothing_is_different():
    assert [t.id for t in grouped(None, lambda _: True)] == [f"t/1/{n}" for n in range(8)]
    assert all(t.provenance.purified for t in grouped(None, lambda _: True))
