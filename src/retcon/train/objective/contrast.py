"""Further samples of failed turns: contrast (ours), and self-distillation from errors (SDPO, arXiv 2601.20802).

Contrast: the tries at a failed turn, each after the clean history in which it was sampled. A repair takes the failure
out of the history, so that a group's advantage no longer reflects its cost: repaired first tries stay as bad as they
are. Here the failure keeps a gradient, at its turn.

Self-distillation: a teacher that has seen the failed call's error. It is the model itself, before the step, with the
error in its context: π_T = π_θ(· | h, f, y_<t), where h is the history before a turn with a failed call, f the tool's
answer, and y the turn that was written before it. Tokens that the teacher finds less likely become less likely without
f, in place of the rollout's one advantage. This is the paper's token-level form, the reverse KL from student to teacher
estimated from the sampled tokens; its logit-level form, over the whole vocabulary, is not here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from retcon.core.errors import UnscoredTokens
from retcon.core.types import REPLACED, TRAINED, Hindsight, Sample, Segment, Trajectory, Turn, ids_of, token_count
from retcon.models.devices import Computing
from retcon.purify.pairs import call_mask
from retcon.train.kernels.forward import forwards

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def contrast_samples(
    trajectory: Trajectory, weight: float, splices: tuple[float | None, ...] | None = None
) -> list[Sample]:
    """Return a sample for each try at a trajectory's repaired turns.

    The tries at a turn: the failure; the fresh tries that failed, too; and the replacement. Each is worth 1 if its
    calls succeed, 0 if not, and its advantage is weight · (that - the mean over the turn's tries), so that they sum to
    0 and lie within ±weight. The mask is 1 on the model's text of the turn alone; the history before it is the purified
    one, after which all tries except a spliced fix were sampled. All tokens need log-probs. Turns without a repair give
    none, nor do those that another trajectory shares and has samples of. splices: (T,), the weights of the trajectory's
    spliced tokens (see `retcon.purify.splice`), also here; None for 1.
    """
    samples: list[Sample] = []
    before = list(trajectory.prompt)
    for n, turn in enumerate(trajectory.turns):
        if n >= trajectory.shared_turns and (tries := _tries(turn)):
            mean = fmean(worth for _, worth in tries)
            for one, worth in tries:
                sample = written_sample(trajectory.id, before, one.generated, weight * (worth - mean))
                own = None if splices is None or one is not turn else splices[: len(sample.ids)]
                samples.append(replace(sample, weights=own))
        before.extend(turn.segments)
    return samples


def _tries(turn: Turn) -> list[tuple[Turn, float]]:
    """Return the compared tries and their worth. A fresh try without a failed call is the replacement, which is the
    turn itself, or made no call, and does not count."""
    record = turn.repair
    if record is None or record.decision not in REPLACED:
        return []
    failure, *later = turn.abandoned
    failed = [failure, *(one for one in later[: record.fresh] if one.failures)]
    return [*((one, 0.0) for one in failed), (turn, 1.0)]


def written_sample(source: str, before: Sequence[Segment], written: Sequence[Segment], advantage: float) -> Sample:
    """Return a turn's text as a sample after its history. Both have ids; the mask is 1 on `written` alone. source: id
    of the trajectory."""
    prefix, ids = ids_of(before), ids_of(written)
    logprobs = [logprob for s in written for logprob in s.logprobs or (None,) * len(s.ids or ())]
    spliced = [int(s.kind == "spliced") for s in written for _ in s.ids or ()]
    none = [0] * len(prefix)
    return Sample(
        ids=(*prefix, *ids),
        mask=(*none, *[1] * len(ids)),
        logprobs=(*[None] * len(prefix), *logprobs),
        spliced=(*none, *spliced),
        advantages=(advantage,) * (len(prefix) + len(ids)),
        source=source,
    )


# Online masked DPO: the replacement of a failed call against that call, inside the update of RL.
#
# CLEANER's side loss (arXiv 2601.15141, appendix B), as its published code has it: github.com/Tianshi-Xu/Open-CLEANER
# at 1adf50a, verl/verl/trainer/ppo/ray_trainer.py, apply_dpo_advantage_adjustment; used with GRPO's advantage there.
# Pure; no torch.


def dpo_adjustments(
    chosen: Sequence[float], rejected: Sequence[float], *, beta: float, limit: float
) -> tuple[float, float]:
    """Return the changes of advantages: up for chosen, down for rejected tokens.

    chosen, rejected: (n_w,) and (n_l,) nats, log-probs of the calls' tokens under the policy that sampled, neither of
    them empty. With w and l their means (means, not sums, as in SimPO), s = σ(-β (w - l)): β s / n_w and β s / n_l,
    each at most `limit`. Below the limit these are the gradient of -log σ(β (w - l)) for each token: DPO without a
    reference, as that is the policy at rollout time, to which the update's ratio and clip hold anyway.
    """
    margin = fmean(chosen) - fmean(rejected)
    s = (1 - math.tanh(beta * margin / 2)) / 2  # σ, which does not overflow
    return min(beta * s / len(chosen), limit), min(beta * s / len(rejected), limit)


def dpo_metrics(samples: Sequence[Sample]) -> dict[str, float | None]:
    """Return metrics of pairs. dpo_pairs: samples of rejected calls. dpo_loss, dpo_margin: means of -log σ(m) and of
    m = β (w - l) over them (see `dpo_adjustments`); dpo_accuracy: share of those with m > 0. None without a pair."""
    margins = [sample.margin for sample in samples if sample.margin is not None]
    if not margins:
        return {"dpo_pairs": 0, "dpo_loss": None, "dpo_margin": None, "dpo_accuracy": None}
    return {
        "dpo_pairs": len(margins),
        "dpo_loss": fmean(max(-m, 0.0) + math.log1p(math.exp(-abs(m))) for m in margins),
        "dpo_margin": fmean(margins),
        "dpo_accuracy": fmean(m > 0 for m in margins),
    }


def with_online_dpo(trajectory: Trajectory, sample: Sample, *, beta: float, limit: float) -> list[Sample]:
    """Prefer a trajectory's repaired calls; return its sample, then the replaced calls.

    sample: the trajectory's own, with advantages and log-probs. If one of its own turns was repaired (REPLACED), the
    advantage rises from the turn's first call to its end, and is unchanged elsewhere (see `dpo_adjustments`). The
    failed call becomes a sample after the clean history in which it was sampled, whose mask is 1 on the call's tokens
    alone. Its advantage is its adjustment, negative; as in the published code it has no share in the rollout's reward.

    Rejected is a turn's first failure, which alone was sampled after that history, and every repaired turn gives a
    pair. The published code keeps one pair a rollout, of the attempt that failed last. A turn where either call does
    not begin on a token boundary gives none, nor does one that the sample's mask leaves out. Raises UnscoredTokens for
    calls without log-probs, ValueError for a sample without advantages.
    """
    if sample.advantages is None:
        raise ValueError(f"trajectory {trajectory.id}: its sample has no advantages that could be adjusted")
    advantages, rejected = list(sample.advantages), []
    for before, turn in _repaired(trajectory):
        failed = written_sample(trajectory.id, before, turn.abandoned[0].generated, 0.0)
        none = (0,) * token_count(before)
        fixed, mask = ((*none, *(call_mask(one) or ())) for one in (turn, turn.abandoned[0]))
        right = [n for n, (called, learnt) in enumerate(zip(fixed, sample.mask, strict=False)) if called and learnt]
        wrong = [n for n, called in enumerate(mask) if called]
        if right and wrong:
            scores = _scores(sample, right), _scores(failed, wrong)
            up, down = dpo_adjustments(*scores, beta=beta, limit=limit)
            margin = beta * (fmean(scores[0]) - fmean(scores[1]))
            for n in right:
                advantages[n] += up
            rejected.append(replace(failed, mask=mask, advantages=(-down,) * len(mask), margin=margin))
    return [replace(sample, advantages=tuple(advantages)), *rejected]


def _repaired(trajectory: Trajectory) -> Iterator[tuple[list[Segment], Turn]]:
    """Yield the history before each of a trajectory's own repaired turns, and the turn; shared ones are another's."""
    before = list(trajectory.prompt)
    for n, turn in enumerate(trajectory.turns):
        if n >= trajectory.shared_turns and turn.repair is not None and turn.repair.decision in REPLACED:
            yield before, turn
        before.extend(turn.segments)


def _scores(sample: Sample, places: Sequence[int]) -> list[float]:
    """Return the log-probs of the tokens at some places, nats."""
    found = [p for n in places if (p := sample.logprobs[n]) is not None]
    if len(found) < len(places):
        raise UnscoredTokens(
            f"trajectory {sample.source}: {len(places) - len(found)} tokens of a call have no log-probs, by which "
            "rl.dpo_beta compares calls; set it to 0"
        )
    return found


def make_hindsights(trajectory: Trajectory) -> tuple[Hindsight, ...]:
    """Make the teacher's sample of each turn with a failed call.

    Its ids are h, then all of the turn that the model did not write (the answers of the tools, in the template's frame,
    up to where the next turn opens), then what the model wrote. Turns that a branch shares with another rollout have
    none, nor has a last turn, after which the model reads no answer.
    """
    found = []
    before: list[Segment] = list(trajectory.prompt)
    for number, turn in enumerate(trajectory.turns):
        answered = [segment for segment in turn.segments if segment.kind not in TRAINED]
        follows = number + 1 < len(trajectory.turns)
        if turn.failures and follows and number >= trajectory.shared_turns and turn.generated:
            sample = written_sample(trajectory.id, [*before, *answered], turn.generated, 0.0)
            found.append(Hindsight(token_count(before), sample))
        before.extend(turn.segments)
    return tuple(found)


@torch.no_grad()
def with_hindsight(
    model: PreTrainedModel, samples: Sequence[Sample], computing: Computing, *, weight: float, limit: float
) -> tuple[list[Sample], dict[str, float | None]]:
    """Replace the advantages of failed turns by the teacher's.

    A_t = β clip(log π_T(y_t) - log π_old(y_t), ±c), for the tokens in the loss mask.

    Args:
        model: the policy before its update.
        weight: β.
        limit: c, nats.

    Returns:
        The samples, and sdpo_tokens: how many advantages were replaced; sdpo_gap: their mean before β and the clip,
        nats, None without one.
    """
    model.eval()
    turns = [one.sample for sample in samples for one in sample.hindsights]
    found: dict[int, list[float]] = {}
    if turns:
        with forwards(model, turns, computing) as parts:
            for part in parts:
                for turn, row in zip(part.samples, part.logprobs.tolist(), strict=True):
                    found[id(turn)] = [p for p, m in zip(row, turn.mask, strict=False) if m]
    made: list[Sample] = []
    gaps: list[float] = []
    for sample in samples:
        advantages = list(sample.advantages or ())
        for one in sample.hindsights:
            for place, seen in enumerate(found[id(one.sample)], start=one.start):
                had = sample.logprobs[place]
                if sample.mask[place] and had is not None:
                    gaps.append(seen - had)
                    advantages[place] = weight * math.copysign(min(abs(gaps[-1]), limit), gaps[-1])
        made.append(replace(sample, advantages=tuple(advantages)) if sample.hindsights else sample)
    return made, {"sdpo_tokens": len(gaps), "sdpo_gap": fmean(gaps) if gaps else None}
