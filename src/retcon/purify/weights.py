"""Weights of what was spliced, as it was sampled after another prefix: a ratio, or all or nothing. The paper has
none."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice, zip_longest

from retcon.core.errors import UnscoredTokens
from retcon.core.seeds import derive
from retcon.core.types import Segment, Trajectory, Turn, token_count


def splice_weights(trajectory: Trajectory, cap: float) -> tuple[float | None, ...]:
    """min(π(c'|purified) / π(c'|lookahead), cap) on every spliced token, None on all others; (T,).

    Both by the weights that sampled: the denominator is known from when the model wrote the fix with its failures
    before it, the numerator from scoring the splice. Id by id, as token-level truncated importance sampling is in verl
    and TRL. Raises UnscoredTokens where one of the two is not known, ValueError where cap is not above 0.
    """
    if not cap > 0:
        raise ValueError(f"cap must be above 0, not {cap}")
    highest = math.log(cap)

    def cut(_number: int, ratios: Sequence[float]) -> list[float]:
        return [math.exp(ratio) if ratio < highest else cap for ratio in ratios]

    return _weighed(trajectory, cut)


def accepted_splices(trajectory: Trajectory) -> tuple[float | None, ...]:
    """1 on the tokens of a splice that is accepted, 0 on those of one that is not, None on all others; (T,). Ours.

    A turn's splice is accepted with probability min(1, π(c'|purified) / π(c'|lookahead)), as a sample of speculative
    decoding is, so that what is learnt is nearer to what would have been sampled there. The draw is a pure function of
    the trajectory's id, its seed and the turn. Raises UnscoredTokens as `splice_weights`.
    """

    def decide(number: int, ratios: Sequence[float]) -> list[float]:
        ratio = math.exp(min(0.0, math.fsum(ratios)))
        draw = derive("accept", trajectory.provenance.seed or 0, trajectory.id, number)
        return [float(draw < ratio * 2**63)] * len(ratios)

    return _weighed(trajectory, decide)


def _weighed(
    trajectory: Trajectory, weigh: Callable[[int, Sequence[float]], Sequence[float]]
) -> tuple[float | None, ...]:
    """None on all but spliced tokens, on those of a turn what `weigh` makes of its number and of the tokens' log-ratios
    π(c'|purified) / π(c'|lookahead)."""
    weights: list[float | None] = [None] * token_count(trajectory.prompt)
    for number, turn in enumerate(trajectory.turns):
        sampled = _sampled_logprobs(turn)
        now = [logprob for s in turn.segments if s.kind == "spliced" for logprob in _logprobs(s)]
        ratios = []
        for logprob, was in zip_longest(now, sampled[: len(now)]):
            if logprob is None or was is None:
                raise UnscoredTokens(
                    f"trajectory {trajectory.id}, turn {number}: a spliced token has no log-prob "
                    + ("under the purified prefix" if logprob is None else "from when it was sampled")
                )
            ratios.append(logprob - was)
        found = iter(weigh(number, ratios))
        for segment in turn.segments:
            count = len(segment.ids or ())
            weights.extend(islice(found, count) if segment.kind == "spliced" else [None] * count)
    return tuple(weights)


def _sampled_logprobs(turn: Turn) -> list[float | None]:
    """Of the spliced tokens as the lookahead sampled them: the fix is the last attempt, and its end was spliced."""
    count = token_count(s for s in turn.segments if s.kind == "spliced")
    if not count or not turn.abandoned:
        return []
    return [logprob for s in turn.abandoned[-1].generated for logprob in _logprobs(s)][-count:]


def _logprobs(segment: Segment) -> tuple[float | None, ...]:
    return segment.logprobs if segment.logprobs is not None else (None,) * len(segment.ids or ())
