"""What a step's rollouts say, counted by hand."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from playing import call, play, run_python
from retcon.config.schema import SECTIONS, Recipe
from retcon.config.section import PluginSection, Section
from retcon.core.codec import from_dict, to_dict
from retcon.core.errors import DriftWarning, IdleWarning
from retcon.core.types import Branch, Observation, Sample, Segment, ToolCall, Trajectory, Turn
from retcon.engine.local.scheduler import EngineStats
from retcon.purify.saar import Saar
from retcon.purify.splice import purify
from retcon.rollout.context import RolloutLimits
from retcon.runs.metrics import idle_mechanisms
from retcon.tools.scripted import ScriptedSessions
from retcon.train.algorithms.dapo import Dapo
from retcon.train.algorithms.reinforce_pp import ReinforcePP
from retcon.train.objective.shaping import overlong_metrics, shaped_rewards
from retcon.train.prompts import StepGroups, selection_metrics, with_selections
from retcon.train.rollouts import staleness
from retcon.train.watch import (
    SIGMAS,
    WINDOW,
    Drift,
    RunHealth,
    branch_metrics,
    measure_drift,
    rollout_metrics,
    splice_metrics,
)


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


def test_points_of_one_rollout_are_distinguished_and_a_repair_that_is_shared_is_counted_once():
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


# What a step's metrics say of spliced tokens.


def sample(advantage: float, *, spliced: int, weights: tuple[float | None, ...] | None = None) -> Sample:
    """A prompt's token, a sampled one, and spliced ones, the last of which is not learnt."""
    count = 2 + spliced
    mask = (0, 1, *[1] * (spliced - 1), 0) if spliced else (0, 1)
    return Sample(
        tuple(range(count)), mask, (None, *[-1.0] * (count - 1)), (0, 0, *[1] * spliced), (advantage,) * count, weights
    )


def test_what_is_not_spliced_says_nothing():
    assert splice_metrics([sample(1.0, spliced=0)], Dapo()) == {
        "spliced_tokens": 0, "spliced_positive": None, "spliced_negative": None, "spliced_weight": None
    }  # fmt: skip


def test_the_mean_weight_is_what_a_splice_weighs():
    weighed = sample(1.0, spliced=3, weights=(None, None, 2.0, 0.5, 9.0))
    assert splice_metrics([weighed], Dapo())["spliced_weight"] == pytest.approx(1.25)


def test_where_no_advantage_is_known_splices_are_pushed_nowhere():
    found = splice_metrics([replace(sample(1.0, spliced=4), advantages=None)], Dapo())
    assert (found["spliced_tokens"], found["spliced_positive"], found["spliced_negative"]) == (3, 0.0, 0.0)


def test_weights_that_were_cut_are_counted_where_there_are_weights():
    weighed = sample(1.0, spliced=5, weights=(None, None, 2.0, 0.5, 0.0, 2.0, 2.0))
    truncated = Dapo(splice_weight="truncated", splice_weight_cap=2.0)
    assert splice_metrics([weighed], truncated)["splice_weights_cut"] == 2, "the last one is not learnt"
    assert splice_metrics([weighed], Dapo(splice_weight="accept"))["splice_weights_cut"] == 1
    assert splice_metrics([sample(1.0, spliced=0)], truncated)["splice_weights_cut"] == 0


# Which mechanisms of a recipe never acted, by the metrics that count them, and what becomes of each rollout.


PAGE = Path(__file__).parents[3] / "docs" / "training" / "tracking.md"


def recipe(**sections: Any) -> Recipe:
    return Recipe.model_validate(sections)


def kinds() -> list[tuple[str, type[Section]]]:
    """Every section by its name, in each of its kinds."""
    found: list[tuple[str, type[Section]]] = []
    for name, section in SECTIONS.items():
        kinds = list(map(section.kinds.find, section.kinds.names)) if issubclass(section, PluginSection) else []
        found += [(name, kind) for kind in kinds or [section]]
    return found


def test_mechanisms_are_of_keys_and_documented_with_their_metrics() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    declared = {(name, key, *metrics) for name, kind in kinds() for key, (_, *metrics) in kind.mechanisms.items()}
    assert len(declared) > 15
    for name, key, *metrics in declared:
        assert any(key in kind.model_fields for section, kind in kinds() if section == name)
        row = " ".join(line for line in rows if line.startswith(f"| `{name}.{key}`"))
        assert all(f"`{metric}`" in row for metric in metrics), (name, key, row)


def test_a_mechanism_that_never_acted_is_named_with_its_steps() -> None:
    one = recipe(rl={"dual_clip": 3.0}, select={"dynamic": True})
    idle = {"dual_clip_tokens": 0, "groups_flat": 0, "extra_groups": 0}
    assert idle_mechanisms(one, [idle, idle]) == [
        "select.dynamic=true never acted in 2 steps: the rewards of every group differed",
        "rl.dual_clip=3.0 never acted in 2 steps: no token of negative advantage had a ratio above it",
    ]
    (line,) = idle_mechanisms(one, [idle, {**idle, "dual_clip_tokens": 1, "groups_flat": None}])
    assert line.startswith("select.dynamic=true never acted in 2 steps")
    assert idle_mechanisms(one, [{**idle, "dual_clip_tokens": 1, "extra_groups": 2}]) == []
    assert idle_mechanisms(one, [{"loss": 0.5}]) == [], "an older version counted nothing"


def test_a_mechanism_of_one_stage_is_judged_by_the_steps_of_that_stage() -> None:
    stages = [{"name": "one", "steps": 1}, {"name": "two", "steps": 2, "rl": {"mask_negative_spliced": True}}]
    staged = recipe(rl={"steps": 3}, stages=stages)
    lines = [{"stage": stage, "spliced_negative": share} for stage, share in ((1, 0.5), (2, 0.0), (2, None))]
    assert idle_mechanisms(staged, lines) == [
        "rl.mask_negative_spliced=true never acted in 2 steps: no spliced token had a negative advantage"
    ]
    assert idle_mechanisms(staged, [*lines, {"stage": 2, "spliced_negative": 0.1}]) == []


def rollout(name: str, reward: float | None, stop: Any = "answer", *, answers: int = 1) -> Trajectory:
    """A right one has the larger penalty the more answers it gives."""
    turn = Turn((Segment("sampled", r"\boxed{1}" * answers, (1,) * 10, (-1.0,) * 10),), stop="answer")
    return Trajectory(name, "t", (Segment("prompt", "p", (1,)),), (turn,), reward, stop, answer="1")


def test_every_rollout_says_what_became_of_it() -> None:
    on = recipe(rl={"group": 2, "truncated": "mask"}, select={"kind": "roc", "dynamic": True})
    clean, tied, untidy = rollout("clean", 1.0), rollout("tied", 1.0), rollout("untidy", 1.0, answers=2)
    wrong, other = rollout("wrong", -1.0), rollout("other", -1.0)
    lost, cut = rollout("lost", None, "infrastructure"), rollout("cut", -1.0, "length")
    drawn = StepGroups()
    drawn.add([clean, tied, untidy, wrong, other, lost, cut], [clean, wrong])
    drawn.add([clean, tied], [clean, tied])
    drawn.add([clean, lost], [])
    marks = [(t.id, t.selection) for t in with_selections(on, drawn)]
    assert marks == [
        ("clean", "kept"), ("tied", "drawn"), ("untidy", "penalty"), ("wrong", "kept"), ("other", "wrong"),
        ("lost", "infrastructure"), ("cut", "masked"), ("clean", "flat"), ("tied", "flat"), ("clean", "few"),
        ("lost", "infrastructure"),
    ]  # fmt: skip
    line = selection_metrics(on, drawn)
    assert (line["kept"], line["kept_right"], line["groups_drawn"], line["groups_kept"]) == (2, 1, 3, 1)
    assert [line[f"dropped_{reason}"] for reason in ("penalty", "drawn", "wrong")] == [1, 1, 1]
    assert line["truncated_masked"] == 1
    assert "void_masked" not in line


def test_a_selection_without_reasons_of_its_own_drops_by_selection() -> None:
    drawn = StepGroups()
    drawn.add([rollout("a", 1.0), rollout("b", -1.0), rollout("c", -1.0)], [rollout("a", 1.0), rollout("b", -1.0)])
    plain = recipe(rl={"group": 2})
    assert [t.selection for t in with_selections(plain, drawn)] == ["kept", "kept", "selection"]
    assert not [name for name in selection_metrics(plain, drawn) if name.startswith("dropped_")]


def test_void_turns_that_are_masked_are_counted() -> None:
    void = Trajectory("void", "t", (), (Turn((), stop="length"),), -1.0, "length")
    drawn = StepGroups()
    drawn.add([rollout("a", 1.0), rollout("b", -1.0), void], [rollout("a", 1.0), rollout("b", -1.0)])
    assert selection_metrics(recipe(rl={"void_turns": "mask"}), drawn)["void_masked"] == 1
    assert "void_masked" not in selection_metrics(recipe(), drawn)


@pytest.mark.parametrize(
    ("shaped", "found"),
    [([1.0, -1.0], (0, None)), ([1.0, -1.5], (1, 0.5)), ([0.75, -2.0], (2, 0.625))],
    ids=["none", "one", "two"],
)
def test_overlong_rollouts_are_counted_with_what_they_lost(shaped: list[float], found: tuple[int, float]) -> None:
    line = overlong_metrics([[rollout("a", 1.0), rollout("b", -1.0)]], [shaped])
    assert (line["overlong_rollouts"], line["overlong_penalty"]) == found


# When a run is over before its steps are, and when first tries have got worse.


TRIES = 50


def steps(*rates: float) -> list[dict[str, float | None]]:
    """WINDOW steps of each first-try failure rate."""
    return [{"first_tries": TRIES, "first_try_failures": TRIES * rate} for rate in rates for _ in range(WINDOW)]


def test_the_last_window_is_compared_with_the_best_before() -> None:
    found = measure_drift(steps(0.5, 0.2, 0.3))
    assert found is not None
    assert (found.best, found.now) == (pytest.approx(0.2), pytest.approx(0.3))
    # of 500 and 500 tries, a quarter of which fail: .1 / √(.25 × .75 × 2 / 500)
    assert found.sigmas == pytest.approx(3.6515, abs=1e-3)
    assert found.rise == pytest.approx(0.1)


def test_windows_that_overlap_are_not_compared() -> None:
    assert measure_drift(steps(0.2)[:-1] + steps(0.4)) is None
    assert measure_drift(steps(0.2, 0.4)) is not None
    assert measure_drift(steps(0.0, 0.0)) == Drift(0.0, 0.0, 0.0), "no chance at all, and no division by it"


def test_a_rise_must_be_large_and_beyond_chance() -> None:
    large = measure_drift(steps(0.2, 0.4))
    assert large is not None
    assert large.alarming(0.05)
    assert not large.alarming(0.25)
    assert not large.alarming(0.0)  # off
    few = measure_drift([{"first_tries": 1, "first_try_failures": 0.6 * (n >= WINDOW)} for n in range(2 * WINDOW)])
    assert few is not None
    assert few.rise == pytest.approx(0.6)
    assert not few.alarming(0.05)  # 6 of 10 after none: 2.9 standard errors
    assert Drift(0.25, 0.5, SIGMAS).alarming(0.25), "both bounds belong to it"


def test_steps_without_tries_say_nothing() -> None:
    assert measure_drift([{}] * (2 * WINDOW)) is None
    assert measure_drift([*steps(0.2), *([{"first_tries": 0, "first_try_failures": 0}] * WINDOW)]) is None


def test_the_alarm_is_reported_once_and_stays_in_the_metrics() -> None:
    course, alarms = RunHealth(Dapo(), []), []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for line in steps(0.1, 0.5, 0.5):
            found = course.drift_after(line)
            alarms.append(found["first_try_alarm"])
            course.add({**line, **found})
    assert [w.category for w in told] == [DriftWarning]
    assert "first tries failed in the last 10 steps, after 10.0% at best" in str(told[0].message)
    assert str(told[0].message).startswith(f"step {alarms.index(1) + 1}: ")
    assert sum(alarms) > WINDOW
    assert alarms == sorted(alarms)
    assert found["first_try_drift"] == pytest.approx(0.4)


def test_a_run_that_goes_on_reckons_with_what_earlier_sessions_saw() -> None:
    lines = steps(0.1, 0.5)
    whole = RunHealth(Dapo(), [])
    for line in lines[:-1]:
        whole.add(line)
    with pytest.warns(DriftWarning):
        assert RunHealth(Dapo(), lines[:-1]).drift_after(lines[-1]) == whole.drift_after(lines[-1])


def test_other_tasks_and_groups_of_one_are_no_idling() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", IdleWarning)
        course = RunHealth(Dapo(), [{"same_reward": 1.0}] * (WINDOW - 1))
        course.data_since(5)
        course.tell_idling({"same_reward": 1.0})
        alone = RunHealth(Dapo(), [{"same_reward": None}] * (WINDOW - 1))
        alone.tell_idling({"same_reward": None})


def test_where_groups_are_compared_with_each_other_there_is_no_idling() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", IdleWarning)
        course = RunHealth(ReinforcePP(baseline="none"), [{"same_reward": 1.0, "pass_rate": 0.5}] * (WINDOW - 1))
        course.tell_idling({"same_reward": 1.0, "pass_rate": 0.5})
    alone, across = ReinforcePP(), ReinforcePP(baseline="none")
    for section, passed in ((alone, 0.5), (across, 0.0), (across, 1.0)):
        course = RunHealth(section, [{"same_reward": 1.0, "pass_rate": passed}] * (WINDOW - 1))
        with pytest.warns(IdleWarning):
            course.tell_idling({"same_reward": 1.0, "pass_rate": passed})


def test_nineteen_groups_in_twenty_without_an_advantage_are_enough_to_say_so() -> None:
    """And where half of the rollouts pass it is no cold start that is lacking."""
    course = RunHealth(Dapo(), [{"same_reward": 1.0, "pass_rate": 0.5}] * (WINDOW - 1))
    with pytest.warns(IdleWarning, match="in 95% of the groups") as told:
        course.tell_idling({"same_reward": 0.5, "pass_rate": 0.5})
    assert "cold start" not in str(told[0].message)


@pytest.mark.parametrize(
    ("sampled", "cpu_s", "ends"), [(0, 9.9, False), (None, 9.9, False), (1, 0.0, True), (0, 10.0, True)]
)
def test_whether_a_run_ends_with_a_step_is_known_before_its_line(sampled: int | None, cpu_s: float, ends: bool) -> None:
    """By what the steps before have sampled, and lines without that figure say nothing."""
    section = Dapo(max_sampled_tokens=100, max_cpu_seconds=10)
    course = RunHealth(section, [{"sampled_tokens": 90}, {}])
    course.add({"sampled_tokens": 9})
    course.add({})
    assert course.ends_with({} if sampled is None else {"sampled_tokens": sampled}, cpu_s) == ends
    assert not course.over
    assert not any(RunHealth(Dapo(max_cpu_seconds=0.5), lines).over for lines in ([], [{}]))


def test_a_run_ends_after_the_step_in_which_its_tokens_are_spent() -> None:
    course = RunHealth(Dapo(max_sampled_tokens=100), [{"sampled_tokens": 60}])
    assert not course.over
    course.add({"sampled_tokens": 40})
    assert course.over
    assert RunHealth(Dapo(max_sampled_tokens=100), [{"sampled_tokens": 60}, {"sampled_tokens": 41}]).over
    assert not RunHealth(Dapo(), [{"sampled_tokens": 1e9, "cpu_s": 1e9}]).over


def test_a_run_ends_after_the_step_in_which_its_seconds_are_spent() -> None:
    section = Dapo(max_cpu_seconds=10)
    assert not RunHealth(section, []).over
    assert not RunHealth(section, [{"cpu_s": 6.0}, {"cpu_s": 9.9}]).over
    assert RunHealth(section, [{"cpu_s": 6.0}, {"cpu_s": 10.0}]).over
