"""What is said at the endpoint of one rollout, and the trajectory that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from retcon.core.types import Provenance, Stop, Trajectory
from retcon.http.refusal import RequestRefused
from retcon.rollout.context import RolloutContext
from retcon.serve.answering import TOO_LONG, Agent, Reply
from retcon.serve.nodes import joined
from retcon.serve.recording import Record
from retcon.serve.refusing import wrong
from retcon.serve.requests import Asked
from retcon.serve.sessions import names_task
from retcon.serve.settings import ServeSettings

MODEL = "model"
AT_ONCE = 256
"""Requests of one rollout at a time."""
FOR_EVER = float("inf")
OUT_OF_TURNS = "max_turns"


class RolloutAgent(Agent):
    """Answers one rollout's requests as the rollouts of its context are sampled: whatever temperature, cut-off or seed
    a request asks for. session: the one that is learnt from.

    over: the limit by which the last request was refused, None where it was answered. lost: the fault by which it was.
    refused: what the last refusal said.
    """

    def __init__(self, context: RolloutContext, session: str, task: str, seed: int) -> None:
        most = context.limits.max_tokens
        settings = ServeSettings(MODEL, seed=seed, answer_tokens=most, at_once=AT_ONCE, idle=FOR_EVER)
        super().__init__(context, settings, Record(None))
        self._named = task if names_task(task) else None
        self.session, self._task, self._limits = session, task, context.limits
        self.over: Literal["length", "turns"] | None = None
        self.lost = self.refused = ""
        self._turns = 0
        self._last: Reply | None = None

    async def answer(self, asked: Asked, session: str | None, task: str | None) -> Reply:
        """As `Agent.answer`; a session that is none of the rollout's own is told apart from other rollouts'. Raises
        RequestRefused."""
        own = session is None or session == self.session  # as replies name it, which clients may send back
        name = self.session if own else f"{self.session}.{(session or '').removeprefix(f'{self.session}.')}"
        if own and self._turns >= self._limits.max_turns:
            self.over = "turns"
            raise wrong("messages", f"the rollout has had its {self._turns} turns (rollout.max_turns)", OUT_OF_TURNS)
        plain = replace(asked, temperature=None, top_p=None, top_k=None, min_p=None, seed=None)
        try:
            reply = await super().answer(plain, name, task or self._named)
        except RequestRefused as refused:
            self.refused = refused.message
            if refused.kind == TOO_LONG:
                self.over = "length"
            elif refused.status >= 500:
                self.lost = refused.message
            raise
        self.over, self.lost = None, ""
        if own:
            self._turns += len(reply.exchange.turns)
            self._last = reply
        return reply

    def made(self, id: str, provenance: Provenance) -> Trajectory | None:
        """The conversation that was answered last, from its beginning; None where nothing was asked."""
        if self._last is None:
            return None
        exchange = self._last.exchange
        leaf = next(node for node in self.sessions.get(self.session).nodes() if node.exchange is exchange)
        prompt, turns = joined([node.exchange for node in leaf.path])
        stop: Stop = self.over or exchange.stop
        return Trajectory(id, self._task, prompt, turns, stop=stop, provenance=provenance)

    def _for(self, asked: Asked) -> tuple[RolloutContext, Mapping[str, str] | None]:
        """Calls that run here are turns of the rollout's, of which it has no more than are left."""
        context, names = super()._for(asked)
        left = max(1, self._limits.max_turns - self._turns)
        return replace(context, limits=replace(context.limits, max_turns=left)), names

    @property
    def beside(self) -> int:
        """Conversations of the rollout's own session that `made` leaves out."""
        return 0 if self._last is None else sum(1 for _ in self.sessions.get(self.session).nodes()) - 1
