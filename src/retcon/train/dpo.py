"""Direct preference optimisation: prefer the fix of a failed call to the call."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from retcon.build import build_chat
from retcon.config.schema import DPOSection, Recipe
from retcon.core.types import Sample
from retcon.models.devices import DEFAULT_COMPUTING, Computing, OnPlace, Placement, computing_of
from retcon.models.loading import load_config, max_positions
from retcon.models.locating import locate, name_of
from retcon.models.placing import place_training, start_model
from retcon.planning.needs import check_fits, needs_of, warn_of_rate
from retcon.runs.folder import RENDERED, open_run
from retcon.store.fingerprint import fingerprint, ids_fingerprint
from retcon.train.batch import epoch_batch
from retcon.train.datasets.preferences import Preference, both_sides, read_preferences
from retcon.train.kernels.forward import forwards
from retcon.train.optim import learning_rate, step_optimizer, warmup_steps
from retcon.train.trainer import OnStep, Trainer, Training, train
from retcon.train.watch import check_finite

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def dpo_loss(
    chosen: Tensor, rejected: Tensor, *, reference: tuple[Tensor, Tensor], beta: float
) -> tuple[Tensor, Tensor]:
    """Return the mean DPO loss and the margins m, (B,), without gradient.

    -log σ(m), m = β [(log π(y_w|x) - log π_ref(y_w|x)) - (log π(y_l|x) - log π_ref(y_l|x))]: arXiv 2305.18290, equation
    7. chosen, rejected: (B,) nats, the sums over the compared tokens; reference: theirs under π_ref.
    """
    margins = beta * ((chosen - reference[0]) - (rejected - reference[1]))
    return -logsigmoid(margins).mean(), margins.detach()


def run_dpo(
    recipe: Recipe,
    pairs: Path,
    start: Path,
    out: Path,
    *,
    on_step: OnStep | None = None,
    on_place: OnPlace | None = None,
) -> Path:
    """Train a model on preference pairs in a file; return the final folder.

    start: folder of the model, which is also π_ref. An interrupted run goes on from its newest checkpoint in `out`, and
    Ctrl-C makes one first; a finished one returns at once. on_step gets each step's metrics: step, loss, accuracy
    (share of pairs whose margin is positive), margin, chosen and rejected (means of β log π/π_ref), lr, grad_norm,
    seconds, cpu_s, wall_s; on_place gets the placement, before computing.

    Raises CheckpointError (see `open_run`), RecordError for an invalid or empty file (see `read_preferences`),
    RecipeError for an unavailable device or the like (see `place_training`), MissingExtra, TrainingDiverged.
    """
    folder = locate(start)
    where = place_training(recipe, folder, ("dtype",))
    config = load_config(folder).get_text_config()
    chat, limit = build_chat(recipe, folder), max_positions(config)
    preferences = read_preferences(pairs, chat, vocabulary=config.vocab_size, max_tokens=limit)
    inputs = {"start": fingerprint(folder), "pairs": fingerprint(pairs)}
    inputs[RENDERED] = ids_fingerprint(sample.ids for sample in both_sides(preferences))
    needs = needs_of("dpo", recipe, folder, where, longest=max(len(s.ids) for s in both_sides(preferences)))
    check_fits(needs, out)
    warn_of_rate("dpo", recipe, needs.parameters)
    run = open_run(out, kind="dpo", recipe=recipe, inputs=inputs, start=name_of(folder))
    section = recipe.dpo

    known: Tensor

    def evaluate_reference() -> None:
        nonlocal known
        known = _reference(recipe, folder, where, preferences)

    def steps(trainer: Trainer) -> None:
        with trainer.interruptible():
            while trainer.step < section.steps:
                began = time.perf_counter()
                drawn = epoch_batch(len(preferences), section.batch, seed=recipe.run.seed, step=trainer.step)
                metrics = dpo_step(
                    trainer.model,
                    trainer.optimizer,
                    [preferences[i] for i in drawn],
                    known[drawn],
                    section,
                    step=trainer.step,
                    computing=trainer.computing,
                )
                trainer.done({**metrics, "seconds": round(time.perf_counter() - began, 4)})

    training = Training(run, recipe, where, start, section)
    return train(training, steps, first=evaluate_reference, on_step=on_step, on_place=on_place)


def dpo_step(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    pairs: Sequence[Preference],
    reference: Tensor,
    section: DPOSection,
    *,
    step: int,
    computing: Computing = DEFAULT_COMPUTING,
) -> dict[str, float]:
    """Update on the mean of the pairs' losses; return the metrics. reference: (B, 2), log π_ref of chosen and rejected,
    nats. step: from 0.

    The two sides of a pair may come in different micro-batches: a first forward, without gradient, finds the weight of
    each side's log-prob, and a second one applies it. The model stays in evaluation mode, as dropout would differ
    between the two, and from π_ref.
    """
    model.eval()
    batch = f"step {step + 1}"
    samples = both_sides(pairs)
    with torch.no_grad():
        found = sum_logprobs(model, samples, computing).view(-1, 2)
    sums = found.detach().requires_grad_()
    reference = reference.to(sums.device)
    loss, margins = dpo_loss(sums[:, 0], sums[:, 1], reference=(reference[:, 0], reference[:, 1]), beta=section.beta)
    (weights,) = torch.autograd.grad(loss, sums)
    by_sample = {id(sample): weight for sample, weight in zip(samples, weights.flatten(), strict=True)}
    with forwards(model, samples, computing) as parts:
        for part in parts:
            counted = torch.stack([by_sample[id(sample)] for sample in part.samples])
            value = (part.logprobs.sum(-1) * counted).sum()
            check_finite(value.item(), part, batch)
            value.backward()
    rising = warmup_steps(section.warmup, section.steps)
    lr = learning_rate(step, section.steps, peak=section.lr, rising=rising, schedule="cosine")
    norm = step_optimizer(model, optimizer, lr=lr, max_grad_norm=section.max_grad_norm, batch=batch)
    rewards = section.beta * (found - reference)
    return {
        "loss": loss.item(),
        "accuracy": (margins > 0).float().mean().item(),
        "margin": margins.mean().item(),
        "chosen": rewards[:, 0].mean().item(),
        "rejected": rewards[:, 1].mean().item(),
        "lr": lr,
        "grad_norm": norm,
    }


def sum_logprobs(model: PreTrainedModel, samples: Sequence[Sample], computing: Computing) -> Tensor:
    """Sum log π over each sample's mask, (N,) nats. Call it without gradients."""
    found: dict[int, Tensor] = {}
    with forwards(model, samples, computing) as parts:
        for part in parts:
            found |= {id(sample): row.sum() for sample, row in zip(part.samples, part.logprobs, strict=True)}
    return torch.stack([found[id(sample)] for sample in samples])


@torch.no_grad()
def _reference(recipe: Recipe, folder: Path, where: Placement, pairs: Sequence[Preference]) -> Tensor:
    """Return log π_ref of every pair's sides, (N, 2) nats; equal bits in every session of a run on one machine."""
    model = start_model(folder, recipe.run.seed, where.attention, where.device)
    samples = both_sides(pairs)
    return sum_logprobs(model, samples, computing_of(recipe.compute, where)).view(-1, 2)
