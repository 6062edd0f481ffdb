"""Audits the credit that rules give at failed calls: rolls a model out, replays a sample of its failures, and counts.

raw.jsonl, purified.jsonl     the rollouts, from the same seeds, without a repair and with SAAR in every one
replays/0000.jsonl            the counterfactuals of a failed call
result.json                   what came out
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from retcon.build import (
    as_evaluated,
    build_engine_chat,
    build_policy,
    build_repair,
    build_tasks,
    open_context,
    open_graders,
    settle,
)
from retcon.config.schema import Recipe
from retcon.core.errors import CheckpointError, RecipeError, SandboxUnavailable
from retcon.core.seeds import derive
from retcon.core.together import together
from retcon.core.types import Trajectory
from retcon.evaluate.replay.replays import WAYS, replay
from retcon.evaluate.replay.rules import RULES, Replayed, Verdict, chances, counted, verdict
from retcon.evaluate.replay.states import FailedCall, Groups, drawn, failed_calls
from retcon.evaluate.runner import OnPlace
from retcon.evaluate.statistics import Interval
from retcon.planning.rolling import refuse_unfit_rollouts
from retcon.purify.types import Repair
from retcon.rollout.context import RolloutContext
from retcon.rollout.faults import MOST_LOST
from retcon.rollout.group import rollout_groups
from retcon.rollout.prompts import refuse_long
from retcon.runs.comparing import as_now, differing
from retcon.store import jsonl
from retcon.store.alone import alone
from retcon.store.fingerprint import fingerprint
from retcon.store.whole import write_json, write_whole
from retcon.tasks.checked import held_out
from retcon.tasks.registry import Grade
from retcon.tasks.types import Task, fingerprint_of
from retcon.tools.types import AnyTool, TaskTool

FORMAT = 1
ABOUT, RAW, RESULT = "audit.json", "raw.jsonl", "result.json"
SECTIONS = ("run", "model", "compute", "engine", "task", "rollout", "sandbox", "repair", "rl")
AT_ONCE = 192
"""Replays that are rolled out side by side, unless those of one failed call are more."""


class Size(msgspec.Struct, frozen=True):
    """prompts: problems that are rolled out, `rl.group` times each, raw and purified. calls: failed calls to replay, at
    most. replays: of each counterfactual of a failed call."""

    prompts: int = 24
    calls: int = 48
    replays: int = 16


class Audit(msgspec.Struct, frozen=True):
    """What came out. rollouts: raw ones that no fault ended. failed: those of them with a failed call that can be
    replayed. lost: replays that faults ended. chances: to pass, of each counterfactual (see `chances`)."""

    format: int
    model: str
    size: Size
    rollouts: int
    failed: int
    lost: int
    chances: dict[str, Interval | None]
    verdicts: list[Verdict]
    calls: list[Replayed]


@dataclass(frozen=True, slots=True)
class Auditing:
    """What is to be audited, and where it goes. credit: the advantages that a recipe gives the rollouts of groups."""

    recipe: Recipe
    checkpoint: Path
    out: Path
    size: Size
    credit: Callable[[Recipe, Groups], list[list[float]]]


def run_audit(
    job: Auditing,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    on_place: OnPlace | None = None,
) -> Audit:
    """Does the job; what `job.out` holds of it is not done again. on_progress gets (done, total) in failed calls.

    All that is random derives from the recipe's evaluate.seed; problems are those of its evaluation, rollouts are
    sampled as in its training. Where [repair] is no SAAR, SAAR has its defaults. Raises CheckpointError for an `out`
    that holds something else, such as an audit of other problems in the same file, RecipeError where there is no
    problem, no call failed or a prompt leaves no room to answer, SandboxUnavailable where faults took more than one
    rollout in twenty or, one of them other than a state that cannot be rebuilt, all replays of a failed call, what an
    engine raises, MissingExtra without torch.
    """
    _refuse_environments(job.recipe, job.recipe.task.tools(job.recipe))
    purifying = _purifying(job.recipe)
    purifying.task.refuse_rollouts(purifying)
    if job.recipe.rollout.harness:
        raise RecipeError(
            "rollout.harness: an audit goes back to the state before a failed call, and a harness's is its own: leave "
            "it out"
        )
    family = build_tasks(job.recipe, job.checkpoint)
    recipe, _ = settle(job.recipe, job.checkpoint, family)
    job = replace(job, recipe=recipe)
    model = fingerprint(job.checkpoint) if recipe.engine.in_process else recipe.engine.subject(job.checkpoint)
    tasks = held_out(recipe, family, job.size.prompts)
    chat = build_engine_chat(recipe, job.checkpoint, family)
    refuse_long(tasks, chat, recipe.rollout.max_tokens, "problems")
    _open(job, model, tasks, family.system)  # after what advises another recipe, which is to have the same folder
    if (job.out / RESULT).exists():
        return read_audit(job.out / RESULT)
    refuse_unfit_rollouts(recipe, job.checkpoint)
    engine = build_policy(recipe, job.checkpoint, chat, on_place)

    async def audited() -> Audit:
        async with open_context(recipe, engine, chat) as context, open_graders(family) as graders:
            if not (job.out / RAW).exists():  # not before: with a mended engine or sandbox it is another audit
                write_json(job.out / ABOUT, about)
            return await audit(
                job, tasks, context, graders.rewarded.grade,
                model=model, judge=graders.judged.grade, on_progress=on_progress,
            )  # fmt: skip

    with alone(job.out):
        about = _open(job, model, tasks, family.system)  # anew: another may have begun, or ended, meanwhile
        found = read_audit(job.out / RESULT) if (job.out / RESULT).exists() else asyncio.run(audited())
        write_whole(job.out / RESULT, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    return found


async def audit(
    job: Auditing,
    tasks: Sequence[Task],
    context: RolloutContext,
    grade: Grade,
    *,
    model: str,
    judge: Grade | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """As `run_audit`, of these tasks, over this engine and these tools; model: whose rollouts they are. grade: gives
    the rewards that credit is made of; judge: says which replays pass, `grade` where it is None."""
    recipe, size, seed = job.recipe, job.size, job.recipe.evaluate.seed
    _refuse_environments(recipe, context.tools.values())
    saar = build_repair(_purifying(recipe))

    async def rolled(name: str, repair: Repair | None) -> list[list[Trajectory]]:
        file = job.out / name
        if not file.exists():
            armed = replace(context, repair=repair, probability=1.0)
            groups = await rollout_groups(
                tasks, armed, count=recipe.rl.group, seed=derive("audit", seed), step=0, grade=grade
            )
            made = [t for group in groups for t in group]
            lost = sum(t.reward is None for t in made)
            if lost > MOST_LOST * len(made):
                raise SandboxUnavailable(
                    f"{lost} of {len(made)} rollouts were lost to faults of the sandbox, the engine or a grader"
                    f"{context.faults.why}, too many for an audit; see `retcon doctor`, then run the same command again"
                )
            jsonl.write(file, made)
        return [list(group) for _, group in groupby(jsonl.read(file), key=lambda t: t.task)]

    raw, purified = await rolled(RAW, None), await rolled("purified.jsonl", saar)
    made = [t for group in raw for t in group if t.reward is not None]
    found = failed_calls(raw, purified, partial(job.credit, recipe), max_turns=recipe.rollout.max_turns)
    if not found:
        raise RecipeError(
            f"of {len(made)} rollouts none has a failed call that anything follows: there is nothing to replay; with "
            "another --out, roll out more problems (--prompts), or audit a model that fails more often"
        )
    calls = drawn(found, size.calls, seed=seed)
    replayed = await _replayed(job, calls, {task.id: task for task in tasks}, context, judge or grade, on_progress)
    return Audit(
        FORMAT, model, size, len(made), len(found), sum(one.lost for one in replayed),
        chances(replayed), [verdict(rule, replayed) for rule in RULES], replayed,
    )  # fmt: skip


def _purifying(recipe: Recipe) -> Recipe:
    """The recipe with SAAR as its repair: as [repair] says where that is SAAR, else with its defaults."""
    return as_evaluated(recipe.model_copy(update={"evaluate": recipe.evaluate.model_copy(update={"repair": "saar"})}))


def _refuse_environments(recipe: Recipe, tools: Iterable[AnyTool]) -> None:
    """Raises RecipeError where tools begin with a task: they share a state."""
    if any(isinstance(tool, TaskTool) for tool in tools):
        raise RecipeError(f"task.kind = '{recipe.task.kind}': the state that calls have left an environment in cannot "
                          "be rebuilt for replays, one tool after the other")  # fmt: skip


async def _replayed(
    job: Auditing,
    calls: Sequence[FailedCall],
    tasks: Mapping[str, Task],
    context: RolloutContext,
    grade: Grade,
    on_progress: Callable[[int, int], None] | None,
) -> list[Replayed]:
    """What came of the replays of each failed call; those whose file is there are not made again."""
    (job.out / "replays").mkdir(exist_ok=True)
    files = [job.out / "replays" / f"{n:04}.jsonl" for n in range(len(calls))]
    todo = [(call, file) for call, file in zip(calls, files, strict=True) if not file.exists()]
    done = len(calls) - len(todo)
    side_by_side = max(1, AT_ONCE // (len(WAYS) * job.size.replays))
    for start in range(0, len(todo), side_by_side):
        part = todo[start : start + side_by_side]
        made = await together(
            replay(
                call, tasks[call.raw.task], context, times=job.size.replays, seed=job.recipe.evaluate.seed, grade=grade
            )
            for call, _ in part
        )
        for (call, file), replays in zip(part, made, strict=True):
            if replays.faults and all(t.reward is None for t in replays.made):
                raise SandboxUnavailable(
                    f"faults took all {len(replays.made)} replays of rollout {call.id}{context.faults.why}; what was "
                    "replayed is kept. See `retcon doctor`, then run the same command again"
                )
            jsonl.write(file, replays.made)
            done += 1
            if on_progress is not None:
                on_progress(done, len(calls))
    return [counted(call, list(jsonl.read(file))) for call, file in zip(calls, files, strict=True)]


def read_audit(path: Path) -> Audit:
    """Reads result.json. Raises CheckpointError for a broken file or another format."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Audit)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: the audit cannot be read: {error}; delete it and audit again") from error
    if found.format != FORMAT:
        raise CheckpointError(f"{path}: format {found.format}, this version reads {FORMAT}; audit again")
    return found


def _foreign(path: Path) -> bool:
    """Whether it is of no audit that has no rollouts yet."""
    return path.name != ABOUT and not path.name.startswith(".")


def _open(job: Auditing, model: str, tasks: Sequence[Task], system: str | None = None) -> dict[str, Any]:
    """Makes the folder, or finds it as this job left it; one that has no rollouts yet is anybody's. What the job is, as
    the folder is to say. system: prompt of tasks that have none. Raises CheckpointError."""
    asked = {"problems": fingerprint_of(tasks), "system prompts": fingerprint_of([Task("", "", "", system)])}
    about: dict[str, Any] = {
        "audit": {"format": FORMAT, "model": model, **asked, **msgspec.to_builtins(job.size)},
        "evaluate": {"seed": job.recipe.evaluate.seed},
        **{name: section for name, section in job.recipe.model_dump(mode="json").items() if name in SECTIONS},
    }
    file = job.out / ABOUT
    if not (file.exists() and (job.out / RAW).exists()):
        if job.out.exists() and (not job.out.is_dir() or any(map(_foreign, job.out.iterdir()))):
            raise CheckpointError(f"{job.out} is there, and no folder of an audit: choose another --out")
        try:
            job.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{job.out}: cannot be made: {error}") from error
        return about
    try:
        there = msgspec.json.decode(file.read_bytes(), type=dict[str, dict[str, Any]])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file} is broken ({error}): choose another --out") from error
    there["audit"] = {**asked, **there.get("audit", {})}  # audits of before they were told say nothing of them
    then = {**as_now(there, job.recipe), "evaluate": there.get("evaluate", {})}  # of which an audit has the seed alone
    if changed := list(differing(then, about)):
        raise CheckpointError(f"{job.out} holds an audit of other things: {'; '.join(changed)}: choose another --out")
    return about
