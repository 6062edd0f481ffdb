"""From selected groups to new weights: samples, minibatch updates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from retcon.config.schema import RLSection
from retcon.core.sample import to_sample
from retcon.core.types import Sample, Trajectory
from retcon.purify.weights import splice_weights
from retcon.train.batch import check_scored, minibatches
from retcon.train.kernels.computing import DEFAULT, Computing
from retcon.train.kernels.forward import Part, forwards
from retcon.train.objective.loss import Loss, Totals, negative_spliced
from retcon.train.objective.old_logprobs import Mismatch, recompute
from retcon.train.optim import apply

METRICS = ("loss", "clip_fraction", "kl", "entropy_estimate", "grad_norm", "padding")


def rewards_of(group: Sequence[Trajectory]) -> list[float]:
    """Those of a group's rollouts. Raises ValueError for one that is not graded."""
    rewards = []
    for trajectory in group:
        if trajectory.reward is None:
            raise ValueError(f"trajectory {trajectory.id} has no reward: drop infrastructure faults first")
        rewards.append(trajectory.reward)
    return rewards


def to_samples(group: Sequence[Trajectory], advantages: Sequence[float], config: RLSection) -> list[Sample]:
    """The samples of a group, each with its rollout's advantage on all of its ids.

    With config.splice_weight `truncated`, spliced ids have their importance weights (see `splice_weights`). Raises
    UnscoredTokens where ids to be learnt have no log-prob.
    """
    weigh = config.splice_weight == "truncated"
    return [
        replace(
            sample,
            advantages=(advantage,) * len(sample.ids),
            weights=splice_weights(trajectory, config.splice_weight_cap) if weigh else None,
        )
        for trajectory, sample, advantage in zip(group, map(to_sample, group), advantages, strict=True)
    ]


def update(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[Sample],
    config: RLSection,
    *,
    seed: int,
    step: int,
    computing: Computing = DEFAULT,
) -> dict[str, float | None]:
    """`config.minibatches` optimiser steps over the samples of one step. Returns the means over them, and the mismatch
    of log-probs (see `Mismatch`) before the first of them.

    The model stays in evaluation mode: dropout would tell the old and the new log-probs apart. Raises UnscoredTokens,
    TrainingDiverged.
    """
    for sample in samples:
        check_scored(sample)
    mismatch = Mismatch()
    if config.old_logprobs == "recompute":
        samples = recompute(model, samples, mismatch, computing)
    # Until there is something to learn from, the weights are still those that the rollouts were sampled from.
    parts = [
        minibatch_update(
            model, optimizer, part, config, computing=computing, mismatch=mismatch if mismatch.empty else None
        )
        for part in minibatches(samples, config.minibatches, seed=seed, step=step)
    ]
    means = {n: math.fsum(p[n] for p in parts) / len(parts) if parts else 0.0 for n in METRICS}
    return {**means, **mismatch.metrics()}


def minibatch_update(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[Sample],
    config: RLSection,
    *,
    computing: Computing = DEFAULT,
    mismatch: Mismatch | None = None,
) -> dict[str, float]:
    """One optimiser step. Returns loss, clip_fraction, kl (old to new), entropy_estimate, grad_norm, and padding: the
    share of padding in what attention computed, of which the linear layers see as much, or none (see `packing`).
    mismatch: gets the log-probs.

    Samples without an advantage have no gradient and are not computed, but stay in the denominators; kl and
    entropy_estimate are of those that were computed. Where no sample has an advantage, no step is taken: AdamW would
    move on momentum.
    """
    model.eval()
    totals = Totals(sum(sum(s.mask) for s in samples), sum(any(s.mask) for s in samples))
    learnt = [s for s in samples if any(s.advantages or ()) and any(s.mask)]
    if not learnt:
        return dict.fromkeys(METRICS, 0.0)
    sums = dict.fromkeys(("loss", "clip_fraction", "kl", "entropy_estimate"), 0.0)
    computed = totals.ids / sum(sum(s.mask) for s in learnt)
    ids = padded = 0
    with forwards(model, learnt, computing) as parts:
        for part in parts:
            if mismatch is not None:
                mismatch.add(part.logprobs, part.batch.old_logprobs, part.batch.mask)
            loss = _loss(part, config, totals)
            loss.value.backward()
            sums["loss"] += loss.value.item()
            sums["clip_fraction"] += loss.clipped.item()
            sums["kl"] += loss.kl.item() * computed
            sums["entropy_estimate"] += loss.entropy_estimate.item() * computed
            ids, padded = ids + part.ids, padded + part.padded
    norm = apply(model, optimizer, lr=config.lr, max_grad_norm=config.max_grad_norm)
    return {**sums, "grad_norm": norm, "padding": 1 - ids / padded}


def _loss(part: Part, config: RLSection, totals: Totals) -> Loss:
    batch = part.batch
    muted = negative_spliced(batch.advantages, batch.spliced) if config.mask_negative_spliced else None
    loss: Loss = config.loss(part.logprobs, batch, totals, muted=muted)
    return loss
