"""What a step learns from spliced tokens: how many of them are pushed up, how many down, and how hard."""

from __future__ import annotations

from collections.abc import Sequence

from retcon.core.types import Sample

NAMES = ("spliced_tokens", "spliced_positive", "spliced_negative", "spliced_weight")


def splice_metrics(samples: Sequence[Sample]) -> dict[str, float | None]:
    """spliced_tokens: in the loss mask. spliced_positive, spliced_negative: shares of them by the sign of their
    advantage: the first are what `rl.imitate_spliced` imitates, the second what `rl.mask_negative_spliced` leaves out.
    spliced_weight: the mean of their weights, 1 where they have none; with `rl.splice_weight = "accept"` the share that
    is accepted. None where there are none.
    """
    advantages: list[float] = []
    weights: list[float] = []
    for sample in samples:
        count = len(sample.ids)
        rows = (sample.mask, sample.spliced, sample.advantages or (0.0,) * count, sample.weights or (None,) * count)
        for learnt, spliced, advantage, weight in zip(*rows, strict=True):
            if learnt and spliced:
                advantages.append(advantage)
                weights.append(1.0 if weight is None else weight)
    count = len(advantages)
    if not count:
        return {**dict.fromkeys(NAMES), "spliced_tokens": 0}
    up, down = sum(a > 0 for a in advantages), sum(a < 0 for a in advantages)
    return dict(zip(NAMES, (count, up / count, down / count, sum(weights) / count), strict=True))
