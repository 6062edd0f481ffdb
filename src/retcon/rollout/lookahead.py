"""What a repair may do at a failed turn: try again, with the history before it frozen."""

from __future__ import annotations

from collections.abc import Sequence

from retcon.core.errors import InfrastructureFault
from retcon.core.sample import ids_of, token_count
from retcon.core.types import Observation, Segment, ToolCall, Turn
from retcon.rollout.context import RolloutLimits
from retcon.rollout.state import TurnState
from retcon.rollout.turns import TurnSampler, broken


class TurnLookahead:
    """The lookahead at turn `number`, whose history h_t is `history`; implements `Lookahead`.

    state: of the tools that keep one. Each attempt's calls run from the state that h_t left, as the attempt is to stand
    right after h_t once it is the fix. The model has been shown the failure, though, and an attempt that leans on what
    the failed call had set before it failed will fail in turn, and counts as an attempt. (The paper has no sessions.)
    made: every attempt, in order, also where a fault cut the repair short.
    """

    def __init__(
        self, sampler: TurnSampler, limits: RolloutLimits, history: Sequence[int], number: int, state: TurnState
    ) -> None:
        self._sampler = sampler
        self._limits = limits
        self._history = tuple(history)
        self._number = number
        self._state = state
        self.made: list[Turn] = []

    async def begin(self) -> None:
        """See `TurnState.keep_failure`."""
        await self._state.keep_failure()

    async def attempt(self, shown: Sequence[Turn]) -> Turn | None:
        ids = self._history + ids_of(s for turn in shown for s in turn.segments)
        room = self._limits.max_tokens + self._limits.lookahead_tokens - len(ids)
        if room <= 0:
            return None
        turn = await self._sampler.turn(
            ids, number=self._number, attempt=len(self.made) + 1, room=room, run=self._state.run_again
        )
        self.made.append(turn)
        if broken(turn):
            raise InfrastructureFault(f"rollout {self._sampler.id}: a tool failed on its own account in a lookahead")
        return turn

    async def happened(self, turns: Sequence[Turn]) -> bool:
        return await self._state.would_repeat([(turn.calls, turn.observations) for turn in turns[1:]])

    def told(
        self, written: Sequence[Segment], calls: Sequence[ToolCall], observations: Sequence[Observation]
    ) -> tuple[Segment, ...]:
        chat, ids = self._sampler.chat, ids_of(written) or self._history
        text = "".join(segment.text for segment in written)
        last = None if text.endswith(chat.family.closes) else ids[-1]
        return chat.observations(calls, observations, last_id=last, written=text)

    def fits(self, *turns: Turn) -> bool:
        if self._number + len(turns) > self._limits.max_turns:
            return False
        used = len(self._history) + token_count(s for turn in turns for s in turn.segments)
        return used < self._limits.max_tokens or (used == self._limits.max_tokens and turns[-1].stop == "answer")

    async def settle(self, failure: Turn, committed: Sequence[Turn]) -> list[Turn]:
        """The turns that a repair commits, scored under the history that they get.

        The tools are left as the last of their calls left them, which is the failure's own where no attempt's is among
        them. Raises InfrastructureFault.
        """
        ids = list(self._history)
        scored: list[Turn] = []
        for turn in committed:
            scored.append(await self._sampler.scored(ids, turn))
            ids.extend(ids_of(turn.segments))
        if [turn.calls for turn in scored if turn.calls][-1:] == [failure.calls]:
            await self._state.restore_failure()
        return scored
