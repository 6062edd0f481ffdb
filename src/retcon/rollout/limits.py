"""How far a rollout may go."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """max_tokens: a history has no more, prompt and observations counted; what does not fit of the last turn's
    observations is left out of its segments. max_turns: generations that are committed; a call in the last one still
    runs. lookahead_tokens: room beyond max_tokens for what a repair tries.
    """

    max_tokens: int
    max_turns: int
    lookahead_tokens: int = 0

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.max_turns < 1 or self.lookahead_tokens < 0:
            raise ValueError(f"max_tokens and max_turns must be 1 or more, lookahead_tokens 0 or more: {self}")
