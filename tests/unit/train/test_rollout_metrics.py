"""What a step's rollouts say, counted by hand."""

from dataclasses import replace
from functools import partial

import pytest

from playing import call, play, run_python
from retcon.core.codec import from_dict, to_dict
from retcon.core.types import Branch, Observation, Segment, ToolCall, Trajectory, Turn
from retcon.engine.local.scheduler import EngineStats
from retcon.purify.saar import Saar
from retcon.purify.splice import purify
from retcon.rollout.context import RolloutLimits
from retcon.tools.scripted import ScriptedSessions
from retcon.train.algorithms.dapo import Dapo
from retcon.train.objective.shaping import shaped_rewards
from retcon.train.rollouts import staleness
from retcon.train.watch import branch_metrics, rollout_metrics


def attempt(code, status, *, start):
    text = call(code)
    made = ToolCall("0", "python", {"code": code}, char=0, start=start)
    return Turn((Segment("sampled", text, tuple(text.encode())),), (made,), (Observation("0", "", status),), "call")


def test_turns_without_a_checkpoint_are_counted_whether_they_failed_or_not():
    tool = ScriptedSessions(run_python, refuses=lambda state: "x is set" if state.get("x") else "")
    replies = [call("x = 1; oops"), call("x"), call("oops"), call("x = 0"), call("oops"), call("y = 1"), "42"]
    made = replace(play(replies, tool=tool, repair=Saar(attempts=1)).trajectory, reward=1.0)
    assert made == from_dict(to_dict(made))
    metrics = rollout_metrics([[made]])
    assert (metrics["no_checkpoint"], metrics["unrepaired"]) == (4, 2)


def test_repairs_are_counted_by_decision_and_those_that_could_not_be_cut():
    outcomes = {"print(x)": "error", "fail()": "error"}
    shallow = play([call("print(x)"), call("print(y)"), "42"], outcomes, repair=Saar()).trajectory
    unrepaired = play([call("print(x)"), call("fail()"), "42"], outcomes, repair=Saar(attempts=1)).trajectory
    uncut = purify([attempt("print(x)", "error", start=None), attempt("print(y)", "ok", start=0)], 0.5)
    unaligned = replace(shallow, turns=(uncut,))
    group = [replace(t, reward=r) for t, r in ((shallow, 1.0), (unrepaired, 0.0), (unaligned, 1.0))]
    metrics = rollout_metrics([group, [replace(shallow, reward=None)]])
    counted = {name: metrics[name] for name in ("shallow", "deep", "unrepaired", "answered", "unaligned")}
    assert counted == {"shallow": 2, "deep": 1, "unrepaired": 1, "answered": 0, "unaligned": 1}
    assert (metrics["rollouts"], metrics["infrastructure"]) == (4, 1)
    assert metrics["raw_failures"] == pytest.approx((1 + 2 + 1) / 3)
    assert metrics["failures"] == pytest.approx((0 + 1 + 0) / 3)
    assert metrics["raw_calls"] == pytest.approx((2 + 2 + 2) / 3)
    assert metrics["call_failure_rate"] == pytest.approx(4 / 6)
    assert metrics["pass_rate"] == pytest.approx(2 / 3)
    everything = [*group, shallow]  # the one without a reward was sampled as well
    assert metrics["sampled_tokens"] == sum(t.sampled_tokens for t in everything)
    learnt = [s for t in group for s in t.segments if s.kind in ("sampled", "spliced")]
    spliced = sum(len(s.ids) for s in learnt if s.kind == "spliced")
    assert metrics["spliced_share"] == pytest.approx(spliced / sum(len(s.ids) for s in learnt))


def test_a_rollout_that_faults_took_changes_no_mean():
    """It was made, and sampled: what is counted in all has it."""
    outcomes = {"print(x)": "error"}
    right = play([call("print(x)"), call("print(y)"), "42"], outcomes, repair=Saar()).trajectory
    wrong = play([call("print(z)"), "It is 42, as I said."], outcomes).trajectory
    group = [replace(right, reward=1.0), replace(wrong, reward=0.0)]
    lost = play([call("print(x)"), call("print(x)"), call("print(y)"), "42"], outcomes, repair=Saar()).trajectory
    bare, found = rollout_metrics([group]), rollout_metrics([[*group, lost]])
    in_all = {"total_tokens", "sampled_tokens", "rollouts", "infrastructure", "purified", "shallow"}
    assert {name for name, value in found.items() if value != bare[name]} == in_all
    assert found["total_tokens"] == sum(len(s.ids) for t in (*group, lost) for s in t.segments)


def test_lengths_turns_and_rewards_are_those_of_a_rollout_on_average():
    outcomes = {"print(x)": "error"}
    long = play([call("print(x)"), call("print(y)"), "42"], outcomes, repair=Saar()).trajectory
    short = play(["It is 41."]).trajectory
    armed = replace(long, provenance=replace(long.provenance, purified=True))
    bare = replace(short, provenance=replace(short.provenance, purified=False))
    metrics = rollout_metrics([[replace(armed, reward=1.0), replace(bare, reward=-0.5)], [replace(bare, reward=0.0)]])
    prompts, whole = ([sum(len(s.ids) for s in part) for part in parts] for parts in (
        [t.prompt for t in (long, short, short)], [t.segments for t in (long, short, short)]
    ))  # fmt: skip
    assert metrics["prompt_tokens"] == pytest.approx(sum(prompts) / 3)
    assert metrics["response_tokens"] == pytest.approx((sum(whole) - sum(prompts)) / 3)
    assert metrics["total_tokens"] == sum(whole)
    assert (metrics["turns"], metrics["purified"]) == ((2 + 1 + 1) / 3, 1)
    assert (metrics["reward"], metrics["pass_rate"]) == (pytest.approx(0.5 / 3), pytest.approx(1 / 3))


def test_rollouts_that_ended_for_want_of_tokens_or_turns_are_cut_off():
    one = replace(play(["42"]).trajectory, reward=0.0)
    ends = ("length", "turns", "answer", "answer", "answer")
    assert rollout_metrics([[replace(one, stop=stop) for stop in ends]])["cut_off"] == 2 / 5


def test_of_one_the_share_is_all_of_it_and_of_none_nothing():
    one = replace(play([call("print(x)"), "42"], {"print(x)": "error"}).trajectory, reward=0.0)
    found = rollout_metrics([[one]])
    assert (found["raw_calls"], found["call_failure_rate"], found["first_try_failure_rate"]) == (1.0, 1.0, 1.0)
    spliced = replace(one, turns=(Turn((Segment("spliced", "x", (7,), (-1.0,)),)),))
    assert rollout_metrics([[spliced]])["spliced_share"] == 1.0
    lost = rollout_metrics([[replace(one, reward=None, provenance=replace(one.provenance, purified=False))]])
    assert {name for name, value in lost.items() if value} == {
        "total_tokens", "sampled_tokens", "rollouts", "infrastructure"
    }  # fmt: skip


def test_where_nothing_was_tried_nothing_is_known_of_it():
    """A policy that no longer calls its tool would seem to have no failures."""
    one = replace(play(["42"]).trajectory, reward=1.0)
    found = rollout_metrics([[one], [one]])
    unknown = {"reward_std", "same_reward", "call_failure_rate", "first_try_failure_rate"}
    assert {name for name, value in found.items() if value is None} == unknown
    assert (found["first_tries"], found["raw_calls"], found["raw_failures"]) == (0, 0.0, 0.0)
    pair = rollout_metrics([[one, replace(one, reward=0.0)]])
    assert (pair["same_reward"], pair["reward_std"]) == (0.0, pytest.approx(0.5**0.5))


def test_first_tries_are_counted_in_all_and_rewards_spread_within_groups():
    one = play([call("print(1)"), call("print(2)"), call("print(x)"), "42"], {"print(x)": "error"}).trajectory
    metrics = rollout_metrics(
        [[replace(one, reward=r) for r in rewards] for rewards in ((0.0, 1.0), (0.0, 3.0), (9.0,))]
    )
    assert (metrics["first_tries"], metrics["first_try_failures"]) == (5 * 3, 5)
    assert metrics["first_try_failure_rate"] == pytest.approx(1 / 3)
    assert metrics["reward_std"] == pytest.approx((1 + 3) / 2**0.5 / 2)


def test_groups_that_their_lengths_tell_apart_teach_something():
    short, long = (play([text]).trajectory for text in ("42", "It is 42, as I said."))
    group = [replace(t, reward=1.0) for t in (short, long)]
    limit = sum(len(s.ids) for s in long.segments)
    shaped = partial(shaped_rewards, config=Dapo(overlong_buffer=10), limits=RolloutLimits(limit, 1))
    assert rollout_metrics([group])["same_reward"] == 1
    found = rollout_metrics([group], shaped)
    assert (found["same_reward"], found["reward"], found["reward_std"]) == (0, 1, 0), "rewards are told as they came"
    assert rollout_metrics([[group[0], group[0]]], shaped)["same_reward"] == 1


def test_a_rollout_is_partial_where_weights_of_several_steps_have_sampled_it():
    def sampled(*versions: int) -> Trajectory:
        ids = tuple(range(len(versions)))
        written = Segment("sampled", "x", ids, tuple(-1.0 for _ in ids), versions)
        return Trajectory("t/0", "t", (Segment("prompt", "?", (0,)),), (Turn((written,)),), reward=1.0)

    found = staleness([[sampled(3, 3), sampled(2, 3)], [sampled(3), sampled()]], step=4)
    assert found == {"staleness_mean": 0.2, "staleness_max": 1, "partial_rollouts": 0.25}
    assert staleness([[sampled(2, 3)]], step=4)["partial_rollouts"] == 1.0
    assert staleness([[sampled(2)]], step=4) == {"staleness_mean": 1.0, "staleness_max": 1, "partial_rollouts": 0.0}
    thirds = {"staleness_mean": 0.3333, "staleness_max": 1, "partial_rollouts": 0.3333}
    assert staleness([[sampled(2, 3), sampled(3), sampled()]], step=4) == thirds
    ageless = {"staleness_mean": None, "staleness_max": None}
    assert staleness([[sampled()]], step=4) == {**ageless, "partial_rollouts": 0.0}, "of no token there is no age"
    assert staleness([], step=4) == {**ageless, "partial_rollouts": None}


def test_an_engine_that_has_computed_nothing_in_a_step_tells_no_rates():
    before = EngineStats(steps=4, rows=6, seconds=3.0, starved=1.0)
    idle, busy = replace(before).since(before).metrics(), before.since(EngineStats()).metrics()
    assert (idle["engine_utilisation"], idle["engine_batch"], idle["engine_prefilled"]) == (None, None, 0)
    assert (busy["engine_utilisation"], busy["engine_batch"]) == (0.75, 1.5)


def test_branches_are_counted_and_what_they_share():
    root = replace(play([call("print(1)"), call("print(2)"), "42"]).trajectory, reward=1.0)
    turns = tuple(replace(turn, entropy=entropy) for turn, entropy in zip(root.turns, (1.0, 2.0, 4.0), strict=True))
    root = replace(root, turns=turns)
    left = Branch(root.id, root.id, 2, 50, 4.0, 3.0)
    own = (replace(turns[2], entropy=6.0),)
    two = [replace(root, id=f"b{n}", turns=(*turns[:2], *own), branch=left) for n in range(2)]
    surprised = replace(left, parent="b0", measure="surprisal", uncertainty=7.0, rise=5.0)
    three = replace(root, id="b2", turns=(*turns[:2], *own), branch=surprised)
    found = branch_metrics([[root, *two, three]])
    assert (found["branches"], found["branch_points"]) == (3, 2)
    assert (found["branch_entropy"], found["branch_entropy_rise"]) == (4.0, 3.0)
    assert (found["branch_surprisal"], found["branch_surprisal_rise"]) == (7.0, 5.0)
    assert found["entropy_first"] == 1.0
    assert found["entropy_after_tools"] == pytest.approx((2 + 4 + 6 + 6 + 6) / 5), "what is shared is counted once"
    shared = (*root.prompt, *(s for turn in turns[:2] for s in turn.segments))
    assert found["branch_shared_tokens"] == 3 * sum(len(s.ids) for s in shared)
    assert found["branch_shared_calls"] == 6
    assert rollout_metrics([[root, *two]])["sampled_tokens"] == root.sampled_tokens + 2 * len(own[0].segments[0].ids)
    alone = replace(root, id="r", turns=tuple(replace(turn, entropy=3.0) for turn in root.turns))
    assert branch_metrics([[root, *two], [alone]])["entropy_first"] == 2.0, "of every turn that was sampled first, once"


def test_points_of_one_rollout_are_told_apart_and_a_repair_that_is_shared_is_counted_once():
    said = [call("print(x)"), call("print(1)"), call("print(2)"), "42"]
    root = replace(play(said, {"print(x)": "error"}, repair=Saar()).trajectory, reward=1.0)
    group = [root, *(replace(root, id=f"b{n}", branch=Branch(root.id, root.id, n, 50, 4.0, 3.0)) for n in (1, 2))]
    found, metrics = branch_metrics([group]), rollout_metrics([group])
    assert (found["branches"], found["branch_points"]) == (2, 2)
    assert found["branch_shared_calls"] == 2 + (2 + 1), "the failed call and its fix, then one more"
    assert (metrics["shallow"], metrics["turns"]) == (1, 3)


def test_nothing_is_known_of_where_nothing_branched():
    found = branch_metrics([[replace(play(["42"]).trajectory, reward=1.0)]])
    assert found["branches"] == 0
    assert found["branch_entropy"] is None
    assert found["entropy_after_tools"] is None
