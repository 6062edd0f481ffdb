"""Supervised training on demonstrations: the cold start of an agent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from retcon.build import build_chat
from retcon.config.schema import Recipe, SFTSection
from retcon.core.seeds import derive
from retcon.core.types import Sample
from retcon.models.devices import OnPlace
from retcon.models.loading import load_config
from retcon.models.placing import model_folder, place_training
from retcon.runs.folder import open_run
from retcon.store.fingerprint import fingerprint
from retcon.train.batch import epoch_batch
from retcon.train.datasets.demonstrations import read_samples
from retcon.train.kernels.computing import DEFAULT, Computing
from retcon.train.kernels.forward import forwards
from retcon.train.optim import apply, warmup_cosine
from retcon.train.session import OnStep, Session, Training, train

BETAS = (0.9, 0.95)


def run_sft(
    recipe: Recipe,
    demonstrations: Path,
    out: Path,
    *,
    on_step: OnStep | None = None,
    on_place: OnPlace | None = None,
) -> Path:
    """Train `recipe.model.path` on the file `demonstrations`; returns the folder of the final model.

    These are trajectories of ours, or transcripts in any format that `retcon purify` reads, which go through the
    model's template (see `read_samples`). What is learnt is every id that the demonstrator wrote, failures and their
    repairs among them: nothing is filtered.
    A run that was interrupted goes on from its newest checkpoint in `out`, and Ctrl-C makes one first; one that is
    finished returns at once. on_step gets each step's metrics: step, loss (nats an id), lr, grad_norm, ids, seconds,
    cpu_s, wall_s; on_place where it computes, before it does.

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
        max_tokens=getattr(config.get_text_config(), "max_position_embeddings", None),
    )
    inputs = {"model": fingerprint(start), "demonstrations": fingerprint(demonstrations)}
    run = open_run(out, kind="sft", recipe=recipe, inputs=inputs)
    section = recipe.sft

    def steps(session: Session) -> None:
        with session.interruptible():
            while session.step < section.steps:
                began = time.perf_counter()
                torch.manual_seed(derive("dropout", recipe.run.seed, session.step))  # a resumed run must not differ
                chosen = epoch_batch(len(samples), section.batch, seed=recipe.run.seed, step=session.step)
                batch = [samples[i] for i in chosen]
                metrics = sft_step(
                    session.model, session.optimizer, batch, section, session.step, computing=session.computing
                )
                session.done({**metrics, "seconds": round(time.perf_counter() - began, 4)})

    training = Training(run, recipe, where, recipe.model.path, section, betas=BETAS)
    return train(training, steps, on_step=on_step, on_place=on_place)


def sft_step(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[Sample],
    config: SFTSection,
    step: int,
    *,
    computing: Computing = DEFAULT,
) -> dict[str, float]:
    """One update on the mean of -log π over the samples' learnt ids. step: from 0. Returns its metrics."""
    model.train()
    total = sum(sum(s.mask) for s in samples)
    loss = 0.0
    with forwards(model, samples, computing) as parts:
        for part in parts:
            value = -part.logprobs.sum() / total
            value.backward()
            loss += value.item()
    lr = warmup_cosine(step, config.steps, peak=config.lr, warmup=config.warmup)
    norm = apply(model, optimizer, lr=lr, max_grad_norm=config.max_grad_norm)
    return {"loss": loss, "lr": lr, "grad_norm": norm, "tokens": total}
