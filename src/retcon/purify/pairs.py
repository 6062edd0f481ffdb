"""Preference pairs of repairs: the failed call against its replacement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from retcon.core.types import REPLACED, Completion, Pair, Segment, Trajectory, Turn, ids_of

Rejected = Literal["first", "all"]


def preference_pairs(trajectory: Trajectory, *, rejected: Rejected = "first") -> Iterator[Pair]:
    """Yield a trajectory's pairs for the masked DPO loss (arXiv 2601.15141, B).

    prompt: the history h_t, purified, that the fix stands in. chosen: what stands there now, (r_t, c') after a shallow
    repair, (r'_aux, c') after a deep one, a whole fresh try after `resampled`. rejected: the attempt that failed, (r_t,
    c_t). The masks are 1 from the first
    call of the turn to its end, as in the published code, so that the loss counts c' against c_t and no reasoning.
    `about` has the repair's decision and similarity, and the failure's status and error type.

    rejected: `first` pairs the fix with c_t alone, the one attempt that was sampled after this very prompt. `all` gives
    a further pair for each later attempt that failed, although the model had been shown failures when it wrote them
    (the published code keeps one pair a rollout, of the attempt that failed last; the paper is silent). A turn without
    a fix gives none, nor does one that a branch shares, whose pair is that of the rollout that sampled it; and an
    attempt without a failed call (a no-op, a cut, a fix over the budget) is never rejected."""
    before = list(trajectory.prompt)
    for number, turn in enumerate(trajectory.turns):
        shared = number < trajectory.shared_turns
        if not shared and turn.repair is not None and turn.repair.decision in REPLACED:
            failed = [(n, attempt) for n, attempt in enumerate(turn.abandoned) if attempt.failures]
            for n, attempt in failed if rejected == "all" else failed[:1]:
                yield _pair(f"{trajectory.id}/{number}/{n}", before, turn, attempt)
        before.extend(turn.segments)


def _pair(id: str, before: Sequence[Segment], turn: Turn, attempt: Turn) -> Pair:
    failure = next(o for o in attempt.observations if o.status not in ("ok", "infrastructure"))
    repair = turn.repair
    about = {
        "decision": repair and repair.decision,
        "similarity": repair and repair.similarity,
        "status": failure.status,
        "error_type": failure.error_type,
    }
    prompt = "".join(s.text for s in before)
    return Pair(id, prompt, _completion(turn), _completion(attempt), _ids(before), about)


def call_mask(turn: Turn) -> tuple[int, ...] | None:
    """Of what the model wrote in a turn, (T,): 0 up to its first call and 1 from there to its end, the end of turn
    included. None where a segment holds text only, or the turn's first call does not begin on a token boundary."""
    ids = _ids(turn.generated)
    start = turn.calls[0].start if turn.calls else None
    return None if ids is None or start is None else (0,) * start + (1,) * (len(ids) - start)


def _completion(turn: Turn) -> Completion:
    return Completion(turn.text, _ids(turn.generated), call_mask(turn))


def _ids(segments: Sequence[Segment]) -> tuple[int, ...] | None:
    """Concatenate the ids of segments; None where one has text only."""
    if any(s.ids is None for s in segments):
        return None
    return ids_of(segments)
