"""The audit by replay: counterfactuals at a failed call, over the scripted engine, and what rules of credit get."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from playing import LIMITS, call, run_python
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.core.errors import CheckpointError, RecipeError, SandboxUnavailable
from retcon.core.types import Trajectory
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.evaluate.audit import (
    RULES,
    Audit,
    AuditJob,
    Count,
    FailedCall,
    ReplayCounts,
    Size,
    _claim_dir,
    audit,
    chances,
    count_replays,
    failed_calls,
    over_tasks,
    replay,
    sample_calls,
    verdict,
)
from retcon.purify.saar import Saar
from retcon.report.tables import audit_sheets
from retcon.rollout.context import RolloutContext
from retcon.rollout.group import rollout_groups
from retcon.store import jsonl
from retcon.store.whole import write_json
from retcon.tasks.types import Task
from retcon.tools.scripted import ScriptedSessions, ScriptedTool
from retcon.train.objective.advantage import grpo

BAD, GOOD = "print(6 * valu)", "print(6 * value)"
TASKS = [Task("a", "What is 6 times 7?", "42"), Task("b", "What is 7 times 6?", "42")]


def reply(id: str, text: str, _n: int) -> str:
    """First tries of even number fail; a second one works; who has seen a failure answers wrongly in the end."""
    if GOOD in text:
        return "It is 41." if BAD in text else "It is 42."
    return call(GOOD if BAD in text or int(id.rpartition("/")[2]) % 2 else BAD, "So. ")


def grade(task: Task, trajectory: Trajectory) -> Trajectory:
    return replace(trajectory, reward=1.0 if task.answer in trajectory.turns[-1].text else -1.0)


def credit(groups):
    return [grpo([t.reward for t in group]) for group in groups]


def by_recipe(recipe, groups):
    return recipe.rl.advantages_of_step([[t.reward for t in group] for group in groups])


def context(tool=None, replies=reply) -> RolloutContext:
    tokenizer = ByteTokenizer()
    scripted = ScriptedTool(lambda code: ("", "error" if code == BAD else "ok", None))
    return RolloutContext(ScriptedEngine(tokenizer, replies), Chat(tokenizer), {"python": tool or scripted}, LIMITS)


def rolled(context: RolloutContext, **changes) -> list[list[Trajectory]]:
    armed = replace(context, **changes)
    return asyncio.run(rollout_groups(TASKS, armed, count=4, seed=1, step=0, grade=grade))


def found(context: RolloutContext, **how) -> list[FailedCall]:
    return failed_calls(
        rolled(context), rolled(context, repair=Saar()), credit, **{"max_turns": LIMITS.max_turns} | how
    )


def replayed(call: FailedCall, context: RolloutContext, times: int = 4) -> list[Trajectory]:
    task = next(task for task in TASKS if task.id == call.raw.task)
    return asyncio.run(replay(call, task, context, times=times, seed=1, grade=grade)).made


def test_states_are_first_failures_with_the_fix_that_stands_in_their_place():
    calls = found(context())
    assert [call.id for call in calls] == ["a/0/0", "a/0/2", "b/0/0", "b/0/2"]
    for one in calls:
        assert (one.number, one.before, one.failure.calls[0].code) == (0, (), BAD)
        assert one.fix.abandoned[0].segments == one.failure.segments
        assert one.fix.text.startswith("So. ")
        assert one.advantage < 0
        assert one.fix_advantage == 0  # with SAAR all of the group are right


def test_a_failure_that_nothing_follows_is_no_state():
    assert found(context(), max_turns=1) == []


def test_which_are_drawn_depends_on_the_seed_and_their_ids_alone():
    calls = found(context())
    assert sample_calls(calls, 2, seed=5) == sample_calls(calls[::-1], 2, seed=5)
    assert len({tuple(c.id for c in sample_calls(calls, 2, seed=n)) for n in range(9)}) > 1


def test_counterfactuals_begin_where_they_say():
    shared = context()
    (first, *_) = found(shared)
    made = replayed(first, shared, times=2)
    assert [t.id for t in made] == [f"a/0/0/{way}/{n}" for way in ("fresh", "raw", "fixed") for n in (0, 1)]
    fresh, again, raw, _, fixed, _ = made
    assert (fresh.turns[0].calls[0].code, again.turns[0].calls[0].code) == (BAD, GOOD)  # sampled anew
    assert raw.turns[0] == first.failure
    assert fixed.turns[0] == first.fix
    assert [t.reward for t in made] == [-1.0, 1.0, -1.0, -1.0, 1.0, 1.0]
    assert all(turn.repair is None for t in (fresh, raw) for turn in t.turns)


def test_the_same_replays_twice_are_the_same():
    calls = found(context())
    assert replayed(calls[1], context()) == replayed(calls[1], context())


def test_where_tools_keep_state_it_is_rebuilt():
    cells = ["a = 5", "a; oops", "a"]

    def cell(id: str, text: str, n: int) -> str:
        done = text.count("<|im_start|>tool")
        return call(cells[done]) if done < 3 else "It is 42."

    shared = context(ScriptedSessions(run_python), cell)
    (first, *_) = found(shared)
    raw = [t for t in replayed(first, shared, times=1) if "/raw/" in t.id]
    assert [o.text for t in raw for turn in t.turns for o in turn.observations][-1] == "5"


class Opened(ScriptedSessions):
    """Says for which rollouts it was opened."""

    def __init__(self) -> None:
        super().__init__(run_python)
        self.rollouts: list[str] = []

    async def open(self, trajectory: str):
        self.rollouts.append(trajectory)
        return await super().open(trajectory)


def test_a_tool_that_goes_by_the_rollout_is_opened_as_for_the_rollout_itself():
    tool = Opened()
    shared = context(tool, lambda id, text, n: "It is 42." if "tool" in text else call("oops"))
    (first, *_) = found(shared)
    tool.rollouts.clear()
    replayed(first, shared, times=2)
    assert set(tool.rollouts) == {first.id}


def clocked() -> RolloutContext:
    """Each rollout asks a clock, fails and is right in the end; who goes on from the clock may also answer at once, as
    rollouts of odd number do. Those of the second problem, which fail at once, have no clock."""
    times = iter(range(1000))

    def cell(id: str, text: str, n: int) -> str:
        if "tool" not in text and id.startswith("a/"):
            return call("clock")
        odd = "/fresh/" in id and int(id.rpartition("/")[2]) % 2
        return "It is 42." if "oops" in text or odd else call("oops")

    def changing(code, state):
        return ("x", "error", None) if code == "oops" else (str(next(times)), "ok", None)

    return context(ScriptedSessions(changing), cell)


def test_a_state_that_cannot_be_rebuilt_is_a_fault_whatever_the_replay_does():
    shared = clocked()
    (first, *_) = found(shared)
    made = replayed(first, shared)
    assert {t.stop for t in made} == {"infrastructure"}
    assert count_replays(first, made).lost == len(made)
    assert "its state cannot be rebuilt" in shared.faults.first


def test_a_state_that_cannot_be_rebuilt_is_left_out_and_ends_no_audit(tmp_path):
    found, kept = audited(tmp_path / "audit", calls=8, made_of=clocked())
    by_task = {one.task: one for one in found.calls}
    assert (by_task["a"].fresh, by_task["a"].raw, by_task["a"].of_failure) == (Count(0, 0), Count(0, 0), None)
    assert (by_task["b"].fresh, by_task["b"].raw, by_task["b"].of_failure) == (Count(2, 2), Count(2, 2), 0.0)
    assert found.lost == 4 * 2 * 2
    assert (found.verdicts[0].states, found.verdicts[0].even) == (0, 4)
    assert kept.told[-1] == (8, 8)


def test_other_faults_in_all_replays_of_a_failed_call_end_the_audit(tmp_path):
    def gone(id, text, n):
        if "/raw/" in id or "/fresh/" in id or "/fixed/" in id:
            raise ConnectionError("gone")
        return reply(id, text, n)

    with pytest.raises(SandboxUnavailable, match=r"faults took all 6 replays of rollout .*gone; what was replayed"):
        audited(tmp_path / "audit", replies=gone)
    assert not list((tmp_path / "audit/replays").iterdir())


def one(task: str = "a", **changes) -> ReplayCounts:
    """Half of fresh tries pass, none after the failure, all after the fix; working tries pass."""
    seen = {
        "fresh": Count(4, 2), "raw": Count(4, 0), "fixed": Count(4, 4), "worked": Count(2, 2), "failed": Count(2, 0),
        "advantage": -1.0, "fix_advantage": 1.0,
    }  # fmt: skip
    return ReplayCounts(id=f"{task}/0/0", task=task, turn=0, lost=0, **{**seen, **changes})


def test_replays_are_counted_by_where_they_begin_and_what_the_fresh_try_did():
    shared = context()
    (first, *_) = found(shared)
    about = count_replays(first, replayed(first, shared))
    assert (about.fresh, about.raw, about.fixed) == (Count(4, 2), Count(4, 0), Count(4, 4))
    assert (about.worked, about.failed) == (Count(2, 2), Count(2, 0))
    assert (about.of_failure, about.of_fix, about.of_working) == (-0.5, 0.5, 1.0)


@pytest.mark.parametrize(
    ("rule", "seen", "counts", "gain"),
    [
        (0, one(), (1, 1, 0, 0), 0.5),
        (0, one(advantage=0.7), (1, 0, 1, 0), -0.5),
        (0, one(advantage=0.0), (1, 0, 0, 1), 0.0),
        (0, one(raw=Count(4, 2)), (0, 0, 0, 0), 0.0),  # the failure made no difference
        (1, one(), (1, 0, 0, 1), 0.0),
        (2, one(), (1, 1, 0, 0), 0.5),
        (2, one(raw=Count(4, 4)), (1, 0, 1, 0), -0.5),
        (3, one(advantage=1.0), (1, 1, 0, 0), 0.5),
        (3, one(advantage=-1.0), (1, 1, 0, 0), 0.5),
        (3, one(advantage=1.0, raw=Count(4, 4)), (1, 0, 1, 0), -0.5),
        (3, one(advantage=0.0), (1, 0, 0, 1), 0.0),
        (4, one(), (1, 1, 0, 0), 0.5),
        (4, one(fix_advantage=-1.0), (1, 0, 1, 0), -0.5),
        (5, one(fix_advantage=-1.0), (1, 0, 0, 1), 0.0),
        (6, one(fixed=Count(4, 1)), (1, 0, 1, 0), -0.25),
        (7, one(), (1, 1, 0, 0), 1.0),
        (7, one(worked=Count(2, 0), failed=Count(2, 1)), (1, 0, 1, 0), -0.5),
    ],
)
def test_a_rule_is_right_where_it_pushes_the_way_the_outcome_went(rule, seen, counts, gain):
    said = verdict(RULES[rule], [seen])
    assert (said.states, said.right, said.wrong, said.silent) == counts
    assert said.gain.mean == pytest.approx(gain)


def test_what_was_not_repaired_says_nothing_of_repairs():
    bare = one(fixed=None, fix_advantage=None)
    said = [verdict(rule, [bare]) for rule in RULES]
    assert [v.states for v in said] == [1, 1, 1, 1, 0, 0, 0, 1]
    assert (said[4].share, said[4].gain) == (None, None)
    assert chances([bare])["fixed"] is None


def test_the_share_of_right_signs_is_of_those_that_were_given():
    silent, even = one("b", advantage=0.0), one("c", raw=Count(4, 2))
    said = verdict(RULES[0], [one(), silent, even])
    assert (said.states, said.even, said.silent) == (2, 1, 1)
    assert said.share.mean == 1.0
    assert said.gain.mean == pytest.approx(0.5 / 3)


def test_chances_are_over_the_states_that_have_all_counterfactuals():
    """Of others there is nothing to compare a repair with."""
    bare = one("b", fixed=None, fix_advantage=None, fresh=Count(4, 4))
    lost = one("c", raw=Count(0, 0), fresh=Count(4, 4))
    told = {name: interval.mean for name, interval in chances([one(), bare, lost]).items()}
    assert told == {"fresh": 0.5, "raw": 0.0, "fixed": 1.0, "raw - fresh": -0.5, "fixed - fresh": 0.5}


def test_intervals_are_over_tasks_and_not_over_rollouts():
    same = over_tasks([("a", 1.0)] * 50 + [("b", 0.0)] * 50)
    assert (same.mean, same.low, same.high) == (0.5, 0.0, 1.0)
    many = over_tasks([(str(n), float(n % 2)) for n in range(100)])
    assert 0.38 < many.low < many.high < 0.62


@dataclass
class Kept:
    out: Path
    engine: ScriptedEngine
    told: list[tuple[int, int]]


def audited(
    out: Path, *, stop_after: int = 99, replies=reply, judge=None, made_of=None, **size: int
) -> tuple[Audit | None, Kept]:
    recipe = load_recipe(None, ["rl.group=4", "rollout.max_turns=6"])
    out.mkdir(exist_ok=True)
    shared, told = made_of or context(replies=replies), []

    def tell(done: int, total: int) -> None:
        told.append((done, total))
        if done == stop_after:
            raise KeyboardInterrupt

    job = AuditJob(recipe, out, out, Size(**{"prompts": 2, "calls": 3, "replays": 2, **size}), by_recipe)
    try:
        made = asyncio.run(audit(job, TASKS, shared, grade, model="m", judge=judge, on_progress=tell))
    except KeyboardInterrupt:
        made = None
    return made, Kept(out, shared.engine, told)


@pytest.mark.slow
def test_an_audit_that_was_interrupted_goes_on_and_comes_to_the_same(tmp_path):
    whole, _ = audited(tmp_path / "whole")
    stopped, _ = audited(tmp_path / "again", stop_after=1, replays=64)
    assert stopped is None
    assert len(list((tmp_path / "again/replays").iterdir())) == 1
    there = sorted((tmp_path / "again").rglob("*.jsonl"))
    before = [file.read_bytes() for file in there]
    again, kept = audited(tmp_path / "again", replays=64)
    assert [file.read_bytes() for file in there] == before
    assert kept.told == [(2, 3), (3, 3)]
    assert again.verdicts == audited(tmp_path / "once", replays=64)[0].verdicts
    assert (whole.rollouts, whole.failed, len(whole.calls)) == (8, 4, 3)
    assert {len(list(jsonl.read(f))) for f in (tmp_path / "whole/replays").iterdir()} == {6}


def test_credit_is_made_of_training_rewards_and_what_passes_is_judged(tmp_path):
    whole, _ = audited(tmp_path / "whole")
    found, _ = audited(tmp_path / "judged", judge=lambda task, made: replace(made, reward=0.0))
    assert [one.advantage for one in found.calls] == [one.advantage for one in whole.calls]
    assert {one.fresh.passed for one in whole.calls} == {1}
    assert {one.fresh.passed for one in found.calls} == {0}


def test_the_table_says_who_was_right(tmp_path):
    found, _ = audited(tmp_path / "whole")
    ways, rules = audit_sheets(found)
    assert "3 failed calls, 2 replays" in ways.title
    rows = {row[0]: row[1] for _, section in rules.sections for row in section}
    assert rows["rollout's advantage (baseline)"] == "3 / 0 / 0"
    assert rows["masked"] == "0 / 0 / 3"
    assert rules.markdown().count("\n| ") >= len(RULES)


def test_the_table_says_how_many_states_have_no_replays_of_each(tmp_path):
    found, _ = audited(tmp_path / "whole")
    lost = msgspec.structs.replace(found.calls[0], raw=Count(0, 0))
    ways, _ = audit_sheets(msgspec.structs.replace(found, calls=[lost, *found.calls[1:]]))
    assert ways.sections[0][0] == "the 2 of them that SAAR repaired and that have replays of each (left out: 1)"


def test_a_model_that_never_fails_has_nothing_to_replay(tmp_path):
    with pytest.raises(RecipeError, match="of 8 rollouts, none has a failed call"):
        audited(tmp_path / "fine", replies=lambda id, text, n: "It is 42.")


def test_rollouts_that_an_outage_took_are_made_again(tmp_path):
    def gone(id, text, n):
        raise ConnectionError("gone")

    with pytest.raises(SandboxUnavailable, match=r"^8 of 8 rollouts were lost .*gone, too many for an audit; see"):
        audited(tmp_path / "audit", replies=gone)
    assert not list((tmp_path / "audit").glob("*.jsonl"))
    assert audited(tmp_path / "audit")[0] == audited(tmp_path / "whole")[0]


def test_a_folder_of_another_audit_is_refused(tmp_path):
    recipe = load_recipe(None, [])
    job = AuditJob(recipe, tmp_path, tmp_path / "out", Size(), by_recipe)
    _claim_dir(job, "other", [])  # of which nothing is made
    write_json(job.out / "audit.json", _claim_dir(job, "model", []))
    _claim_dir(job, "other", [])  # nor so far of this one, whose server may have refused it
    (job.out / "raw.jsonl").touch()
    _claim_dir(job, "model", [])
    with pytest.raises(CheckpointError, match=r"audit\.model was 'model', is 'other'"):
        _claim_dir(job, "other", [])
    with pytest.raises(CheckpointError, match=r"audit\.replays was 16, is 8"):
        _claim_dir(replace(job, size=Size(replays=8)), "model", [])
    with pytest.raises(CheckpointError, match=r"audit\.problems was"):
        _claim_dir(job, "model", [Task(id="file/0", question="What?", answer="2")])
    (tmp_path / "full").mkdir()
    (tmp_path / "full/.partial-1-audit.json").write_text("{")  # of one that was killed at once
    _claim_dir(replace(job, out=tmp_path / "full"), "model", [])
    (tmp_path / "full/mine.txt").write_text("x")
    with pytest.raises(CheckpointError, match="not an audit's folder"):
        _claim_dir(replace(job, out=tmp_path / "full"), "model", [])
