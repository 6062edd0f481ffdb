"""Supervised training on demonstrations: the cold start of an agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from retcon.build import (
    build_chat,
    build_evaluation_context,
    build_plain_sampling,
    build_policy,
    build_tasks,
    open_context,
    open_graders,
    resolve_lengths,
)
from retcon.config.schema import Recipe, SFTSection
from retcon.core.concurrency import run_sync
from retcon.core.errors import RecipeError
from retcon.core.seeds import derive
from retcon.core.texts import counted
from retcon.core.types import Sample, Trajectory, is_repaired
from retcon.engine.kinds.local import LocalSection
from retcon.models.devices import DEFAULT_COMPUTING, Computing, OnPlace
from retcon.models.loading import load_config, max_positions
from retcon.models.locating import model_folder
from retcon.models.placing import place_training
from retcon.planning.needs import check_fits, needs_of, warn_of_rate
from retcon.planning.rollouts import check_rollouts_fit
from retcon.rollout.group import rollout_groups
from retcon.rollout.lengths import drop_long_prompts
from retcon.runs.folder import RENDERED, RunFolder, open_run
from retcon.store import jsonl
from retcon.store.fingerprint import files_fingerprint, fingerprint, ids_fingerprint
from retcon.tasks.registry import TaskSet, draw_problems
from retcon.tasks.types import Task
from retcon.train.batch import epoch_batch
from retcon.train.datasets.demonstrations import files_of, read_samples
from retcon.train.kernels.forward import forwards
from retcon.train.optim import learning_rate, step_optimizer, warmup_steps
from retcon.train.rollouts import open_rollouts
from retcon.train.trainer import OnStep, Trainer, Training, train
from retcon.train.watch import check_finite

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """Problems for rollouts of the trained model. tasks: those of `family` whose prompts leave room to answer. recipe:
    with all lengths."""

    recipe: Recipe
    family: TaskSet
    tasks: tuple[Task, ...]


@dataclass(frozen=True, slots=True)
class SamplingResult:
    """Result of sampling. passed: right ones of `total`. lost: to infrastructure faults. file: with the rollouts."""

    passed: int
    total: int
    lost: int
    file: Path


def plan_sampling(recipe: Recipe, folder: Path, out: Path, count: int | None = None) -> SamplingPlan | None:
    """Choose `count` evaluation problems (None: `sft.samples`) for the trained model; return None for 0. out: of the
    run. Raises RecipeError without problems, if no prompt leaves room to answer, the model has fewer positions than the
    recipe's rollouts may have tokens, or memory does not hold these and the run is not finished, and what `build_tasks`
    raises."""
    count = recipe.sft.samples if count is None else count
    if not count:
        return None
    family = build_tasks(recipe, folder)
    recipe, _ = resolve_lengths(recipe, folder, family)
    _check_positions(recipe, folder)
    if not RunFolder(out).finished:
        check_rollouts_fit(recipe, folder)
    asked = draw_problems(recipe, family, count)
    fit = drop_long_prompts(asked, build_chat(recipe, folder, family), recipe.rollout.max_tokens)
    return SamplingPlan(recipe, family, tuple(fit))


def _check_positions(recipe: Recipe, folder: Path) -> None:
    """Check that the local engine will take the trained model's positions. Raises RecipeError."""
    limit = max_positions(load_config(folder))
    most = recipe.rollout.max_tokens + recipe.rollout.lookahead_tokens
    if isinstance(recipe.engine, LocalSection) and limit is not None and most > limit:
        raise RecipeError(
            f"rollout.max_tokens + rollout.lookahead_tokens = {most}, and the model has {limit} positions: lower them, "
            "or leave sft.samples and sft.first_repair out"
        )


def sample_final(wanted: SamplingPlan, run: RunFolder) -> SamplingResult:
    """Sample greedy rollouts of the final model, or read a finished run's. They have no repairs. Raises
    SandboxUnavailable."""
    steps = wanted.recipe.sft.steps
    file = run.trajectories(steps)
    if not file.exists():
        run.keep_trajectories(steps, asyncio.run(_greedy_rollouts(wanted, run.final)))
    made = list(jsonl.read(file))
    return SamplingResult(sum((t.reward or 0) > 0 for t in made), len(made), sum(t.reward is None for t in made), file)


async def _greedy_rollouts(wanted: SamplingPlan, final: Path) -> list[Trajectory]:
    recipe, family = wanted.recipe, wanted.family
    chat = build_chat(recipe, final, family)
    engine = build_policy(recipe, final, chat)
    greedy = replace(build_plain_sampling(recipe), temperature=0.0)
    async with open_context(recipe, engine, chat) as opened, open_graders(family) as graders:
        context = replace(opened, sampling=greedy, model=str(final))
        groups = await rollout_groups(
            wanted.tasks, context, count=1, seed=recipe.evaluate.seed, step=recipe.sft.steps, grade=graders.judged.grade
        )
    return [trajectory for (trajectory,) in groups]


REPAIR_PROBLEMS, AT_ONCE = 96, 12
"""Most problems of the search for the first repair, and how many at a time."""


async def _sample_first_repair(wanted: SamplingPlan, trainer: Trainer, tokenizer: Path) -> list[Trajectory]:
    """Roll the current model out with SAAR, up to the first problems with a repaired call."""
    recipe = wanted.recipe
    recipe = recipe.model_copy(update={"evaluate": recipe.evaluate.model_copy(update={"repair": "saar"})})
    made: list[Trajectory] = []
    trainer.model.eval()
    async with open_rollouts(recipe, trainer.engine_weights(), tokenizer, wanted.family) as rollouts:
        context = build_evaluation_context(recipe, rollouts.context, build_plain_sampling(recipe))
        grade = (rollouts.judged or rollouts.tasks).grade
        for first in range(0, len(wanted.tasks), AT_ONCE):
            tasks = wanted.tasks[first : first + AT_ONCE]
            seed, step = recipe.evaluate.seed, recipe.sft.first_repair
            groups = await rollout_groups(tasks, context, count=1, seed=seed, step=step, grade=grade)
            made += [trajectory for (trajectory,) in groups]
            if any(map(is_repaired, made)):
                break
    return made


BETAS = (0.9, 0.95)


def run_sft(
    recipe: Recipe,
    demonstrations: Path,
    out: Path,
    *,
    on_step: OnStep | None = None,
    on_place: OnPlace | None = None,
    on_samples: Callable[[SamplingResult], None] | None = None,
) -> Path:
    """Train `recipe.model.path` on demonstrations; return the final model's folder.

    demonstrations: a file or folder of Retcon's trajectories, or of transcripts in any format of `retcon purify`, which
    go through the model's template (see `read_samples`). Every token that the demonstrator wrote is learnt, failures
    and their repairs included. `sft.validation_share` of them are held out for validation.
    An interrupted run goes on from its newest checkpoint in `out`, and Ctrl-C makes one first; a finished one returns
    at once. on_step gets each step's metrics: step, loss (nats a token), lr, grad_norm, tokens, seconds, cpu_s, wall_s;
    on_place the placement, before computing; on_samples the result of `sft.samples` rollouts of the final model, if
    any.

    Raises CheckpointError (see `open_run`), RecordError for unreadable or empty demonstrations, RecipeError for an
    unavailable device or the like (see `place_training`), MissingExtra, TrainingDiverged.
    """
    start = model_folder(recipe.model.path)
    where = place_training(recipe, start, ("dtype",))
    config = load_config(start)
    samples = read_samples(
        demonstrations,
        build_chat(recipe, start),
        vocabulary=config.get_text_config().vocab_size,
        max_tokens=max_positions(config),
    )
    inputs = {"model": fingerprint(start), "demonstrations": files_fingerprint(files_of(demonstrations))}
    inputs[RENDERED] = ids_fingerprint(sample.ids for sample in samples)
    needs = needs_of("sft", recipe, start, where, longest=max(len(s.ids) for s in samples))
    check_fits(needs, out)
    warn_of_rate("sft", recipe, needs.parameters)
    section = recipe.sft
    wanted = plan_sampling(recipe, start, out, section.samples)
    repaired = plan_sampling(recipe, start, out, REPAIR_PROBLEMS if section.first_repair else 0)
    learnt, held_out = split_validation(samples, section.validation_share, recipe.run.seed)
    run = open_run(out, kind="sft", recipe=recipe, inputs=inputs)

    def steps(trainer: Trainer) -> None:
        with trainer.interruptible():
            while trainer.step < section.steps:
                began = time.perf_counter()
                torch.manual_seed(derive("dropout", recipe.run.seed, trainer.step))  # a resumed run must not differ
                chosen = epoch_batch(len(learnt), section.batch, seed=recipe.run.seed, step=trainer.step)
                batch = [learnt[i] for i in chosen]
                metrics = sft_step(
                    trainer.model, trainer.optimizer, batch, section, trainer.step, computing=trainer.computing
                )
                taken = trainer.step + 1
                if held_out and (taken % section.validate_every == 0 or taken == section.steps):
                    metrics["validation_loss"] = mean_loss(trainer.model, held_out, trainer.computing)
                trainer.done({**metrics, "seconds": round(time.perf_counter() - began, 4)})
                if repaired is not None and trainer.step == section.first_repair:
                    with trainer.off_the_clock():
                        run.keep_trajectories(taken, run_sync(_sample_first_repair(repaired, trainer, start)))

    training = Training(run, recipe, where, recipe.model.path, section, betas=BETAS)
    final = train(training, steps, on_step=on_step, on_place=on_place)
    if wanted is not None:
        found = sample_final(wanted, run)
        if on_samples is not None:
            on_samples(found)
    return final


def split_validation(samples: Sequence[Sample], share: float, seed: int) -> tuple[list[Sample], list[Sample]]:
    """Split samples for training and validation: `share` of them is held out, rounded, at least one of each. Equal
    samples are on one side. Raises RecipeError if there are too few."""
    if not share:
        return list(samples), []
    order = sorted(range(len(samples)), key=lambda n: derive("validation", seed, *samples[n].ids))
    count = max(1, round(share * len(samples)))
    chosen = {samples[n].ids for n in order[:count]}
    learnt = [sample for sample in samples if sample.ids not in chosen]
    if not learnt:
        raise RecipeError(
            f"sft.validation_share = {share}: of {counted(len(samples), 'demonstration')} none is left for training"
        )
    return learnt, [sample for sample in samples if sample.ids in chosen]


@torch.no_grad()
def mean_loss(model: PreTrainedModel, samples: Sequence[Sample], computing: Computing) -> float:
    """Return the mean of -log π over the loss masks, nats."""
    training = model.training
    model.eval()
    with forwards(model, samples, computing) as parts:
        total = sum(-part.logprobs.sum().item() for part in parts)
    model.train(training)
    return total / sum(sum(sample.mask) for sample in samples)


def sft_step(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[Sample],
    config: SFTSection,
    step: int,
    *,
    computing: Computing = DEFAULT_COMPUTING,
) -> dict[str, float]:
    """Update on the mean of -log π over the loss masks (`sft.aggregate`); return metrics.

    step: from 0. Raises TrainingDiverged if loss or gradient are not finite, before weights move.
    """
    model.train()
    batch = f"step {step + 1}"
    total = sum(sum(s.mask) for s in samples)
    loss = 0.0
    with forwards(model, samples, computing) as parts:
        for part in parts:
            if config.aggregate == "sequence":
                tokens = part.batch.mask.sum(dim=1, keepdim=True).clamp(min=1)
                value = -(part.logprobs / tokens).sum() / len(samples)
            else:
                value = -part.logprobs.sum() / total
            check_finite(value.item(), part, batch)
            value.backward()
            loss += value.item()
    rising = warmup_steps(config.warmup, config.steps)
    lr = learning_rate(step, config.steps, peak=config.lr, rising=rising, schedule=config.schedule)
    norm = step_optimizer(model, optimizer, lr=lr, max_grad_norm=config.max_grad_norm, batch=batch)
    return {"loss": loss, "lr": lr, "grad_norm": norm, "tokens": total}
