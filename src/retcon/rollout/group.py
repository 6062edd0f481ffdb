"""Roll out a group of trajectories of one task, concurrently."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from retcon.core.concurrency import cancel_all, gather_or_cancel
from retcon.core.errors import CheckpointRefused, InfrastructureFault
from retcon.core.seeds import derive
from retcon.core.types import Branch, Provenance, Trajectory, token_count
from retcon.engine.types import ForkableEngine, Generation, TextEngine
from retcon.rollout.context import RolloutContext, is_purified
from retcon.rollout.loop import Watch, run_rollout
from retcon.rollout.strategy import Measured, Point, Strategy, Uncertainty, uncertainty
from retcon.tasks.registry import Grade, try_grade, with_returned_reply
from retcon.tasks.types import Task
from retcon.tools.forks import ForkableTool
from retcon.tools.types import CHECKPOINTS, StatefulTool


async def rollout_member(
    task: Task,
    context: RolloutContext,
    index: int,
    *,
    seed: int,
    step: int,
    grade: Grade,
    after: Trajectory | None = None,
    replay: bool = False,
    watch: Watch | None = None,
) -> Trajectory:
    """Run and grade one member of a group, `{task.id}/{step}/{index}`.

    It has the repair with the context's probability, drawn from (seed, step, task, index); its sampling seed does not
    depend on that draw. An infrastructure fault leaves its reward None. after, replay, watch: see `run_rollout`; a
    harness supports none of them.
    """
    encoded_by = context.engine.encoded_by if isinstance(context.engine, TextEngine) else None
    armed = is_purified(context.probability, seed, step, task.id, index)
    context = context if armed else replace(context, repair=None)
    id, own = member_id(task, step, index), derive("rollout", seed, step, task.id, index)
    provenance = Provenance(step=step, index=index, model=context.model, encoded_by=encoded_by)
    if context.harness is not None:
        result = await context.harness.run(task, context, id=id, seed=own, provenance=provenance)
        if result.trajectory.reward is not None:
            return replace(result.trajectory, returned=result.trajectory.reward)
        return await _graded(task, replace(result.trajectory, returned=result.answer), context, grade)
    made = await run_rollout(
        task, context, id=id, seed=own, provenance=provenance, after=after, replay=replay, watch=watch
    )
    return await _graded(task, made, context, grade)


async def _graded(task: Task, made: Trajectory, context: RolloutContext, grade: Grade) -> Trajectory:
    """Grade a rollout by what it returned, else by the model's last message."""
    judged = await try_grade(task, with_returned_reply(made), grade, context.faults.add)
    return replace(judged, turns=made.turns) if isinstance(made.returned, str) else judged


def member_id(task: Task, step: int, index: int) -> str:
    return f"{task.id}/{step}/{index}"


# Branching groups are trees: a branch shares its beginning with its parent.
#
# Each tree gets its number of rollouts before any starts, and divides it where it branches, so that results do not
# depend on speed and the same seed gives the same trees. Rollouts from the prompt replace what a tree does not use.

REPAIRED = 3
"""Most states of a repaired rollout: its current one, and those before and after its turn."""


async def branching_group(
    task: Task, context: RolloutContext, *, count: int, seed: int, step: int, grade: Grade, first: int
) -> list[Trajectory]:
    """Return `count` graded rollouts of one task, branching by the context's strategy.

    Whether rollouts have the repair is drawn once for each tree. An infrastructure fault ends one rollout, any other
    error all of them. first: index of the first rollout.
    """
    if context.strategy is None:
        raise ValueError("the context has no strategy: use rollout_group")
    group = _Group(task, context, context.strategy, seed=seed, step=step, grade=grade, first=first)
    return await group.roll(count)


@dataclass(slots=True)
class _Member:
    """A running rollout. index, root: from 0 in the group. slots: indices of its possible branches.

    first, later: see `Measured`. seen: uncertainty of each of its turns. after, branch: where a branch began, and
    resumed: whether it did so once its parent had ended. in_a_row: see `Point`.
    """

    index: int
    root: int
    slots: list[int]
    first: float | None = None
    later: list[float] = field(default_factory=list)
    after: Trajectory | None = None
    branch: Branch | None = None
    in_a_row: int = 0
    resumed: bool = False
    seen: dict[int, Uncertainty] = field(default_factory=dict)


class _Group:
    def __init__(
        self,
        task: Task,
        context: RolloutContext,
        strategy: Strategy,
        *,
        seed: int,
        step: int,
        grade: Grade,
        first: int,
    ) -> None:
        self._task, self._strategy, self._seed, self._step, self._grade = task, strategy, seed, step, grade
        self._first = first
        self._forkable = [ForkableTool(tool) for tool in context.tools.values() if isinstance(tool, StatefulTool)]
        self._context = replace(
            context,
            tools={**context.tools, **{tool.name: tool for tool in self._forkable}},
            sampling=replace(context.sampling, entropies=strategy.entropy_tokens),
        )
        self._running: set[asyncio.Task[None]] = set()
        self._made: dict[int, Trajectory] = {}
        self._members: dict[str, _Member] = {}

    async def roll(self, count: int) -> list[Trajectory]:
        measured, begun = None, 0
        if self._strategy.measures and count > 1:
            first = _Member(0, 0, [])
            await self._grow_all([first])
            begun = 1
            if first.first is not None:
                measured = Measured(first.first, first.later, self._vocabulary)
        least = -(-(count - begun) // self._of_a_tree) if self._forkable else 1
        start = min(max(self._strategy.from_start(count, measured), begun + least), count)
        slots, trees = range(start, count), start - begun
        await self._grow_all([_Member(begun + n, begun + n, list(slots[n::trees])) for n in range(trees)])
        while free := [n for n in range(count) if n not in self._made]:
            rollouts = [self._made[n] for n in sorted(self._made)]
            chosen = zip(self._strategy.resume(rollouts), free, strict=False)
            members = [self._resume(rollouts[at], turns, index) for (at, turns), index in chosen]
            await self._grow_all(members or [_Member(n, n, []) for n in free])
        return [self._made[index] for index in range(count)]

    @property
    def _of_a_tree(self) -> int:
        """Rollouts whose states one tool can hold at a time."""
        repair = self._context.repair
        return CHECKPOINTS // (REPAIRED if repair is not None and repair.attempts else 1)

    @property
    def _vocabulary(self) -> int:
        return self._context.chat.tokenizer.size

    async def _grow_all(self, members: Sequence[_Member]) -> None:
        """Run these rollouts and all their branches to their ends."""
        for member in members:
            self._begin(member)
        try:
            while self._running:
                done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    one.result()
                self._running -= done
        except BaseException:
            await cancel_all(self._running)
            for tool in self._forkable:
                await tool.end_all()  # also of branches that never ran
            raise

    def _resume(self, parent: Trajectory, turns: int, index: int) -> _Member:
        """Return a member that goes on after the first turns of a finished rollout."""
        came = self._members[parent.id]
        found = came.seen[max(n for n in came.seen if n <= turns)]
        rise = found.nats - came.seen[0].nats
        after = Trajectory(parent.id, parent.task, parent.prompt, parent.turns[:turns])
        tokens = token_count(after.segments)
        branch = Branch(parent.id, self._id(came.root), turns, tokens, found.nats, rise, found.measure)
        return _Member(
            index, came.root, [], first=came.first, after=after, branch=branch, resumed=True, seen=dict(came.seen)
        )

    def _begin(self, member: _Member) -> None:
        self._members[self._id(member.index)] = member
        self._running.add(asyncio.create_task(self._grow(member)))

    async def _grow(self, member: _Member) -> None:
        context = self._context
        armed = is_purified(context.probability, self._seed, self._step, self._task.id, self._first + member.root)
        try:
            made = await rollout_member(
                self._task,
                replace(context, repair=context.repair if armed else None, probability=1.0),
                self._first + member.index,
                seed=self._seed,
                step=self._step,
                grade=self._grade,
                after=member.after,
                replay=member.resumed,
                watch=partial(self._offer_branches, member),
            )
        finally:
            for tool in self._forkable:
                await tool.end(self._id(member.index))
        self._made[member.index] = replace(made, branch=member.branch)

    def _id(self, index: int) -> str:
        return member_id(self._task, self._step, self._first + index)

    async def _offer_branches(self, member: _Member, history: Trajectory, generation: Generation) -> None:
        """Let the strategy branch others off before the member's next turn, which was just generated."""
        turn = len(history.turns)
        if member.branch is not None and turn == member.branch.turns:
            return  # decided by its parent
        found = uncertainty(generation, self._strategy.entropy_tokens)
        member.seen[turn] = found
        if member.first is None:
            member.first = found.nats
            return
        member.later.append(found.nats)
        if not member.slots:
            return
        left, failed = len(member.slots), bool(history.turns) and history.turns[-1].failures > 0
        point = Point(turn, found.nats, member.first, self._vocabulary, member.in_a_row, left, failed)
        draw = random.Random(derive("branch", self._seed, self._step, self._task.id, self._first + member.index, turn))
        count = min(self._strategy.branches(point, draw), len(member.slots))
        member.in_a_row = member.in_a_row + 1 if count else 0
        children, rest = member.slots[:count], member.slots[count:]
        member.slots = rest[:: count + 1]
        tokens = token_count(history.segments)
        rise = found.nats - member.first
        branch = Branch(history.id, self._id(member.root), turn, tokens, found.nats, rise, found.measure)
        for n, index in enumerate(children, 1):
            child = _Member(
                index,
                member.root,
                rest[n :: count + 1],
                first=member.first,
                after=history,
                branch=branch,
                in_a_row=member.in_a_row,
                seen=dict(member.seen),
            )
            if await self._fork_state(history.id, self._id(index), tokens):
                self._begin(child)

    async def _fork_state(self, source: str, branch: str, tokens: int) -> bool:
        """Fork the tools and the engine's cache; False if a state is unavailable, so that there is no branch."""
        try:
            for tool in self._forkable:
                await tool.fork(source, branch)
        except (CheckpointRefused, InfrastructureFault):
            for tool in self._forkable:
                await tool.end(branch)
            return False
        if isinstance(self._context.engine, ForkableEngine):
            self._context.engine.fork(branch, source, tokens)
        return True


async def rollout_group(
    task: Task, context: RolloutContext, *, count: int, seed: int, step: int, grade: Grade, first: int = 0
) -> list[Trajectory]:
    """Return `count` graded rollouts of one task, in order; see `rollout_member` and `branching_group`.

    The context's probes run first, and the others after them. The first error ends all. first: index of the first
    rollout, if others of the task are made elsewhere.
    """

    async def members(indices: range, context: RolloutContext) -> list[Trajectory]:
        return await gather_or_cancel(
            rollout_member(task, context, first + index, seed=seed, step=step, grade=grade) for index in indices
        )

    if context.strategy is not None:
        return await branching_group(task, context, count=count, seed=seed, step=step, grade=grade, first=first)
    probes = context.probes
    if probes is None or context.repair is None:
        return await members(range(count), context)
    made = await members(range(min(probes.count, count)), replace(context, repair=None))
    share = probes.share(context.probability, made)
    return made + await members(range(len(made), count), replace(context, probability=share))


async def rollout_groups(
    tasks: Sequence[Task], context: RolloutContext, *, count: int, seed: int, step: int, grade: Grade
) -> list[list[Trajectory]]:
    """Return a group for every task, in order; all run concurrently. See `rollout_group`."""
    return await gather_or_cancel(
        rollout_group(task, context, count=count, seed=seed, step=step, grade=grade) for task in tasks
    )
