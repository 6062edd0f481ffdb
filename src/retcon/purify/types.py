"""Protocols of repairs, independent of engines and tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from retcon.core.types import Observation, Segment, ToolCall, Turn


class Lookahead(Protocol):
    """Attempts that a rollout offers to a repair, at history h_t."""

    async def attempt(self, shown: Sequence[Turn]) -> Turn | None:
        """Generate and execute one more turn on h_t ⊕ shown. None where no budget is left for it.

        The turn is complete: if it has calls, each has its observation. A generation that was cut off by the budget
        has stop `length`, no calls, and cannot be shown: nothing can follow it. Raises InfrastructureFault where an
        engine or a tool is gone; a repair lets that pass, and the rollout keeps the record and ends."""

    async def replays_identically(self, turns: Sequence[Turn]) -> bool:
        """Whether the tools would have answered these turns in sequence.

        Each attempt ran in the state before the failure. Where tools keep state, they are asked once more: one call
        after the other, in the state that the failure left. The failure is the first turn. Raises
        InfrastructureFault."""

    def render_observations(
        self, written: Sequence[Segment], calls: Sequence[ToolCall], observations: Sequence[Observation]
    ) -> tuple[Segment, ...]:
        """Render these observations after h_t ⊕ written.

        Up to where the model's next turn opens: the template's glue and the observations, with their ids. The turn
        is closed where `written` is not."""

    def fits(self, *turns: Turn) -> bool:
        """Whether h_t ⊕ turns fits the rollout's budget."""


class Repair(Protocol):
    """Repair that chooses the turns to commit for a failed one."""

    @property
    def attempts(self) -> int:
        """Most attempts at a failed turn; with 0 no state is kept to go back to."""

    def failed(self, turn: Turn) -> bool:
        """Whether this turn counts as a failure."""

    async def repair(self, turn: Turn, lookahead: Lookahead) -> Sequence[Turn]:
        """Return the turns to commit after h_t, at least one.

        Spliced segments may be unscored. The last calls among them must be the failure's own or the last attempt's:
        the state of tools is kept of these."""
