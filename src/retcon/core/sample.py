"""From a trajectory to a training sample: ids, loss mask and log-probs, derived from the segments' kinds."""

from __future__ import annotations

from collections.abc import Iterable

from retcon.core.errors import MissingIds, UnscoredTokens
from retcon.core.texts import counted
from retcon.core.types import TRAINED, Sample, Segment, Trajectory


def ids_of(segments: Iterable[Segment]) -> tuple[int, ...]:
    """The concatenated ids of segments, (T,); one that holds text only adds none."""
    return tuple(i for s in segments for i in s.ids or ())


def token_count(segments: Iterable[Segment]) -> int:
    """How many ids segments have; one that holds text only has none."""
    return sum(len(s.ids or ()) for s in segments)


def history_ids(trajectory: Trajectory) -> tuple[int, ...]:
    """The ids of the whole trajectory, (T,): exactly what the engine saw.

    Raises MissingIds where a segment holds text only, or another tokenizer stood in for the model's.
    """
    if trajectory.provenance.encoded_by is not None:
        raise MissingIds(
            f"trajectory {trajectory.id}: its model speaks text only, and its ids are those of "
            f"{trajectory.provenance.encoded_by}, which stood in for the model's tokenizer"
        )
    ids: list[int] = []
    for segment in trajectory.segments:
        if segment.ids is None:
            raise MissingIds(f"trajectory {trajectory.id}: a {segment.kind} segment has no ids (text-only engine?)")
        ids.extend(segment.ids)
    return tuple(ids)


def to_sample(trajectory: Trajectory, *, scored: bool = True) -> Sample:
    """The sample of a trajectory; the mask is 1 on `sampled` and `spliced` ids, 0 elsewhere.

    scored=False (for supervised training) allows ids without log-probs. Raises MissingIds, and UnscoredTokens where ids
    in the loss mask have no log-probs.
    """
    mask: list[int] = []
    spliced: list[int] = []
    logprobs: list[float | None] = []
    ids = history_ids(trajectory)
    for segment in trajectory.segments:
        count = len(segment.ids or ())
        learnt = segment.kind in TRAINED
        if learnt and scored and segment.logprobs is None and count:
            raise UnscoredTokens(
                f"trajectory {trajectory.id}: {counted(count, f'{segment.kind} token')} without log-probs; "
                "score them under the purified prefix first"
            )
        mask.extend([int(learnt)] * count)
        spliced.extend([int(segment.kind == "spliced")] * count)
        logprobs.extend(segment.logprobs if segment.logprobs is not None else [None] * count)
    return Sample(ids, tuple(mask), tuple(logprobs), tuple(spliced), source=trajectory.id)
