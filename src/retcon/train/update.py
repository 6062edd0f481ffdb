"""Samples of selected groups, and minibatch updates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from retcon.config.schema import RLSection
from retcon.core.types import Sample, Trajectory, to_sample
from retcon.models.devices import DEFAULT_COMPUTING, Computing
from retcon.purify.splice import accepted_splices, splice_weights
from retcon.train.batch import check_scored, computed_samples, minibatches
from retcon.train.kernels.forward import Part, forwards
from retcon.train.objective.branpo import ending_advantages
from retcon.train.objective.contrast import (
    contrast_samples,
    dpo_metrics,
    make_hindsights,
    with_hindsight,
    with_online_dpo,
)
from retcon.train.objective.credit import (
    average_shared,
    own_first_shared,
    spread_over_tokens,
    step_advantages,
    token_advantages,
    weigh_by_entropy,
)
from retcon.train.objective.loss import Loss, Totals, average, imitation_loss, negative_spliced
from retcon.train.objective.old_logprobs import Mismatch, kl_terms, recompute, with_reference
from retcon.train.objective.shaping import in_failed_turns, is_masked, output_mask
from retcon.train.optim import learning_rate, step_optimizer
from retcon.train.watch import check_finite, splice_metrics

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

SUMS = ("loss", "clip_fraction", "kl", "kl_reference", "entropy_estimate", "entropy", "imitation", "echo")
METRICS = (*SUMS, "grad_norm", "padding", "shared", "skipped")
NOTHING = dict.fromkeys(("loss", "clip_fraction", "imitation", "grad_norm", "skipped"), 0.0)
"""Metrics of a minibatch without a gradient; it has no others."""


def to_samples(
    group: Sequence[Trajectory],
    advantages: Sequence[float],
    config: RLSection,
    scales: Mapping[str, float] = MappingProxyType({}),
) -> list[Sample]:
    """Make the samples of a group, with their rollouts' advantages.

    All tokens of a sample have its rollout's advantage, except by config.blame, step_advantage and shared_advantage.
    With config.splice_weight, spliced ids have their weights (see `retcon.purify.splice`); config.failed_calls,
    void_turns and truncated mask tokens. With config.dpo_beta the advantages of repaired calls are raised, and the
    calls that they replaced follow as further samples (see `with_online_dpo`); with config.contrast then the tries at
    repaired turns of unmasked rollouts in config.contrast_rollouts (see `contrast_samples`); of turns that several of
    them share, with either, those of the first. scales: weight of all samples of a rollout, by its id, by default 1.
    Raises UnscoredTokens if ids in the loss mask have no log-prob.
    """
    roots = {trajectory.branch.root for trajectory in group if trajectory.branch is not None}
    samples = [
        replace(
            sample,
            tree=_tree(trajectory, roots),
            mask=learnt(trajectory, sample, config),
            advantages=token_advantages(trajectory, len(sample.ids), advantage, config.blame),
            weights=_splice_weights(trajectory, config),
            predicted=output_mask(trajectory, config.echo_outputs) if config.echo else None,
            hindsights=make_hindsights(trajectory) if config.sdpo and not is_masked(trajectory, config) else (),
        )
        for trajectory, sample, advantage in zip(group, map(to_sample, group), advantages, strict=True)
    ]
    if config.step_advantage != "none":
        rtmc = config.step_advantage == "rtmc"
        found = step_advantages(group, advantages) if rtmc else ending_advantages(group, advantages, config)
        steps = zip(samples, group, found, strict=True)
        samples = [replace(s, advantages=spread_over_tokens(one, turns)) for s, one, turns in steps]
    if config.shared_advantage == "mean":
        samples = average_shared(samples)
    if config.dpo_beta:
        adjust = partial(with_online_dpo, beta=config.dpo_beta, limit=config.dpo_limit)
        sharing = iter(own_first_shared([t for t in group if not is_masked(t, config)]))
        own = [t if is_masked(t, config) else next(sharing) for t in group]
        paired = [adjust(one, sample) for one, sample in zip(own, samples, strict=True)]
        samples = [whole for whole, *_ in paired] + [one for _, *rejected in paired for one in rejected]
    if config.contrast:
        named = [t for t in group if config.contrast_rollouts == "all" or (t.reward or 0.0) > 0]
        for trajectory in own_first_shared([t for t in named if not is_masked(t, config)]):
            samples += contrast_samples(trajectory, config.contrast, _splice_weights(trajectory, config))
    return [replace(s, scale=scales[s.source]) if s.source in scales else s for s in samples] if scales else samples


def count_changes(samples: Sequence[Sample], advantages: Sequence[float], config: RLSection) -> dict[str, int]:
    """Count what config changed in a group's samples. blamed_tokens: those with an advantage turned by config.blame.
    echo_tokens: of tool outputs that config.echo has predicted. contrast_tries: samples of config.contrast. samples: of
    `to_samples` with these advantages."""
    found: dict[str, int] = {}
    if config.blame:
        right = [s for s, advantage in zip(samples, advantages, strict=False) if advantage > 0]
        found["blamed_tokens"] = sum(
            m and a < 0 for s in right for a, m in zip(s.advantages or (), s.mask, strict=True)
        )
    if config.echo:
        found["echo_tokens"] = sum(sum(s.predicted or ()) for s in samples)
    if config.contrast:
        found["contrast_tries"] = sum(s.margin is None for s in samples) - len(advantages)
    return found


def _tree(trajectory: Trajectory, roots: Collection[str]) -> str:
    """Return the id of the rollout's tree, whose samples share prefixes; empty without branches."""
    if trajectory.branch is not None:
        return trajectory.branch.root
    return trajectory.id if trajectory.id in roots else ""


def _splice_weights(trajectory: Trajectory, config: RLSection) -> tuple[float | None, ...] | None:
    if config.splice_weight == "truncated":
        return splice_weights(trajectory, config.splice_weight_cap)
    return accepted_splices(trajectory) if config.splice_weight == "accept" else None


def learnt(trajectory: Trajectory, sample: Sample, config: RLSection) -> tuple[int, ...]:
    """Return the sample's loss mask without the tokens that the recipe masks."""
    if is_masked(trajectory, config):
        return (0,) * len(sample.mask)
    mask = sample.mask
    alone = config.shared_advantage == "siblings" or config.step_advantage == "branpo"
    if alone and trajectory.branch is not None:
        shared = trajectory.branch.tokens
        mask = (0,) * shared + mask[shared:]
    if config.failed_calls == "keep":
        return mask
    return tuple(int(m and not failed) for m, failed in zip(mask, in_failed_turns(trajectory), strict=True))


def update(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[Sample],
    config: RLSection,
    *,
    seed: int,
    step: int,
    computing: Computing = DEFAULT_COMPUTING,
    reference: PreTrainedModel | None = None,
    lr: float | None = None,
) -> dict[str, float | None]:
    """Take a step's `config.minibatches` optimiser steps, `config.epochs` times.

    Returns the means over them (of a metric over those that have it, None if none has), the learning rate, the mismatch
    of log-probs (see `Mismatch`) before the first of them, metrics of spliced tokens (see `splice_metrics`) and pairs
    (see `dpo_metrics`), and in all `Loss.counts` and the weights that config.correction cut. If computing.temperature
    is not 1, that of the rollouts' log-probs, π_old is recomputed, and the mismatch is unknown. step: from 1.
    reference: π_ref, for the penalty config.kl. lr: None for that of this step of config.steps.

    The model stays in evaluation mode: dropout would differ between the old and the new log-probs. Raises
    UnscoredTokens, TrainingDiverged.
    """
    for sample in samples:
        check_scored(sample)
    figures = splice_metrics(samples, config) | (dpo_metrics(samples) if config.dpo_beta else {})
    mismatch = Mismatch(stale=config.max_staleness > 0)
    plain = computing.temperature == 1.0
    if reference is not None:
        samples = with_reference(reference, samples, computing)
    if config.old_logprobs == "recompute" or not plain:
        weighing = (config.correction, config.correction_cap)
        bonus = config.entropy_coefficient
        samples = recompute(model, samples, mismatch, computing, weighing=weighing, bonus=bonus)
    if config.sdpo:
        samples, seen = with_hindsight(model, samples, computing, weight=config.sdpo, limit=config.sdpo_limit)
        figures |= seen
    if config.entropy_weight:
        samples = weigh_by_entropy(model, samples, computing, config.entropy_weight)
    if lr is None:
        lr = learning_rate_of(config, step, (0, config.steps))
    batches = minibatches(samples, config.minibatches, seed=seed, step=step, epochs=config.epochs)
    # Before the first minibatch with a gradient, the weights are still those of the rollouts.
    parts = [
        minibatch_update(
            model,
            optimizer,
            part,
            config,
            computing=computing,
            mismatch=mismatch if mismatch.empty and plain else None,
            lr=lr,
            name=f"step {step}, minibatch {number} of {len(batches)}",
        )
        for number, part in enumerate(batches, start=1)
    ] or [NOTHING]
    means = {name: _mean([part[name] for part in parts if name in part]) for name in METRICS}
    asked = {
        "entropy": config.entropy_coefficient,
        "imitation": config.imitate_spliced,
        "kl_reference": reference,
    }
    means |= {name: None for name, value in asked.items() if value is None or value == 0}
    if not config.echo:
        del means["echo"]
    counts = Counter({"correction_cut": mismatch.cut} if config.correction != "none" else {})
    for part in parts:
        counts.update({name: int(value) for name, value in part.items() if name not in METRICS})
    return {**means, **mismatch.metrics(), **figures, **counts, "lr": lr}


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def learning_rate_of(config: RLSection, step: int, course: tuple[int, int]) -> float:
    """Return the learning rate of a step (from 1). course: the steps before its warm-up begins, and the one that its
    schedule ends with."""
    before, last = course
    rising, schedule = config.warmup_steps, config.schedule
    return learning_rate(step - 1 - before, last - before, peak=config.lr, rising=rising, schedule=schedule)


def minibatch_update(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[Sample],
    config: RLSection,
    *,
    computing: Computing = DEFAULT_COMPUTING,
    mismatch: Mismatch | None = None,
    lr: float | None = None,
    name: str = "a minibatch",
) -> dict[str, float]:
    """Take one optimiser step, with the learning rate `lr` (None: config.lr). Returns loss, clip_fraction, kl (old
    to new), kl_reference (to π_ref, 0 without one), entropy_estimate, entropy (exact; 0 without
    config.entropy_coefficient), imitation (its part of the loss), echo (cross-entropy of tool
    outputs, nats a token), grad_norm, padding: the share of padding in attention, of which the linear
    layers see as much, or none (see `packing`), shared: the share of the samples' tokens that were not computed, as
    they are in shared prefixes, and skipped: 1 if the policy was already further than config.max_kl from the one
    that sampled, so that no step was taken; also `Loss.counts`. mismatch: gets the log-probs. name: of the
    minibatch, in errors.

    Samples without an advantage have no gradient and are not computed, but stay in the denominators; if none is
    computed, only the metrics of NOTHING are returned. No step is taken then: AdamW would move on momentum. Raises
    TrainingDiverged if loss or gradient are not finite, before weights move.
    """
    model.eval()
    totals = Totals(sum(s.scale * sum(s.mask) for s in samples), sum(s.scale * any(s.mask) for s in samples))
    bonus = config.entropy_coefficient
    learnt = computed_samples(samples, bonus)
    if not learnt:
        return dict(NOTHING)
    sums, counts = dict.fromkeys(SUMS, 0.0), Counter[str]()
    scale = totals.tokens / (sum(s.scale * sum(s.mask) for s in learnt) or 1)
    outputs = sum(sum(s.predicted or ()) for s in learnt)
    ids = padded = 0
    every = sum(len(s.ids) for s in learnt)
    with forwards(model, learnt, computing, entropies=bool(bonus)) as parts:
        for part in parts:
            if mismatch is not None:
                mismatch.add(part.logprobs, part.batch.old_logprobs, part.batch.mask)
            loss = _loss(part, config, totals)
            value = loss.value
            if config.imitate_spliced:
                terms = imitation_loss(part.logprobs, part.batch) * config.imitate_spliced
                imitated = average(terms, part.batch, totals, config.aggregate)
                value = value + imitated
                sums["imitation"] += imitated.item()
            if part.batch.predicted is not None:
                surprise = -part.logprobs.masked_fill(~part.batch.predicted, 0.0).sum() / max(1, outputs)
                value = value + config.echo * surprise
                sums["echo"] += surprise.item()
            if part.batch.reference_logprobs is not None:
                terms = kl_terms(part.logprobs, part.batch.reference_logprobs, config.kl_estimator)
                penalty = average(terms.masked_fill(~part.batch.mask, 0.0), part.batch, totals, config.aggregate)
                value = value + config.kl * penalty
                sums["kl_reference"] += penalty.item()
            if part.entropies is not None:
                value = value - bonus * average(part.entropies, part.batch, totals, config.aggregate)
                sums["entropy"] += average(part.entropies, part.batch, totals, "token").item()
            check_finite(value.item(), part, name)
            value.backward()
            sums["loss"] += value.item()
            sums["clip_fraction"] += loss.clipped.item()
            counts.update({name: int(count) for name, count in loss.counts.items()})
            sums["kl"] += loss.kl.item() * scale
            sums["entropy_estimate"] += loss.entropy_estimate.item() * scale
            ids, padded = ids + part.ids, padded + part.padded
    figures = {**sums, **counts, "padding": 1 - ids / padded, "shared": 1 - ids / every}
    if config.max_kl and sums["kl"] > config.max_kl:
        optimizer.zero_grad()
        return {**figures, "grad_norm": 0.0, "skipped": 1.0}
    lr = config.lr if lr is None else lr
    norm = step_optimizer(model, optimizer, lr=lr, max_grad_norm=config.max_grad_norm, batch=name)
    return {**figures, "grad_norm": norm, "skipped": 0.0}


def _loss(part: Part, config: RLSection, totals: Totals) -> Loss:
    batch = part.batch
    masked = negative_spliced(batch.advantages, batch.spliced) if config.mask_negative_spliced else None
    masked = batch.spliced if config.imitate_spliced else masked
    loss: Loss = config.loss(part.logprobs, batch, totals, masked=masked)
    return loss
