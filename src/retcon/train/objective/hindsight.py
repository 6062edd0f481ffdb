"""Self-distillation from errors (SDPO, arXiv 2601.20802): a teacher that has seen the failed call's error.

The teacher is the model itself, before the step, with the error in its context: π_T = π_θ(· | h, f, y_<t), where h is
the history before a turn with a failed call, f the tool's answer, and y the turn that was written before it. Tokens
that the teacher finds less likely become less likely without f, in place of the rollout's one advantage. This is the
paper's token-level form, the reverse KL from student to teacher estimated from the sampled tokens; its logit-level
form, over the whole vocabulary, is not here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from retcon.core.types import TRAINED, Hindsight, Sample, Segment, Trajectory, token_count
from retcon.train.kernels.computing import Computing
from retcon.train.kernels.forward import forwards
from retcon.train.objective.contrast import written_sample

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
