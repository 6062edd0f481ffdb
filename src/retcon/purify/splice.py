"""Build the purified turn from its attempts, and weigh its tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from itertools import islice, zip_longest

from msgspec.structs import replace

from retcon.core.errors import UnscoredTokens
from retcon.core.seeds import derive
from retcon.core.types import TRAINED, RepairRecord, Segment, ToolCall, Trajectory, Turn, token_count
from retcon.purify.similarity import similarity

UNALIGNED = "call does not begin on a token boundary"
"""Why a repair that would be shallow is deep."""
MISPLACED = "the fix's call cannot stand after the failure's words"
"""The same."""
_MESSAGE = "<|start|>"
"""With which gpt-oss opens a message after another one of the turn. The turn's first one is opened by the template."""


def purify(attempts: Sequence[Turn], gamma: float, *, unfit: str = "") -> Turn:
    """Return the turn to commit for `attempts`: the failure, later tries, the fix last.

    Sim(c_t, c') ≥ gamma: shallow, the failure's reasoning r_t with the fix's call, (r_t, c', o'). Below, or where the
    one's words and the other's call cannot stand together: deep, the fix with its own reasoning, (r'_aux, c', o').
    Nothing is encoded anew. What came from the fix is `spliced` and has no log-probs yet. unfit: why what would be
    shallow is deep. (CLEANER, arXiv 2601.15141, section 4.2.)"""
    failure, fix = attempts[0], attempts[-1]
    sim = similarity(program(failure.calls), program(fix.calls))
    if sim < gamma:
        reason = "similarity below gamma"
    elif not can_be_shallow(failure, fix):
        reason = MISPLACED if _can_cut(failure) and _can_cut(fix) else UNALIGNED
    else:
        reason = unfit
    written, calls = (tuple(map(_spliced, fix.generated)), fix.calls) if reason else _shallow(failure, fix)
    record = RepairRecord("deep" if reason else "shallow", attempts=len(attempts) - 1, similarity=sim, reason=reason)
    answered = tuple(s for s in fix.segments if s.kind not in TRAINED)
    return Turn((*written, *answered), calls, fix.observations, fix.stop, tuple(attempts), record)


def program(calls: Sequence[ToolCall]) -> str:
    """Return the text that similarity compares: a turn's code, or arguments of calls without code."""
    return _compared(calls[0]) if len(calls) == 1 else "\n".join(map(_compared, calls))


def _compared(call: ToolCall) -> str:
    arguments = call.arguments
    if isinstance(arguments, str):
        return arguments
    return str(arguments["code"]) if "code" in arguments else json.dumps(arguments, sort_keys=True)


def can_be_shallow(failure: Turn, fix: Turn) -> bool:
    """Whether the failure's words and the fix's calls can be joined."""
    return _can_cut(failure) and _can_cut(fix) and _can_follow(failure, fix)


def _can_cut(turn: Turn) -> bool:
    """Whether a turn can be cut before its call."""
    return turn.calls[0].start is not None or all(s.ids is None for s in turn.segments if s.kind in TRAINED)


def _can_follow(failure: Turn, fix: Turn) -> bool:
    """Whether the fix's call is one after the failure's words: a bare object is where it begins a line (Llama 3), and a
    message of its own needs another before it."""
    at, words = failure.calls[0].char, failure.text
    call, of = fix.text, fix.calls[0].char
    if call.startswith("{", of):
        return not words[:at].rpartition("\n")[2].strip()
    return call.startswith(_MESSAGE, of) == words.startswith(_MESSAGE, at)


def _shallow(failure: Turn, fix: Turn) -> tuple[tuple[Segment, ...], tuple[ToolCall, ...]]:
    """Join r_t as sampled and the fix from its first call."""
    at, of = failure.calls[0], fix.calls[0]
    reasoning, _ = cut(failure.generated, at)
    _, rest = cut(fix.generated, of)
    return (*reasoning, *map(_spliced, rest)), tuple([_moved(call, of, at) for call in fix.calls])


def _moved(call: ToolCall, origin: ToolCall, target: ToolCall) -> ToolCall:
    """Move a call, as far from `target` as it is from `origin`."""
    char, start = call.char - origin.char + target.char, None
    if call.start is not None and origin.start is not None and target.start is not None:
        start = call.start - origin.start + target.start
    return call if (char, start) == (call.char, call.start) else replace(call, char=char, start=start)


def _spliced(segment: Segment) -> Segment:
    return Segment("spliced", segment.text, segment.ids, versions=segment.versions)


def cut(segments: Sequence[Segment], call: ToolCall) -> tuple[list[Segment], list[Segment]]:
    """Split segments at a call: before it, and from it on."""
    before: list[Segment] = []
    after: list[Segment] = []
    char, start = call.char, call.start or 0
    for segment in segments:
        c, i, length, count = max(char, 0), max(start, 0), len(segment.text), len(segment.ids or ())
        if c >= length and i >= count:
            before.append(segment)
        elif not c and not i:
            after.append(segment)
        else:
            before.append(_part(segment, slice(c), slice(i)))
            after.append(_part(segment, slice(c, None), slice(i, None)))
        char -= length
        start -= count
    return [s for s in before if s.text or s.ids], [s for s in after if s.text or s.ids]


def _part(segment: Segment, chars: slice, ids: slice) -> Segment:
    return replace(
        segment,
        text=segment.text[chars],
        ids=None if segment.ids is None else segment.ids[ids],
        logprobs=None if segment.logprobs is None else segment.logprobs[ids],
        versions=None if segment.versions is None else segment.versions[ids],
    )


def splice_weights(trajectory: Trajectory, cap: float) -> tuple[float | None, ...]:
    """Return min(π(c'|purified) / π(c'|lookahead), cap) on spliced tokens.

    (T,), None on all other tokens. Both by the weights that sampled: the denominator is known from when the model
    wrote the fix after its failures, the numerator from scoring the splice. Id by id, as token-level truncated
    importance sampling is in verl and TRL. Raises UnscoredTokens where one of the two is unknown, ValueError where
    cap is not above 0."""
    if not cap > 0:
        raise ValueError(f"cap must be above 0, not {cap}")
    highest = math.log(cap)

    def cut(_number: int, ratios: Sequence[float]) -> list[float]:
        return [math.exp(ratio) if ratio < highest else cap for ratio in ratios]

    return _weighed(trajectory, cut)


def accepted_splices(trajectory: Trajectory) -> tuple[float | None, ...]:
    """Return 1 on tokens of accepted splices, 0 on rejected ones. Ours.

    (T,), None on all other tokens. A turn's splice is accepted with probability min(1, π(c'|purified) /
    π(c'|lookahead)), as a sample of speculative decoding is, so that what is learnt is nearer to what would have
    been sampled there. The draw is a pure function of the trajectory's id, its seed and the turn. Raises
    UnscoredTokens as `splice_weights` does."""

    def decide(number: int, ratios: Sequence[float]) -> list[float]:
        ratio = math.exp(min(0.0, math.fsum(ratios)))
        draw = derive("accept", trajectory.provenance.seed or 0, trajectory.id, number)
        return [float(draw < ratio * 2**63)] * len(ratios)

    return _weighed(trajectory, decide)


def _weighed(
    trajectory: Trajectory, weigh: Callable[[int, Sequence[float]], Sequence[float]]
) -> tuple[float | None, ...]:
    """Weigh the spliced tokens of each turn; None on all others.

    Args:
        weigh: maps a turn's number and its tokens' log-ratios π(c'|purified) / π(c'|lookahead) to weights."""
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
