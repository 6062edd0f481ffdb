"""What of a record repeats its transcript in another form, and is wrong once that is repaired: it is emptied."""

from __future__ import annotations

from collections.abc import Sequence

from retcon.transcripts.types import Json

_OF_TEXT = (
    "tokens", "token_ids", "response_ids", "response_length", "loss_mask", "rollout_log_probs", "completion_ids",
    "completion_mask", "completion_logprobs", "response_mask", "rollout_routed_experts", "teacher_log_probs",
    "mopd_teacher_log_probs",
)  # fmt: skip
"""Ids, masks and log-probs of what the model wrote (slime, verl, TRL, prime-rl)."""
_STEPS = "trajectory"
"""Beside verifiers' `completion`: each request to the model, with its prompt and its ids."""


def without_stale(record: Json, path: Sequence[str]) -> Json:
    """The record, of whose transcript at `path` something was repaired, without such fields' values: an empty list, or
    0 for a number. The record itself stays as it is."""
    if not isinstance(record, dict):
        return record
    names = [n for n in _OF_TEXT if n in record]
    if tuple(path) == ("completion",) and isinstance(record.get(_STEPS), list):
        names.append(_STEPS)
    return {**record, **{n: _empty(record[n]) for n in names}} if names else record


def _empty(value: Json) -> Json:
    if isinstance(value, list):
        return []
    return 0 if isinstance(value, int | float) and not isinstance(value, bool) else None
