"""What is said at the endpoint of one rollout, and the trajectory that it makes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Literal

from retcon.core.types import Provenance, Stop, Trajectory
from retcon.http.refusal import RequestRefused
from retcon.rollout.context import RolloutContext
from retcon.serve.answering import TOO_LONG, Agent, Reply, begins
from retcon.serve.nodes import joined
from retcon.serve.recording import Record
from retcon.serve.refusing import wrong
from retcon.serve.requests import Asked
from retcon.serve.sessions import first_of, names_task
from retcon.serve.settings import ServeSettings

MODEL = "model"
AT_ONCE = 256
"""Requests of one rollout at a time."""
FOR_EVER = float("inf")
Limit = Literal["length", "turns"]
OUT_OF_TURNS = "max_turns"


class RolloutAgent(Agent):
    """Answers one rollout's requests as the rollouts of its context are sampled: whatever temperature, cut-off or seed
    a request asks for. session: the one that is learnt from.

    over: the limit by which the last request of that session was refused, None where it was answered. beyond: the same
    of the last request of all. refused: what the last refusal said. asked: whether that session was asked at all.
    aside: another that was answered, by the name that the client gave it; empty where none was.
    """

    def __init__(self, context: RolloutContext, session: str, task: str, seed: int) -> None:
        most = context.limits.max_tokens
        settings = ServeSettings(MODEL, seed=seed, answer_tokens=most, at_once=AT_ONCE, idle=FOR_EVER)
        super().__init__(context, settings, Record(None))
        self._named = task if names_task(task) else None
        self.session, self._task, self._limits = session, task, context.limits
        self.over: Limit | None = None
        self.beyond: Limit | None = None
        self.refused = self.aside = ""
        self.asked = False
        self._lost: dict[tuple[str, str], str] = {}  # by session, and what the conversation began with
        self._turns = self._held = 0  # that were answered; that requests which are being may take
        self._settled = asyncio.Event()  # set for a moment when one of these is over
        self._last: Reply | None = None

    async def answer(self, asked: Asked, session: str | None, task: str | None) -> Reply:
        """As `Agent.answer`; a session that is none of the rollout's own is told apart from other rollouts'. Whatever a
        request names, the task is the rollout's. Raises RequestRefused."""
        own = session is None or session == self.session  # as replies name it, which clients may send back
        name = self.session if own else f"{self.session}.{(session or '').removeprefix(f'{self.session}.')}"
        self.asked = self.asked or own
        talk = name, first_of(begins(asked), asked.messages)
        async with self._turns_for(asked, own) as turns:
            plain = replace(asked, temperature=None, top_p=None, top_k=None, min_p=None, seed=None, turns=turns)
            try:
                reply = await super().answer(plain, name, self._named)
            except RequestRefused as refused:
                self.refused = refused.message
                if refused.kind == TOO_LONG:
                    self._refused_by("length", own)
                elif refused.status >= 500:
                    self._lost[talk] = refused.message
                raise
            self._refused_by(None, own)
            self._lost.pop(talk, None)
            if own:
                self._turns += len(reply.exchange.turns)
                self._last = reply
            else:
                self.aside = session or ""
        return reply

    @asynccontextmanager
    async def _turns_for(self, asked: Asked, own: bool) -> AsyncIterator[int]:
        """How many turns a request may take: none that others of the rollout's, which are being answered, may need. It
        waits where these might leave none. Calls that run here take all that are left. Raises RequestRefused."""
        most = self._limits.max_turns
        if not own:
            yield max(1, most - self._turns)
            return
        while self._turns < most <= self._turns + self._held:
            await self._settled.wait()
        if self._turns >= most:
            self._refused_by("turns", own)
            raise wrong("messages", f"the rollout has had its {self._turns} turns (rollout.max_turns)", OUT_OF_TURNS)
        turns = 1 if asked.alone else most - self._turns - self._held
        self._held += turns
        try:
            yield turns
        finally:
            self._held -= turns
            self._settled.set()
            self._settled.clear()

    @property
    def lost(self) -> str:
        """The fault by which a conversation was refused, whichever, that was not answered later; empty where there is
        none."""
        return next(iter(self._lost.values()), "")

    def _refused_by(self, limit: Limit | None, own: bool) -> None:
        self.beyond = limit
        if own:
            self.over = limit

    def made(self, id: str, provenance: Provenance) -> Trajectory | None:
        """The conversation that was answered last, from its beginning; None where nothing was asked."""
        if self._last is None:
            return None
        exchange = self._last.exchange
        leaf = next(node for node in self.sessions.get(self.session).nodes() if node.exchange is exchange)
        prompt, turns = joined([node.exchange for node in leaf.path])
        stop: Stop = self.over or exchange.stop
        return Trajectory(id, self._task, prompt, turns, stop=stop, provenance=provenance)

    @property
    def answered(self) -> str | None:
        """The model's last message, where it is an answer and says something: of rewards that are no grader's."""
        if self._last is None or self._last.exchange.turns[-1].stop != "answer":
            return None
        return self._last.exchange.shown.text or None

    @property
    def beside(self) -> int:
        """Conversations of the rollout's own session that `made` leaves out."""
        return 0 if self._last is None else sum(1 for _ in self.sessions.get(self.session).nodes()) - 1
