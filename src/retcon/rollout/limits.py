"""How far a rollout may go."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """max_ids: a history has no more, prompt and observations counted; what does not fit of the last turn's
    observations is left out of its segments. max_turns: generations that are committed; a call in the last one still
    runs. lookahead_ids: room beyond max_ids for what a repair tries.
    """

    max_ids: int
    max_turns: int
    lookahead_ids: int = 0

    def __post_init__(self) -> None:
        if self.max_ids < 1 or self.max_turns < 1 or self.lookahead_ids < 0:
            raise ValueError(f"max_ids and max_turns must be 1 or more, lookahead_ids 0 or more: {self}")
