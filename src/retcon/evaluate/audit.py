"""Audit, by replay, of the credit that rules give at failed calls.

raw.jsonl, purified.jsonl     the rollouts, from the same seeds, without a repair and with SAAR in every one
replays/0000.jsonl            the counterfactuals of a failed call
result.json                   the audit
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from retcon.build import (
    build_engine_chat,
    build_policy,
    build_repair,
    build_tasks,
    open_context,
    open_graders,
    resolve_lengths,
    with_evaluation_repair,
)
from retcon.config.schema import Recipe
from retcon.core.concurrency import gather_or_cancel
from retcon.core.errors import CheckpointError, InfrastructureFault, RecipeError, SandboxUnavailable
from retcon.core.seeds import derive
from retcon.core.types import REPLACED, Observation, Provenance, ToolCall, Trajectory, Turn
from retcon.evaluate.runner import OnPlace
from retcon.evaluate.statistics import CONFIDENCE, RESAMPLES, Interval
from retcon.planning.rollouts import check_rollouts_fit
from retcon.purify.failing import FAILURES, has_failed
from retcon.purify.types import Repair
from retcon.rollout.context import MAX_LOST_SHARE, RolloutContext
from retcon.rollout.group import rollout_groups
from retcon.rollout.lengths import check_lengths
from retcon.rollout.loop import run_rollout
from retcon.runs.folder import as_now, differing
from retcon.store import jsonl
from retcon.store.fingerprint import fingerprint
from retcon.store.whole import lock_folder, write_json, write_whole
from retcon.tasks.registry import Grade, draw_problems, try_grade
from retcon.tasks.types import Task, fingerprint_of
from retcon.tools.types import AnyTool, OpenTool, StatefulTool, TaskTool

Groups = Sequence[Sequence[Trajectory]]
Credit = Callable[[Groups], list[list[float]]]
"""The advantages of the rollouts of a step's groups, all of them graded."""
Pushes = Mapping[str, Sequence[float]]
"""By the name of a rule: its mean advantage for the tokens of each of some failed turns."""


@dataclass(frozen=True, slots=True)
class FailedCall:
    """First failed turn of a rollout, as a state to continue from.

    raw: the rollout without a repair, in which turn `number` (0-based) failed; advantage: the rollout's in its group.
    fix: the turn that the same rollout with SAAR has in its place, or None; fix_advantage: that rollout's in its own
    group, or None.
    """

    raw: Trajectory
    number: int
    advantage: float
    fix: Turn | None = None
    fix_advantage: float | None = None

    @property
    def id(self) -> str:
        return self.raw.id

    @property
    def before(self) -> tuple[Turn, ...]:
        """Return the turns of the clean history."""
        return self.raw.turns[: self.number]

    @property
    def failure(self) -> Turn:
        return self.raw.turns[self.number]


def failed_calls(raw: Groups, purified: Groups, credit: Credit, *, max_turns: int) -> list[FailedCall]:
    """Find the failed calls in rollouts made twice from the same seeds.

    `raw` has no repairs, `purified` SAAR in every rollout: up to its first failure a rollout is the same in both. A
    failure in the last of `max_turns` is left out, as nothing follows it; rollouts that a fault ended are in no group.
    """
    fixes = {trajectory.id: (trajectory, value) for trajectory, value in _credited(purified, credit)}
    found = []
    for trajectory, advantage in _credited(raw, credit):
        number = next((n for n, turn in enumerate(trajectory.turns) if has_failed(turn, FAILURES)), None)
        if number is None or number + 1 >= max_turns:
            continue
        fixed, value = fixes.get(trajectory.id, (None, None))
        turn = fixed.turns[number] if fixed is not None and len(fixed.turns) > number else None
        if turn is not None and _replaces(turn, trajectory.turns[number]):
            found.append(FailedCall(trajectory, number, advantage, turn, value))
        else:
            found.append(FailedCall(trajectory, number, advantage))
    return found


def sample_calls(calls: Sequence[FailedCall], count: int, *, seed: int) -> list[FailedCall]:
    """Sample `count` calls, or all if fewer, by seed and ids."""
    return sorted(calls, key=lambda call: derive("audit", seed, call.id))[:count]


def _replaces(turn: Turn, failure: Turn) -> bool:
    """Whether a turn stands in place of this very failure."""
    replaced = turn.repair is not None and turn.repair.decision in REPLACED
    return replaced and turn.abandoned[0].segments == failure.segments


def _credited(groups: Groups, credit: Credit) -> Iterator[tuple[Trajectory, float]]:
    graded = [[t for t in group if t.reward is not None] for group in groups]
    for group, advantages in zip(graded, credit(graded), strict=True):
        yield from zip(group, advantages, strict=True)


Way = Literal["fresh", "raw", "fixed"]
"""How a rollout goes on at a failed call: from the history before it, as if the call had not been made; from the
failure; from what SAAR put in its place."""
WAYS: tuple[Way, ...] = get_args(Way)


def prefixes(call: FailedCall) -> dict[Way, tuple[Turn, ...]]:
    """Return the turns before each counterfactual; no `fixed` without a fix."""
    found: dict[Way, tuple[Turn, ...]] = {"fresh": call.before, "raw": (*call.before, call.failure)}
    return found if call.fix is None else {**found, "fixed": (*call.before, call.fix)}


@dataclass(frozen=True, slots=True)
class Replays:
    """Replays of one failed call. faults: those lost to anything but an unrebuildable state, which may succeed next
    time."""

    made: list[Trajectory]
    faults: int


async def replay(
    call: FailedCall, task: Task, context: RolloutContext, *, times: int, seed: int, grade: Grade
) -> Replays:
    """Roll out and grade every counterfactual `times` times, without repairs. Their ids are `{rollout}/{way}/{n}`; they
    differ only in where they begin.

    Seeds derive from (seed, rollout, way, n). Where tools keep state, earlier calls are repeated, and a replay whose
    observations differ then ends as an infrastructure fault. So does one that calls nothing: which replays are lost
    must not depend on what the model does in them.
    """

    async def one(way: Way, turns: tuple[Turn, ...], n: int) -> tuple[Trajectory, bool]:
        after = Trajectory(call.id, call.raw.task, call.raw.prompt, turns)
        rebuilt = _restored_tools(context.tools, turns, call.id)
        made = await run_rollout(
            task,
            replace(context, repair=None, tools={**context.tools, **rebuilt}),
            id=f"{call.id}/{way}/{n}",
            seed=derive("replay", seed, call.id, way, n),
            provenance=Provenance(index=n, model=context.model),
            after=after,
        )
        made = await _check_state(made, list(rebuilt.values()), context.faults.add)
        made = await try_grade(task, made, grade, context.faults.add)
        return made, made.reward is None and not any(tool.differs for tool in rebuilt.values())

    ends = await gather_or_cancel(one(way, turns, n) for way, turns in prefixes(call).items() for n in range(times))
    return Replays([made for made, _ in ends], sum(at_fault for _, at_fault in ends))


def _restored_tools(tools: Mapping[str, AnyTool], turns: Sequence[Turn], rollout: str) -> dict[str, RestoredTool]:
    pairs = [pair for turn in turns for pair in zip(turn.calls, turn.observations, strict=True)]
    return {
        name: RestoredTool(tool, [pair for pair in pairs if pair[0].name == name], rollout)
        for name, tool in tools.items()
        if isinstance(tool, StatefulTool)
    }


async def _check_state(made: Trajectory, tools: Sequence[RestoredTool], lost: Callable[[str, str], None]) -> Trajectory:
    """The replay, lost if an uncalled tool's state cannot be rebuilt."""
    try:
        for tool in tools:
            if made.stop != "infrastructure" and tool.has_state and not tool.tried:
                opened = await tool.open(made.id)
                with suppress(InfrastructureFault):
                    await opened.close()
    except InfrastructureFault as fault:
        lost(made.id, str(fault))
        return replace(made, stop="infrastructure")
    return made


class RestoredTool:
    """Tool with state, opened in the state that `calls` left; implements `StatefulTool`. calls: with their
    observations. rollout: of those calls: a tool may draw random numbers by its id.

    tried: it was opened, or was to be. differs: an observation was different this time.
    """

    def __init__(self, tool: StatefulTool, calls: Sequence[tuple[ToolCall, Observation]], rollout: str) -> None:
        self.name = tool.name
        self.spec = tool.spec
        self._tool = tool
        self._calls = tuple(calls)
        self._rollout = rollout
        self.has_state = bool(calls)
        self.tried = self.differs = False

    async def open(self, trajectory: str) -> OpenTool:
        """Open the tool and repeat the calls. Raises InfrastructureFault where an observation differs this time."""
        self.tried = True
        opened = await self._tool.open(self._rollout)
        try:
            for call, before in self._calls:
                self._compare(trajectory, call, before, await opened(call))
        except BaseException:
            with suppress(InfrastructureFault):
                await opened.close()
            raise
        return opened

    def _compare(self, trajectory: str, call: ToolCall, before: Observation, again: Observation) -> None:
        if (again.text, again.status) == (before.text, before.status):
            return
        self.differs = again.status != "infrastructure"
        raise InfrastructureFault(
            f"rollout {trajectory}: call {call.id} returned {before.status} {before.text[:80]!r}, and now "
            f"{again.status} {again.text[:80]!r}: its state cannot be rebuilt"
        )


class Count(msgspec.Struct, frozen=True):
    """Number of replays without a fault, and how many passed."""

    made: int
    passed: int

    @property
    def share(self) -> float | None:
        return self.passed / self.made if self.made else None


class ReplayCounts(msgspec.Struct, frozen=True):
    """A failed call with its replay counts. fixed: None without a fix. worked, failed: fresh replays by whether their
    first call succeeded. lost: to faults. advantage, fix_advantage: see `FailedCall`. pushes: of rules that give the
    failed turn an advantage of its own, by name."""

    id: str
    task: str
    turn: int
    fresh: Count
    raw: Count
    fixed: Count | None
    worked: Count
    failed: Count
    advantage: float
    fix_advantage: float | None
    lost: int
    pushes: dict[str, float] = {}

    @property
    def of_failure(self) -> float | None:
        """Return P(pass) after the failed call less P(pass) before it."""
        return _difference(self.raw, self.fresh)

    @property
    def of_fix(self) -> float | None:
        """Return P(pass) after the fix less P(pass) before it."""
        return _difference(self.fixed, self.fresh)

    @property
    def of_working(self) -> float | None:
        """Return P(pass) of fresh tries that work less that of failing ones."""
        return _difference(self.worked, self.failed)


def count_replays(
    call: FailedCall, replays: Sequence[Trajectory], pushes: Mapping[str, float] = MappingProxyType({})
) -> ReplayCounts:
    """Count the replays of a failed call. A fresh try without a call neither worked nor failed. pushes: of rules on its
    turn."""
    graded = [t for t in replays if t.reward is not None]
    ways: dict[Way, list[Trajectory]] = {way: [t for t in graded if t.id.split("/")[-2] == way] for way in WAYS}
    first = [(t, t.turns[call.number]) for t in ways["fresh"] if len(t.turns) > call.number]
    return ReplayCounts(
        call.id,
        call.raw.task,
        call.number,
        _count(ways["fresh"]),
        _count(ways["raw"]),
        None if call.fix is None else _count(ways["fixed"]),
        _count([t for t, turn in first if turn.observations and not turn.failures]),
        _count([t for t, turn in first if turn.failures]),
        call.advantage,
        call.fix_advantage,
        len(replays) - len(graded),
        dict(pushes),
    )


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of credit. on: the tokens that it is about. push: their sign, None without such tokens. effect: of those
    tokens on the chance to pass, None if unknown."""

    name: str
    on: str
    push: Callable[[ReplayCounts], float | None]
    effect: Callable[[ReplayCounts], float | None]


def _of_fix(push: Callable[[float], float]) -> Callable[[ReplayCounts], float | None]:
    return lambda one: None if one.fix_advantage is None else push(one.fix_advantage)


FAILED, SPLICED, TRIED = "the failed call", "what replaced it", "fresh tries"
RULES = (
    Rule("rollout's advantage (baseline)", FAILED, lambda one: one.advantage, lambda one: one.of_failure),
    Rule("masked", FAILED, lambda _: 0.0, lambda one: one.of_failure),
    Rule("contrast", FAILED, lambda _: -1.0, lambda one: one.of_failure),
    Rule("blame", FAILED, lambda one: -abs(one.advantage), lambda one: one.of_failure),
    Rule("rollout's advantage (SAAR)", SPLICED, _of_fix(lambda value: value), lambda one: one.of_fix),
    Rule("veto, imitate", SPLICED, _of_fix(lambda value: max(value, 0.0)), lambda one: one.of_fix),
    Rule("contrast", SPLICED, _of_fix(lambda _: 1.0), lambda one: one.of_fix),
    Rule("local group (branch)", TRIED, lambda _: 1.0, lambda one: one.of_working),
)


def rules_of(replayed: Sequence[ReplayCounts]) -> list[Rule]:
    """Return the rules to judge: those with pushes of their own, and `RULES`."""
    names = dict.fromkeys(name for one in replayed for name in one.pushes)
    return [*(Rule(name, FAILED, partial(_push, name), lambda one: one.of_failure) for name in names), *RULES]


def _push(name: str, one: ReplayCounts) -> float | None:
    return one.pushes.get(name)


class Verdict(msgspec.Struct, frozen=True):
    """Value of a rule. states: those whose tokens made a difference in the replays; even: those where they made no
    difference. right, wrong, silent: of `states`, by the rule's sign. share: right ones among those with a sign. gain:
    the mean, over all states, of its sign times the difference: what the chance to pass gains in the direction that it
    pushes."""

    rule: str
    on: str
    states: int
    even: int
    right: int
    wrong: int
    silent: int
    share: Interval | None
    gain: Interval | None


def verdict(rule: Rule, replayed: Sequence[ReplayCounts], *, seed: int = 0) -> Verdict:
    """Judge a rule, with intervals by bootstrap over tasks."""
    judged = [
        (one.task, _sign(push), effect)
        for one in replayed
        if (push := rule.push(one)) is not None and (effect := rule.effect(one)) is not None
    ]
    decided = [(task, sign * _sign(effect)) for task, sign, effect in judged if effect]
    given = [(task, float(agrees > 0)) for task, agrees in decided if agrees]
    return Verdict(
        rule.name,
        rule.on,
        len(decided),
        len(judged) - len(decided),
        sum(agrees > 0 for _, agrees in decided),
        sum(agrees < 0 for _, agrees in decided),
        sum(agrees == 0 for _, agrees in decided),
        over_tasks(given, seed=seed),
        over_tasks([(task, sign * effect) for task, sign, effect in judged], seed=seed),
    )


def chances(replayed: Sequence[ReplayCounts], *, seed: int = 0) -> dict[str, Interval | None]:
    """Return each counterfactual's chance to pass, over states with all three."""
    whole = [one for one in replayed if one.of_failure is not None and one.of_fix is not None]
    ways: dict[str, Callable[[ReplayCounts], float | None]] = {
        "fresh": lambda one: one.fresh.share,
        "raw": lambda one: one.raw.share,
        "fixed": lambda one: one.fixed.share if one.fixed else None,
        "raw - fresh": lambda one: one.of_failure,
        "fixed - fresh": lambda one: one.of_fix,
    }
    return {
        name: over_tasks([(one.task, value) for one in whole if (value := of(one)) is not None], seed=seed)
        for name, of in ways.items()
    }


def over_tasks(values: Sequence[tuple[str, float]], *, seed: int = 0) -> Interval | None:
    """Return the mean with a seeded percentile bootstrap over tasks, or None."""
    if not values:
        return None
    tasks = sorted({task for task, _ in values})
    place = {task: n for n, task in enumerate(tasks)}
    sums, counts = np.zeros(len(tasks)), np.zeros(len(tasks))
    for task, value in values:
        sums[place[task]] += value
        counts[place[task]] += 1
    again = np.random.default_rng(seed).integers(len(tasks), size=(RESAMPLES, len(tasks)))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(sums[again].sum(axis=1) / counts[again].sum(axis=1), [tail, 1 - tail])
    return Interval(float(sums.sum() / counts.sum()), float(low), float(high))


def _sign(value: float) -> Literal[-1, 0, 1]:
    return 1 if value > 0 else -1 if value < 0 else 0


def _difference(one: Count | None, other: Count | None) -> float | None:
    ours, theirs = (None if count is None else count.share for count in (one, other))
    return None if ours is None or theirs is None else ours - theirs


def _count(replays: Sequence[Trajectory]) -> Count:
    return Count(len(replays), sum((t.reward or 0) > 0 for t in replays))


FORMAT = 1
ABOUT, RAW, RESULT = "audit.json", "raw.jsonl", "result.json"
SECTIONS = ("run", "model", "compute", "engine", "task", "rollout", "sandbox", "repair", "rl")
AT_ONCE = 192
"""Replays that are rolled out side by side, unless those of one failed call are more."""


class Size(msgspec.Struct, frozen=True):
    """Size of an audit. prompts: problems to roll out, `rl.group` times each, raw and purified. calls: failed calls to
    replay, at most. replays: of each counterfactual of a failed call."""

    prompts: int = 24
    calls: int = 48
    replays: int = 16


class Audit(msgspec.Struct, frozen=True):
    """Result of an audit. rollouts: raw ones without a fault. failed: those of them with a failed call that can be
    replayed. lost: replays that faults ended. chances: to pass, of each counterfactual (see `chances`)."""

    format: int
    model: str
    size: Size
    rollouts: int
    failed: int
    lost: int
    chances: dict[str, Interval | None]
    verdicts: list[Verdict]
    calls: list[ReplayCounts]


@dataclass(frozen=True, slots=True)
class AuditJob:
    """What to audit, and where to.

    credit: the advantages that a recipe gives the rollouts of groups. turn_credit: what rules of its own give failed
    turns, by the graded groups and each turn's rollout and number; the same turns, in order.
    """

    recipe: Recipe
    checkpoint: Path
    out: Path
    size: Size
    credit: Callable[[Recipe, Groups], list[list[float]]]
    turn_credit: Callable[[Recipe, Groups, Sequence[tuple[str, int]]], Pushes] | None = None


def run_audit(
    job: AuditJob,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    on_place: OnPlace | None = None,
    on_ready: Callable[[], None] = lambda: None,
) -> Audit:
    """Run the audit; keep what `job.out` holds of it. on_progress gets (done, total) in failed calls.

    All that is random derives from the recipe's evaluate.seed; problems are those of its evaluation, rollouts are
    sampled as in its training. Where [repair] is not SAAR, SAAR has its defaults. Raises CheckpointError for an `out`
    that holds something else, such as an audit of other problems in the same file, RecipeError where there is no
    problem, no call failed or a prompt leaves no room to answer, SandboxUnavailable where faults took more than one
    rollout in twenty or, one of them other than a state that cannot be rebuilt, all replays of a failed call, what an
    engine raises, MissingExtra without torch.
    """
    _check_no_environment(job.recipe, job.recipe.task.tools(job.recipe))
    purifying = _with_saar(job.recipe)
    purifying.task.check_rollouts(purifying)
    if job.recipe.rollout.harness:
        raise RecipeError(
            "rollout.harness: an audit rolls back to the state before a failed call, which a harness cannot: leave "
            "it out"
        )
    family = build_tasks(job.recipe, job.checkpoint)
    recipe, _ = resolve_lengths(job.recipe, job.checkpoint, family)
    job = replace(job, recipe=recipe)
    model = fingerprint(job.checkpoint) if recipe.engine.in_process else recipe.engine.subject(job.checkpoint)
    tasks = draw_problems(recipe, family, job.size.prompts)
    chat = build_engine_chat(recipe, job.checkpoint, family)
    check_lengths(tasks, chat, recipe.rollout.max_tokens, "problems")
    _claim_dir(job, model, tasks, family.system)  # after the checks, so that a corrected recipe can use the folder
    if (job.out / RESULT).exists():
        return read_audit(job.out / RESULT)
    on_ready()
    check_rollouts_fit(recipe, job.checkpoint)
    engine = build_policy(recipe, job.checkpoint, chat, on_place)

    async def audited() -> Audit:
        async with open_context(recipe, engine, chat) as context, open_graders(family) as graders:
            if not (job.out / RAW).exists():  # not before: with a fixed engine or sandbox it is another audit
                write_json(job.out / ABOUT, about)
            return await audit(
                job, tasks, context, graders.rewarded.grade,
                model=model, judge=graders.judged.grade, on_progress=on_progress,
            )  # fmt: skip

    with lock_folder(job.out):
        about = _claim_dir(job, model, tasks, family.system)  # again: another audit may have begun, or ended, meanwhile
        found = read_audit(job.out / RESULT) if (job.out / RESULT).exists() else asyncio.run(audited())
        write_whole(job.out / RESULT, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    return found


async def audit(
    job: AuditJob,
    tasks: Sequence[Task],
    context: RolloutContext,
    grade: Grade,
    *,
    model: str,
    judge: Grade | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Audit these tasks over this engine and these tools, otherwise as `run_audit`. model: whose rollouts they are.
    grade: gives the rewards; judge: says which replays pass, by default `grade`."""
    recipe, size, seed = job.recipe, job.size, job.recipe.evaluate.seed
    _check_no_environment(recipe, context.tools.values())
    saar = build_repair(_with_saar(recipe))

    async def rolled(name: str, repair: Repair | None) -> list[list[Trajectory]]:
        file = job.out / name
        if not file.exists():
            armed = replace(context, repair=repair, probability=1.0)
            groups = await rollout_groups(
                tasks, armed, count=recipe.rl.group, seed=derive("audit", seed), step=0, grade=grade
            )
            made = [t for group in groups for t in group]
            lost = sum(t.reward is None for t in made)
            if lost > MAX_LOST_SHARE * len(made):
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
            f"of {len(made)} rollouts, none has a failed call before its last turn: nothing to replay; with "
            "another --out, roll out more problems (--prompts), or audit a model that fails more often"
        )
    calls = sample_calls(found, size.calls, seed=seed)
    files = await _replay_all(job, calls, {task.id: task for task in tasks}, context, judge or grade, on_progress)
    pushes: Pushes = {}
    if job.turn_credit is not None:
        graded = [[t for t in group if t.reward is not None] for group in raw]
        pushes = job.turn_credit(recipe, graded, [(call.id, call.number) for call in calls])
    replayed = [
        count_replays(call, list(jsonl.read(file)), {name: values[n] for name, values in pushes.items()})
        for n, (call, file) in enumerate(zip(calls, files, strict=True))
    ]
    return Audit(
        FORMAT, model, size, len(made), len(found), sum(one.lost for one in replayed),
        chances(replayed), [verdict(rule, replayed) for rule in rules_of(replayed)], replayed,
    )  # fmt: skip


def _with_saar(recipe: Recipe) -> Recipe:
    """The recipe with SAAR as its repair: its own, else with default settings."""
    evaluate = recipe.evaluate.model_copy(update={"repair": "saar"})
    return with_evaluation_repair(recipe.model_copy(update={"evaluate": evaluate}))


def _check_no_environment(recipe: Recipe, tools: Iterable[AnyTool]) -> None:
    """Raise RecipeError where tools begin with a task: they share a state."""
    if any(isinstance(tool, TaskTool) for tool in tools):
        raise RecipeError(f"task.kind = '{recipe.task.kind}': the state of an environment after calls cannot "
                          "be rebuilt for replays, one tool after the other")  # fmt: skip


async def _replay_all(
    job: AuditJob,
    calls: Sequence[FailedCall],
    tasks: Mapping[str, Task],
    context: RolloutContext,
    grade: Grade,
    on_progress: Callable[[int, int], None] | None,
) -> list[Path]:
    """Replay each failed call; return their files, of which existing ones stay."""
    (job.out / "replays").mkdir(exist_ok=True)
    files = [job.out / "replays" / f"{n:04}.jsonl" for n in range(len(calls))]
    todo = [(call, file) for call, file in zip(calls, files, strict=True) if not file.exists()]
    done = len(calls) - len(todo)
    side_by_side = max(1, AT_ONCE // (len(WAYS) * job.size.replays))
    for start in range(0, len(todo), side_by_side):
        part = todo[start : start + side_by_side]
        made = await gather_or_cancel(
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
    return files


def read_audit(path: Path) -> Audit:
    """Read result.json. Raises CheckpointError for a broken file or another format."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Audit)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: the audit cannot be read: {error}; delete it and audit again") from error
    if found.format != FORMAT:
        raise CheckpointError(f"{path}: format {found.format}, this version reads {FORMAT}; audit again")
    return found


def _is_foreign(path: Path) -> bool:
    """Whether the folder holds anything but an audit without rollouts."""
    return path.name != ABOUT and not path.name.startswith(".")


def _claim_dir(job: AuditJob, model: str, tasks: Sequence[Task], system: str | None = None) -> dict[str, Any]:
    """Make the folder, or check that it is of this job; one without rollouts can be taken over. Returns the job's
    description. system: prompt of tasks without one. Raises CheckpointError."""
    asked = {"problems": fingerprint_of(tasks), "system prompts": fingerprint_of([Task("", "", "", system)])}
    about: dict[str, Any] = {
        "audit": {"format": FORMAT, "model": model, **asked, **msgspec.to_builtins(job.size)},
        "evaluate": {"seed": job.recipe.evaluate.seed},
        **{name: section for name, section in job.recipe.model_dump(mode="json").items() if name in SECTIONS},
    }
    file = job.out / ABOUT
    if not (file.exists() and (job.out / RAW).exists()):
        if job.out.exists() and (not job.out.is_dir() or any(map(_is_foreign, job.out.iterdir()))):
            raise CheckpointError(f"{job.out} exists and is not an audit's folder: choose another --out")
        try:
            job.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{job.out}: cannot be made: {error}") from error
        return about
    try:
        there = msgspec.json.decode(file.read_bytes(), type=dict[str, dict[str, Any]])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file} is broken ({error}): choose another --out") from error
    there["audit"] = {**asked, **there.get("audit", {})}  # earlier versions did not record them
    then = {**as_now(there, job.recipe), "evaluate": there.get("evaluate", {})}  # an audit uses only its seed
    if changed := list(differing(then, about)):
        raise CheckpointError(f"{job.out} holds another audit: {'; '.join(changed)}: choose another --out")
    return about
