"""Supervised training on demonstrations: the cold start of an agent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from retcon.build import build_chat
from retcon.config.learning import SFTSection
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError
from retcon.core.seeds import derive
from retcon.core.texts import counted
from retcon.core.types import Sample
from retcon.models.devices import OnPlace
from retcon.models.loading import load_config, positions
from retcon.models.placing import model_folder, place_training
from retcon.planning.needs import needs_of, refuse_unfit
from retcon.planning.rates import warn_of_rate
from retcon.runs.folder import open_run
from retcon.runs.manifest import RENDERED
from retcon.store.fingerprint import files_fingerprint, fingerprint, ids_fingerprint
from retcon.train.batch import epoch_batch
from retcon.train.datasets.demonstrations import files_of, read_samples
from retcon.train.kernels.computing import DEFAULT, Computing
from retcon.train.kernels.forward import forwards
from retcon.train.optim import apply, learning_rate, rising_steps
from retcon.train.sampled import Samples, sample_final, to_sample
from retcon.train.trainer import OnStep, Trainer, Training, train
from retcon.train.watch.diverged import refuse_diverged

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BETAS = (0.9, 0.95)


def run_sft(
    recipe: Recipe,
    demonstrations: Path,
    out: Path,
    *,
    on_step: OnStep | None = None,
    on_place: OnPlace | None = None,
    on_samples: Callable[[Samples], None] | None = None,
) -> Path:
    """Train `recipe.model.path` on the file or folder `demonstrations`; returns the folder of the final model.

    These are trajectories of ours, or transcripts in any format that `retcon purify` reads, which go through the
    model's template (see `read_samples`). What is learnt is every token that the demonstrator wrote, failures and their
    repairs among them: nothing is filtered. `sft.validation_share` of them are measured on instead.
    A run that was interrupted goes on from its newest checkpoint in `out`, and Ctrl-C makes one first; one that is
    finished returns at once. on_step gets each step's metrics: step, loss (nats a token), lr, grad_norm, tokens,
    seconds, cpu_s, wall_s; on_place where it computes, before it does; on_samples, what came of `sft.samples` rollouts
    of the final model, where any are wanted.

    Raises CheckpointError (see `open_run`), RecordError for demonstrations that cannot be read or are none, RecipeError
    for what cannot be computed here (see `place_training`), MissingExtra, TrainingDiverged.
    """
    start = model_folder(recipe.model.path)
    where = place_training(recipe, start, ("dtype",))
    config = load_config(start)
    samples = read_samples(
        demonstrations,
        build_chat(recipe, start),
        vocabulary=config.get_text_config().vocab_size,
        max_tokens=positions(config),
    )
    inputs = {"model": fingerprint(start), "demonstrations": files_fingerprint(files_of(demonstrations))}
    inputs[RENDERED] = ids_fingerprint(sample.ids for sample in samples)
    needs = needs_of("sft", recipe, start, where, longest=max(len(s.ids) for s in samples))
    refuse_unfit(needs, out)
    warn_of_rate("sft", recipe, needs.parameters)
    section = recipe.sft
    wanted = to_sample(recipe, start, out)
    learnt, held_out = split(samples, section.validation_share, recipe.run.seed)
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

    training = Training(run, recipe, where, recipe.model.path, section, betas=BETAS)
    final = train(training, steps, on_step=on_step, on_place=on_place)
    if wanted is not None:
        found = sample_final(wanted, run)
        if on_samples is not None:
            on_samples(found)
    return final


def split(samples: Sequence[Sample], share: float, seed: int) -> tuple[list[Sample], list[Sample]]:
    """Those to learn from, and those to measure on: `share` of them, rounded, one at least of each where any are held
    out. Samples that are alike are on one side. Raises RecipeError where there are too few."""
    if not share:
        return list(samples), []
    order = sorted(range(len(samples)), key=lambda n: derive("validation", seed, *samples[n].ids))
    count = max(1, round(share * len(samples)))
    chosen = {samples[n].ids for n in order[:count]}
    learnt = [sample for sample in samples if sample.ids not in chosen]
    if not learnt:
        raise RecipeError(
            f"sft.validation_share = {share}: of {counted(len(samples), 'demonstration')} none is left to learn from"
        )
    return learnt, [sample for sample in samples if sample.ids in chosen]


@torch.no_grad()
def mean_loss(model: PreTrainedModel, samples: Sequence[Sample], computing: Computing) -> float:
    """The mean of -log π over the samples' learnt ids, nats; nothing is learnt."""
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
    computing: Computing = DEFAULT,
) -> dict[str, float]:
    """One update on the mean of -log π over the samples' tokens in the loss mask. step: from 0. Returns its metrics.

    Raises TrainingDiverged where loss or gradient are not finite, before weights move.
    """
    model.train()
    batch = f"step {step + 1}"
    total = sum(sum(s.mask) for s in samples)
    loss = 0.0
    with forwards(model, samples, computing) as parts:
        for part in parts:
            value = -part.logprobs.sum() / total
            refuse_diverged(value.item(), part, batch)
            value.backward()
            loss += value.item()
    rising = rising_steps(config.warmup, config.steps)
    lr = learning_rate(step, config.steps, peak=config.lr, rising=rising, schedule=config.schedule)
    norm = apply(model, optimizer, lr=lr, max_grad_norm=config.max_grad_norm, batch=batch)
    return {"loss": loss, "lr": lr, "grad_norm": norm, "tokens": total}
