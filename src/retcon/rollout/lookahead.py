"""What a repair may do at a failed turn: try again, with the history before it frozen."""

from __future__ import annotations

from collections.abc import Sequence

from retcon.core.errors import InfrastructureFault
from retcon.core.types import Turn
from retcon.rollout.limits import Limits
from retcon.rollout.turns import TurnSampler, broken, ids_of


class TurnLookahead:
    """The lookahead at turn `number`, whose history h_t is `history`; implements `Lookahead`.

    made: every attempt, in order, also where a fault cut the repair short.
    """

    def __init__(self, sampler: TurnSampler, limits: Limits, history: Sequence[int], number: int) -> None:
        self._sampler = sampler
        self._limits = limits
        self._history = tuple(history)
        self._number = number
        self.made: list[Turn] = []

    async def attempt(self, shown: Sequence[Turn]) -> Turn | None:
        ids = self._history + ids_of(s for turn in shown for s in turn.segments)
        room = self._limits.max_ids + self._limits.lookahead_ids - len(ids)
        if room <= 0:
            return None
        turn = await self._sampler.turn(ids, number=self._number, attempt=len(self.made) + 1, room=room)
        self.made.append(turn)
        if broken(turn):
            raise InfrastructureFault(f"rollout {self._sampler.id}: a tool failed on its own account in a lookahead")
        return turn

    def fits(self, *turns: Turn) -> bool:
        if self._number + len(turns) > self._limits.max_turns:
            return False
        used = len(self._history) + len(ids_of(s for turn in turns for s in turn.segments))
        return used < self._limits.max_ids or (used == self._limits.max_ids and turns[-1].stop == "answer")
