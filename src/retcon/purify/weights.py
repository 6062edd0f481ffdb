"""Truncated importance weights of what was spliced, as it was sampled after another prefix. The paper has none."""

from __future__ import annotations

import math

from retcon.core.errors import UnscoredTokens
from retcon.core.types import Segment, Trajectory, Turn


def splice_weights(trajectory: Trajectory, cap: float) -> tuple[float | None, ...]:
    """min(π(c'|purified) / π(c'|lookahead), cap) on every spliced token, None on all others; (T,).

    Both by the weights that sampled: the denominator is known from when the model wrote the fix with its failures
    before it, the numerator from scoring the splice. Id by id, as token-level truncated importance sampling is in verl
    and TRL. Raises UnscoredTokens where one of the two is not known, ValueError where cap is not above 0.
    """
    if not cap > 0:
        raise ValueError(f"cap must be above 0, not {cap}")
    highest = math.log(cap)
    weights: list[float | None] = [None] * sum(len(s.ids or ()) for s in trajectory.prompt)
    for number, turn in enumerate(trajectory.turns):
        sampled = iter(_sampled_logprobs(turn))
        for segment in turn.segments:
            if segment.kind != "spliced":
                weights.extend([None] * len(segment.ids or ()))
                continue
            for logprob in _logprobs(segment):
                was = next(sampled, None)
                if logprob is None or was is None:
                    raise UnscoredTokens(
                        f"trajectory {trajectory.id}, turn {number}: a spliced token has no log-prob "
                        + ("under the purified prefix" if logprob is None else "from when it was sampled")
                    )
                weights.append(math.exp(logprob - was) if logprob - was < highest else cap)
    return tuple(weights)


def _sampled_logprobs(turn: Turn) -> list[float | None]:
    """Of the spliced tokens as the lookahead sampled them: the fix is the last attempt, and its end was spliced."""
    count = sum(len(s.ids or ()) for s in turn.segments if s.kind == "spliced")
    if not count or not turn.abandoned:
        return []
    return [logprob for s in turn.abandoned[-1].generated for logprob in _logprobs(s)][-count:]


def _logprobs(segment: Segment) -> tuple[float | None, ...]:
    return segment.logprobs if segment.logprobs is not None else (None,) * len(segment.ids or ())
