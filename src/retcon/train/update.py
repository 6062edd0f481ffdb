"""From selected groups to new weights: advantages, samples, minibatch updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel

from retcon.config.schema import RLSection
from retcon.core.sample import to_sample
from retcon.core.types import Sample, Trajectory
from retcon.purify.weights import splice_weights
from retcon.train.advantage import dapo, grpo
from retcon.train.batch import MICRO_BATCH_IDS, Batch, check_scored, collate, micro_batches, minibatches
from retcon.train.loss import Aggregate, Loss, Totals, negative_spliced, policy_loss, token_logprobs
from retcon.train.old_logprobs import Mismatch, recompute
from retcon.train.optim import apply


@dataclass(frozen=True, slots=True)
class Algorithm:
    """advantage: (G,) rewards to (G,) advantages. aggregate: how the loss is averaged."""

    advantage: Callable[[Sequence[float]], list[float]]
    aggregate: Aggregate


ALGORITHMS: dict[str, Algorithm] = {"grpo": Algorithm(grpo, "sequence"), "dapo": Algorithm(dapo, "token")}


def group_samples(group: Sequence[Trajectory], config: RLSection) -> list[Sample]:
    """The samples of a graded group, each with its rollout's advantage on all of its ids.

    With config.splice_weight `truncated`, spliced ids have their importance weights (see `splice_weights`). Raises
    ValueError for an ungraded rollout, UnscoredIds where ids to be learnt have no log-prob.
    """
    weigh = config.splice_weight == "truncated"
    rewards = []
    for trajectory in group:
        if trajectory.reward is None:
            raise ValueError(f"trajectory {trajectory.id} has no reward: drop infrastructure faults first")
        rewards.append(trajectory.reward)
    return [
        replace(
            sample,
            advantages=(advantage,) * len(sample.ids),
            weights=splice_weights(trajectory, config.splice_weight_cap) if weigh else None,
        )
        for trajectory, sample, advantage in zip(
            group, map(to_sample, group), ALGORITHMS[config.algorithm].advantage(rewards), strict=True
        )
    ]


def update(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[Sample],
    config: RLSection,
    *,
    seed: int,
    step: int,
) -> dict[str, float | None]:
    """`config.minibatches` optimiser steps over the samples of one step. Returns the means over them, and the mismatch
    of log-probs (see `Mismatch`) in the first one.

    The model stays in evaluation mode: dropout would tell the old and the new log-probs apart. Raises UnscoredIds,
    TrainingDiverged.
    """
    for sample in samples:
        check_scored(sample)
    mismatch = Mismatch()
    if config.old_logprobs == "recompute":
        samples = recompute(model, samples, mismatch)
    # Until there is something to learn from, the weights are still those that the rollouts were sampled from.
    parts = [
        minibatch_update(model, optimizer, part, config, mismatch=mismatch if mismatch.empty else None)
        for part in minibatches(samples, config.minibatches, seed=seed, step=step)
    ]
    names = ("loss", "clip_fraction", "kl", "surprise", "grad_norm")
    means = {n: math.fsum(p[n] for p in parts) / len(parts) if parts else 0.0 for n in names}
    return {**means, **mismatch.metrics()}


def minibatch_update(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[Sample],
    config: RLSection,
    *,
    micro_batch_ids: int = MICRO_BATCH_IDS,
    mismatch: Mismatch | None = None,
) -> dict[str, float]:
    """One optimiser step. Returns loss, clip_fraction, kl (old to new), surprise and grad_norm.

    micro_batch_ids: how much is computed at once; it changes nothing but the rounding. mismatch: gets the log-probs.

    Samples without an advantage have no gradient and are not computed, but stay in the denominators; kl and surprise
    are of those that were computed. Where no sample has an advantage, no step is taken: AdamW would move on momentum.
    """
    model.eval()
    totals = Totals(sum(sum(s.mask) for s in samples), sum(any(s.mask) for s in samples))
    learnt = [s for s in samples if any(s.advantages or ()) and any(s.mask)]
    if not learnt:
        return {"loss": 0.0, "clip_fraction": 0.0, "kl": 0.0, "surprise": 0.0, "grad_norm": 0.0}
    sums = dict.fromkeys(("loss", "clip_fraction", "kl", "surprise"), 0.0)
    computed = totals.ids / sum(sum(s.mask) for s in learnt)
    for part in micro_batches(learnt, micro_batch_ids):
        loss = _loss(model, collate(part), config, totals, mismatch)
        loss.value.backward()
        sums["loss"] += loss.value.item()
        sums["clip_fraction"] += loss.clipped.item()
        sums["kl"] += loss.kl.item() * computed
        sums["surprise"] += loss.surprise.item() * computed
    return {**sums, "grad_norm": apply(model, optimizer, lr=config.lr, max_grad_norm=config.max_grad_norm)}


def _loss(model: PreTrainedModel, batch: Batch, config: RLSection, totals: Totals, mismatch: Mismatch | None) -> Loss:
    logprobs = token_logprobs(model, batch.ids, batch.mask)
    if mismatch is not None:
        mismatch.add(logprobs, batch.old_logprobs, batch.mask)
    return policy_loss(
        logprobs,
        batch.old_logprobs,
        batch.advantages,
        batch.mask,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        aggregate=ALGORITHMS[config.algorithm].aggregate,
        totals=totals,
        muted=negative_spliced(batch.advantages, batch.spliced) if config.mask_negative_spliced else None,
        weights=batch.weights,
    )
