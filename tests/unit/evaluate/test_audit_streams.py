"""What the audit by replay draws by which random stream, what it may lose, and what it goes on with."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from playing import LIMITS, call
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.core.errors import CheckpointError, SandboxUnavailable
from retcon.core.types import Trajectory
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.evaluate.audit import Audit, AuditJob, Size, _claim_dir, audit
from retcon.rollout.context import RolloutContext
from retcon.tasks.types import Task
from retcon.tools.scripted import ScriptedTool

TASKS = [Task("a", "What is 6 times 7?", "42"), Task("b", "What is 7 times 6?", "42")]
BAD, GOOD = call("valu"), call("value")
WAYS = ("fresh", "raw", "fixed")


def reply(id: str, text: str, _: int) -> str:
    """Every rollout fails, then works, then is right."""
    return "It is 42." if GOOD in text else GOOD if BAD in text else BAD


def grade(task: Task, trajectory: Trajectory) -> Trajectory:
    return replace(trajectory, reward=1.0 if task.answer in trajectory.turns[-1].text else -1.0)


def audited(out: Path, replies=reply, *, group: int = 2) -> tuple[Audit, ScriptedEngine]:
    tokenizer = ByteTokenizer()
    engine = ScriptedEngine(tokenizer, replies)
    tool = ScriptedTool(lambda code: ("", "ok" if code == "value" else "error", None))
    context = RolloutContext(engine, Chat(tokenizer), {"python": tool}, LIMITS)
    recipe = load_recipe(None, [f"rl.group={group}", "rollout.max_turns=6"])
    out.mkdir()
    job = AuditJob(recipe, out, out, Size(2, 2, 3), lambda _, groups: [[0.0] * len(group) for group in groups])
    return asyncio.run(audit(job, TASKS, context, grade, model="m")), engine


def test_raw_and_purified_rollouts_share_their_streams_and_replays_have_one_each(tmp_path: Path) -> None:
    """Else no fix would stand where the raw rollout failed, and many replays of a failure would be one."""
    found, engine = audited(tmp_path / "audit")
    seeds: dict[str, list[int]] = defaultdict(list)
    for (id, _), params in zip(engine.seen, engine.params, strict=True):
        seeds[id].append(params.seed)
    rolled = {id: own for id, own in seeds.items() if not any(f"/{way}/" in id for way in WAYS)}
    assert rolled.keys() == {f"{task.id}/0/{n}" for task in TASKS for n in (0, 1)}
    # Raw: a failure, a try that works, an answer. Purified: the failure, its repair, an answer.
    firsts = [(own[0], own[3]) for own in rolled.values()]
    assert all(raw == purified for raw, purified in firsts)
    assert len({raw for raw, _ in firsts}) == len(firsts)
    replayed = {id: own[0] for id, own in seeds.items() if id not in rolled}
    assert len(replayed) == 2 * len(WAYS) * 3
    assert len(set(replayed.values())) == len(replayed)
    assert all(one.fixed is not None for one in found.calls)


def test_one_rollout_in_twenty_may_be_lost_and_is_in_no_group(tmp_path: Path) -> None:
    def away(*lost: str):
        def replies(id: str, text: str, n: int) -> str:
            if id in lost:
                raise ConnectionError("gone")
            return reply(id, text, n)

        return replies

    found, _ = audited(tmp_path / "few", away("a/0/3"), group=10)
    assert (found.rollouts, found.failed) == (19, 19)
    with pytest.raises(SandboxUnavailable, match=r"^2 of 20 rollouts were lost"):
        audited(tmp_path / "many", away("a/0/3", "b/0/1"), group=10)


def test_tasks_that_are_asked_with_another_system_prompt_are_another_audits(tmp_path: Path) -> None:
    job = AuditJob(load_recipe(None), tmp_path, tmp_path / "audit", Size(), lambda *_: [])
    about = json.loads(json.dumps(_claim_dir(job, "model", TASKS, "Compute.")))
    file = job.out / "audit.json"
    file.write_text(json.dumps(about))
    (job.out / "raw.jsonl").touch()
    _claim_dir(job, "model", TASKS, "Compute.")
    with pytest.raises(CheckpointError, match=r"another audit: audit\.system prompts was '\w+', is '\w+': choose"):
        _claim_dir(job, "model", TASKS, "Guess.")
    del about["audit"]["system prompts"]  # of an earlier version
    file.write_text(json.dumps(about))
    _claim_dir(job, "model", TASKS, "Guess.")
