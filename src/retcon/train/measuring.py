"""Measurement of a training by a real first step, without output."""

from __future__ import annotations

import asyncio
import random
import resource
import sys
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from retcon.build import (
    build_chat,
    build_evaluation_context,
    build_plain_sampling,
    build_policy,
    open_context,
    open_graded,
)
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError, SandboxUnavailable
from retcon.core.types import Sample, to_sample
from retcon.engine.types import HasStatistics
from retcon.models.devices import Computing, Placement, computing_of
from retcon.models.lora import Adapter
from retcon.models.placing import start_model
from retcon.rollout.group import rollout_groups
from retcon.tasks.registry import TaskSet
from retcon.tasks.types import Task
from retcon.train.kernels.forward import batches_of, forwards
from retcon.train.objective.old_logprobs import with_reference
from retcon.train.optim import adamw, step_optimizer, torch_settings
from retcon.train.prompts import PromptStream
from retcon.train.rollouts import EngineWeights, open_rollouts

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROLLOUT_SECONDS = 30.0
"""Wall time for the rollouts of a measurement."""
SIDE_BY_SIDE = 64
"""Rollouts of an evaluation that are measured."""
TRAIN_TOKENS = 4096
"""Tokens of a measured update, unless a micro-batch has more; at least one sample."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measurement of a step on this machine. rollout_seconds: None without rollouts. whole: whether rollouts ended;
    else the seconds are for rollouts that all use up rollout.max_tokens. tokens: of a step's samples, prompts included,
    in all of its epochs. sampled_per_second, trained_per_second: tokens. peak: most bytes of this process in the
    device's memory, without the sandbox's workers. scoring_seconds: of the forward passes over a step's samples before
    its updates.
    """

    rollout_seconds: float | None
    train_seconds: float
    whole: bool
    tokens: int
    sampled_per_second: float
    trained_per_second: float
    peak: int
    scoring_seconds: float = 0.0

    @property
    def step_seconds(self) -> float:
        return (self.rollout_seconds or 0.0) + self.scoring_seconds + self.train_seconds


@dataclass(frozen=True, slots=True)
class _RolloutSample:
    seconds: float
    whole: bool
    sampled_per_second: float
    samples: list[Sample]


def measure_rl(recipe: Recipe, folder: Path, prompts: PromptStream, place: Placement) -> Measurement:
    """Measure a first step's rollouts and an update on some of them.

    Model and sandbox are the real ones. Raises SandboxUnavailable if faults take all of these rollouts."""
    with torch_settings(place):
        model = start_model(folder, recipe.run.seed, place.attention, place.device)
        adapter = Adapter(model, recipe.lora, seed=recipe.run.seed) if recipe.lora.rank else None
        weights = EngineWeights(model, getattr(torch, place.rollout_dtype), adapter)
        rolled = asyncio.run(_rollouts(recipe, folder, weights, prompts))
        trained = recipe.rl.prompts * recipe.rl.group
        lengths = [len(sample.ids) for sample in rolled.samples]
        mean = round(sum(lengths) / len(lengths)) if rolled.whole else recipe.rollout.max_tokens
        some = rolled.samples if rolled.whole else [_random_sample(model, mean) for _ in range(trained)]
        per_second = _update(recipe, model, place, some)
        scoring = mean * trained * _scoring(recipe, model, place, some)
    tokens = mean * trained * recipe.rl.epochs
    return Measurement(
        rolled.seconds,
        tokens / per_second,
        rolled.whole,
        tokens,
        rolled.sampled_per_second,
        per_second,
        _peak(place),
        scoring,
    )


def measure_updates(
    recipe: Recipe, folder: Path, place: Placement, samples: Sequence[Sample], batch: int
) -> Measurement:
    """Measure an update of supervised or preference training, `batch` samples a step."""
    with torch_settings(place):
        model = start_model(folder, recipe.run.seed, place.attention, place.device)
        if recipe.lora.rank:
            Adapter(model, recipe.lora, seed=recipe.run.seed)
        per_second = _update(recipe, model, place, samples)
    tokens = round(batch * sum(len(sample.ids) for sample in samples) / len(samples))
    return Measurement(None, tokens / per_second, True, tokens, 0.0, per_second, _peak(place))


def measure_evaluation(recipe: Recipe, folder: Path, problems: Sequence[Task], tasks: TaskSet) -> Measurement:
    """Measure some rollouts of an evaluation. They are decoded side by side; rollout_seconds and tokens are of one."""
    chat = build_chat(recipe, folder, tasks)
    places: list[Placement] = []  # none of an engine elsewhere
    engine = build_policy(recipe, folder, chat, places.append)
    if not isinstance(engine, HasStatistics):
        raise RecipeError(f"engine.kind = '{recipe.engine.kind}' counts no tokens: its speed cannot be measured")
    some = list(problems)[: max(1, SIDE_BY_SIDE // recipe.evaluate.samples)]
    count = len(some) * recipe.evaluate.samples

    async def roll() -> tuple[float, bool, float]:
        async with open_context(recipe, engine, chat) as opened, open_graded(tasks) as graded:
            began, before = time.perf_counter(), engine.stats.generated
            context = build_evaluation_context(recipe, opened, build_plain_sampling(recipe))
            work = rollout_groups(
                some, context, count=recipe.evaluate.samples, seed=0, step=0, grade=graded.grade
            )  # fmt: skip
            try:
                await asyncio.wait_for(work, ROLLOUT_SECONDS)
                whole = True
            except TimeoutError:
                whole = False
            seconds = time.perf_counter() - began
            return seconds, whole, (engine.stats.generated - before) / seconds

    seconds, whole, rate = asyncio.run(roll())
    each = seconds / count if whole else recipe.rollout.max_tokens / max(rate, 1e-9)
    return Measurement(each, 0.0, whole, round(each * rate), rate, 0.0, _peak(*places))


async def _rollouts(recipe: Recipe, folder: Path, weights: EngineWeights, prompts: PromptStream) -> _RolloutSample:
    async with open_rollouts(recipe, weights, folder, prompts.tasks) as rollouts:
        tasks = list(islice(prompts.after(0), recipe.rl.prompts))
        began = time.perf_counter()
        try:
            groups = await asyncio.wait_for(rollouts.of(tasks, step=1), ROLLOUT_SECONDS)
        except TimeoutError:
            groups = []
        seconds = time.perf_counter() - began
        rate = rollouts.engine.stats.generated / seconds
        rollouts.rest()
    if not groups:
        most = recipe.rl.prompts * recipe.select.made(recipe.rl.group) * recipe.rollout.max_tokens
        return _RolloutSample(most / max(rate, 1e-9), False, rate, [])
    samples = [sample for group in groups for t in group if t.reward is not None and any((sample := to_sample(t)).mask)]
    if not samples:
        raise SandboxUnavailable(
            f"infrastructure faults took all rollouts of the measurement{rollouts.context.faults.why}: the run would "
            "end likewise; see `retcon doctor`"
        )
    return _RolloutSample(seconds, True, rate, samples)


def _update(recipe: Recipe, model: PreTrainedModel, place: Placement, samples: Sequence[Sample]) -> float:
    """Return the tokens a second of an update, by the second of two, on a warm machine."""
    computing = computing_of(recipe.compute, place)
    some = _some(model, samples, computing)
    optimizer = adamw(model, 1e-6, weight_decay=0.0)
    seconds = 0.0
    for _ in range(2):
        began = time.perf_counter()
        with forwards(model, some, computing) as parts:
            for part in parts:
                (-part.logprobs.mean()).backward()
        step_optimizer(model, optimizer, lr=1e-6, max_grad_norm=1.0)
        seconds = time.perf_counter() - began
    return sum(len(sample.ids) for sample in some) / seconds


def _scoring(recipe: Recipe, model: PreTrainedModel, place: Placement, samples: Sequence[Sample]) -> float:
    """Return the seconds a token of a step's forward passes before its updates: one each for recomputed old log-probs,
    a reference, and weights by entropy."""
    section = recipe.rl
    recomputed = section.old_logprobs == "recompute" or recipe.rollout.temperature != 1
    forward_passes = sum([recomputed, section.kl > 0, bool(section.entropy_weight)])
    if not forward_passes:
        return 0.0
    computing = computing_of(recipe.compute, place)
    some = _some(model, samples, computing)
    began = time.perf_counter()
    with_reference(model, some, computing)
    return forward_passes * (time.perf_counter() - began) / sum(len(sample.ids) for sample in some)


def _some(model: PreTrainedModel, samples: Sequence[Sample], computing: Computing) -> Sequence[Sample]:
    """Return the samples to measure: those that fill a micro-batch, which sets memory and speed."""
    full = computing.micro_batch_tokens
    ends = list(accumulate(len(sample.ids) for sample in samples))
    some = samples[: max(1, bisect_right(ends, max(TRAIN_TOKENS, full)))]
    while len(some) < len(samples) and len(some[0].ids) < full and len(batches_of(model, some, computing)) == 1:
        some = samples[: 2 * len(some)]
    return some


def _random_sample(model: PreTrainedModel, length: int) -> Sample:
    draw = random.Random(length)
    ids = tuple(draw.randrange(model.config.get_text_config().vocab_size) for _ in range(length))
    known = (0, *([1] * (length - 1)))
    return Sample(ids, known, (None, *([-1.0] * (length - 1))), (0,) * length)


def _peak(place: Placement | None = None) -> int:
    """Return the peak bytes of a GPU, else of the process, for which Linux has KiB, macOS bytes."""
    if place is not None and place.device != "cpu":
        return torch.cuda.max_memory_reserved(place.device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
