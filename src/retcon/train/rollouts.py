"""Rollouts of a training run, from weights that change: the engine's are kept equal to the trained ones."""

from __future__ import annotations

import asyncio
import copy
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from retcon.build import (
    build_chat,
    build_evaluation_context,
    build_plain_sampling,
    build_repair,
    build_step_context,
    build_strategy,
    build_training_engine,
    open_connected,
    open_context,
    open_graders,
)
from retcon.config.schema import Recipe
from retcon.core.concurrency import cancel_all
from retcon.core.errors import RecipeError
from retcon.core.seeds import derive
from retcon.core.types import TRAINED, Trajectory, count_first_tries
from retcon.engine.types import Adapters, CarriesOver, RemoteWeights, TrainableEngine
from retcon.models.lora import Adapter, merged_weight
from retcon.rollout.context import MAX_LOST_SHARE, RolloutContext
from retcon.rollout.group import rollout_groups
from retcon.tasks.registry import Grade, TaskSet
from retcon.tasks.types import Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class EngineWeights:
    """An engine's `model`, which `sync` updates from the trained one.

    It is the trained model itself if that has weights of `dtype` and no adapters, else a copy without adapters.
    Decoding thus never runs adapters, which costs a copy of every weight that they change; other weights of that dtype
    are shared. adapters: those merged into it, for an engine elsewhere that takes them as such.
    """

    def __init__(self, trained: PreTrainedModel, dtype: torch.dtype, adapter: Adapter | None = None) -> None:
        self.model = trained
        self.adapters = None
        # By id of a trained model's parameter: returns the value of the engine's copy.
        sources: dict[int, Callable[[], Tensor]] = {id(p): p.detach for p in trained.parameters() if p.dtype != dtype}
        if adapter is not None:
            targets = sorted({name.rpartition(".")[2] for name, _, _ in adapter.layers()})
            self.adapters = Adapters(adapter.rank, tuple(targets), adapter.save)
            sources = {id(weight): partial(merged_weight, layer, weight) for _, layer, weight in adapter.layers()}
        self._pairs: list[tuple[Tensor, Callable[[], Tensor]]] = []
        if not sources:
            return
        # The copy of each parameter: a tied one is copied once, as it is one parameter.
        memo: dict[int, Any] = {
            id(p): nn.Parameter(p.detach().to(dtype, copy=id(p) in sources), requires_grad=False)
            for p in trained.parameters()
        }
        self._pairs = [(memo[key], source) for key, source in sources.items()]
        self.model = copy.deepcopy(trained, memo) if adapter is None else adapter.plain(memo)
        self.model.eval()
        self.sync()

    @torch.no_grad()
    def sync(self) -> None:
        """Copy the trained weights over, in place. The engine's cache under the old ones is then useless."""
        for target, source in self._pairs:
            target.copy_(source())


EVALUATED = ("eval_pass_rate", "eval_failed_calls", "eval_first_try_failure_rate", "eval_tokens")
NOT_EVALUATED: Mapping[str, float | None] = {**dict.fromkeys(EVALUATED), "eval_rollouts": 0}
"""Metrics of an evaluation whose rollouts were all lost."""


@dataclass(frozen=True, slots=True)
class TrainingRollouts:
    """Rollouts for training, from an engine that `sync` updates. judged: `tasks` with the grading of evaluations
    (`build.Graded`), None if they do not differ."""

    recipe: Recipe
    context: RolloutContext
    tasks: TaskSet
    engine: TrainableEngine
    weights: EngineWeights
    judged: TaskSet | None = None
    graded: Counter[int] = field(default_factory=Counter)
    """Rollouts of each step that are graded so far."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall seconds of each graded rollout, from its group's start."""

    async def of(self, tasks: Sequence[Task], *, step: int) -> list[list[Trajectory]]:
        """Return a graded group of G' rollouts per task; all randomness derives from (seed, step, task, index)."""
        return await rollout_groups(
            tasks,
            replace(build_step_context(self.recipe, self.context, step), strategy=build_strategy(self.recipe)),
            count=self.recipe.select.made(self.recipe.rl.group),
            seed=self.recipe.run.seed,
            step=step,
            grade=self._counted(step),
        )

    def _counted(self, step: int) -> Grade:
        began = time.perf_counter()

        def grade(task: Task, trajectory: Trajectory) -> Any:
            self.graded[step] += 1
            self.seconds[trajectory.id] = time.perf_counter() - began
            return self.tasks.grade(task, trajectory)

        return grade

    async def evaluated(self) -> dict[str, float | None]:
        """Evaluate the current weights by [evaluate], `evaluate.every_samples` rollouts per problem.

        Problems and random streams are always the same; purification is off unless evaluate.repair is set.

        eval_pass_rate: the mean over problems of pass@1; eval_failed_calls, eval_tokens (sampled): of a rollout, as
        they happened; eval_first_try_failure_rate: see `retcon.core.types`, None without a try; eval_rollouts: those
        that no fault ended. If faults took more than MAX_LOST_SHARE, there are no other metrics (None).
        """
        section = self.recipe.evaluate
        groups = await rollout_groups(
            self.tasks.evaluation(section.problems, section.seed),
            build_evaluation_context(self.recipe, self.context, build_plain_sampling(self.recipe)),
            count=section.every_samples,
            seed=derive("evaluation", section.seed, "every"),
            step=0,
            grade=(self.judged or self.tasks).grade,
        )
        kept = [[t for t in group if t.reward is not None] for group in groups]
        graded = [t for group in kept for t in group]
        count, made = len(graded), sum(map(len, groups))
        if not count or made - count > MAX_LOST_SHARE * made:
            return {**NOT_EVALUATED, "eval_rollouts": count}
        tries = [count_first_tries(t) for t in graded]
        tried = sum(t.made for t in tries)
        return {
            "eval_pass_rate": fmean(fmean((t.reward or 0) > 0 for t in group) for group in kept if group),
            "eval_failed_calls": sum(t.raw_failures for t in graded) / count,
            "eval_first_try_failure_rate": sum(t.failed for t in tries) / tried if tried else None,
            "eval_tokens": sum(node.sampled_tokens for t in graded for node in t.tree) / count,
            "eval_rollouts": count,
        }

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Suspend the engine's computation here for a block; generations under way go on afterwards."""
        if isinstance(self.engine, CarriesOver):
            async with self.engine.suspended():
                yield
        else:
            yield

    def rest(self) -> None:
        """Free the engine's keys and values before an update. That makes them worthless, and needs the memory for
        gradients and activations."""
        self.engine.invalidate()

    async def sync(self, version: int = 0) -> None:
        """Give the engine updated weights, and drop its keys and values. version: steps so far, which tokens carry if
        rollouts run ahead."""
        self.weights.sync()
        self.engine.invalidate()
        _set_version(self.recipe, self.engine, version)
        if isinstance(self.engine, RemoteWeights):
            await self.engine.follow()


@asynccontextmanager
async def open_rollouts(
    recipe: Recipe,
    weights: EngineWeights,
    tokenizer: Path,
    tasks: TaskSet,
    *,
    reserved: int = 0,
    version: int = 0,
    least: int = 0,
) -> AsyncIterator[TrainingRollouts]:
    """Open rollouts of `weights`, with a started sandbox. reserved: bytes that the trainer will allocate and keep
    during rollouts. version: as in `sync`. least: tokens that the engine must take. Raises SandboxUnavailable,
    CheckpointError, EngineError."""
    chat = build_chat(recipe, tokenizer, tasks)
    side_by_side = recipe.rl.prompts * recipe.select.made(recipe.rl.group) * (1 + recipe.rl.max_staleness)
    engine = build_training_engine(
        recipe,
        weights.model,
        chat,
        max_requests=side_by_side,
        reserved=reserved,
        folder=tokenizer,
        least=least,
        adapters=weights.adapters,
    )
    async with engine, open_context(recipe, engine, chat) as context, open_graders(tasks) as graders:
        _set_version(recipe, engine, version)
        if isinstance(engine, RemoteWeights):
            await engine.follow()  # a resumed run has other weights than the folder
        repairing = replace(context, repair=build_repair(recipe))
        yield TrainingRollouts(recipe, repairing, graders.rewarded, engine, weights, graders.judged)


@asynccontextmanager
async def rollouts_for(
    recipe: Recipe, rollouts: TrainingRollouts, tokenizer: Path, tasks: TaskSet
) -> AsyncIterator[TrainingRollouts]:
    """Open rollouts of another recipe's tasks on the same engine; with another sandbox if that, the tasks or the limits
    differ."""
    if all(getattr(recipe, section) == getattr(rollouts.recipe, section) for section in ("task", "rollout", "sandbox")):
        yield replace(rollouts, recipe=recipe)
        return
    chat = build_chat(recipe, tokenizer, tasks)
    async with open_connected(recipe, rollouts.engine, chat) as context, open_graders(tasks) as graders:
        yield replace(rollouts, recipe=recipe, context=context, tasks=graders.rewarded, judged=graders.judged)


def _set_version(recipe: Recipe, engine: TrainableEngine, version: int) -> None:
    if recipe.rl.max_staleness and isinstance(engine, CarriesOver):
        engine.version = version


# The groups of a run, step after step; with `rl.max_staleness` they begin before the step that learns from them.
#
# A step then does not wait for its longest rollouts with an empty engine: those of the next steps are under way beside
# them, and go on while the step is computed. Groups are taken in the order of their prompts, not of their ends: the
# training data are not biased towards short rollouts, and the prompts that a checkpoint counts as drawn are those that
# steps have taken. A resumed run rolls open groups out anew: no prompt is lost or comes twice. No group begins for a
# step beyond the last of a stage, as the next stage's rollouts differ.

T = TypeVar("T")
Group = tuple[Task, list[Trajectory]]


class GroupStream:
    """Stream of groups in the order of `prompts`, some steps ahead.

    It begins groups up to `rl.max_staleness` steps ahead. last: the last step with groups; None for the run's. It works
    within `async with`; its end cancels open groups."""

    def __init__(self, rollouts: TrainingRollouts, prompts: Iterator[Task], *, last: int | None = None) -> None:
        self.rollouts = rollouts
        self._last = rollouts.recipe.rl.steps if last is None else last
        self._prompts = prompts
        self._ahead = rollouts.recipe.rl.max_staleness
        self._under_way: deque[tuple[Task, asyncio.Task[list[list[Trajectory]]]]] = deque()
        self._named: dict[str, int] = {}  # the step that a task's rollouts were last named after

    async def __aenter__(self) -> GroupStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        running = [group for _, group in self._under_way]
        self._under_way.clear()
        await cancel_all(running)

    async def take(self, count: int, *, step: int) -> list[Group]:
        """Return the next `count` graded groups for this step. Raises RecipeError if the prompts end, and the first
        error of a rollout."""
        if not self._ahead:
            tasks = list(islice(self._prompts, count))
            _check_count(len(tasks), count, step)
            return list(zip(tasks, await self.rollouts.of(tasks, step=step), strict=True))
        self._begin(count, step)
        taken = list(islice(self._under_way, count))
        _check_count(len(taken), count, step)
        groups = [groups for (groups,) in await asyncio.gather(*(group for _, group in taken))]
        for _ in taken:
            self._under_way.popleft()
        return list(zip((task for task, _ in taken), groups, strict=True))

    def _begin(self, count: int, step: int) -> None:
        """Begin groups, so that `count` are under way for this step, then those of the next steps.

        Each is named after its step, or a later one if its task had that name before, as dynamic sampling uses up
        groups begun for later steps: no two rollouts have one name.
        """
        of_a_step = self.rollouts.recipe.rl.prompts
        wanted = count + min(self._ahead, self._last - step) * of_a_step
        self._named = {task: name for task, name in self._named.items() if name >= step}
        for task in islice(self._prompts, max(0, wanted - len(self._under_way))):
            later = max(0, 1 + (len(self._under_way) - count) // of_a_step)
            name = self._named[task.id] = max(step + later, self._named.get(task.id, 0) + 1)
            group = asyncio.create_task(self.rollouts.of([task], step=name))
            self._under_way.append((task, group))


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread, so that tools are served meanwhile. A cancelled caller waits for its end: weights must
    not change after that."""
    done = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait([done])
        raise


def _check_count(found: int, count: int, step: int) -> None:
    if found < count:
        raise RecipeError(f"step {step}: the prompts have run out; give run_rl a task set that does not end")


def staleness(groups: Sequence[Sequence[Trajectory]], step: int) -> dict[str, float | None]:
    """Return metrics of the age of sampling weights. staleness_mean, staleness_max: in steps, over sampled tokens.

    partial_rollouts: share of the rollouts sampled by weights of several steps. None without tokens or rollouts."""
    ages: list[int] = []
    partial = 0
    rollouts = [node for group in groups for trajectory in group for node in trajectory.tree]
    for trajectory in rollouts:
        versions = [v for s in trajectory.segments if s.kind in TRAINED for v in s.versions or ()]
        ages += [step - 1 - version for version in versions]
        partial += len(set(versions)) > 1
    return {
        "staleness_mean": round(sum(ages) / len(ages), 4) if ages else None,
        "staleness_max": max(ages, default=None),
        "partial_rollouts": round(partial / len(rollouts), 4) if rollouts else None,
    }
