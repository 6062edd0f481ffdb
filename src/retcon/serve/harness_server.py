"""Server for harnesses, with a URL for each running rollout."""

from __future__ import annotations

import asyncio
import logging
import secrets
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retcon.core.errors import RecipeError
from retcon.core.seeds import derive
from retcon.core.texts import counted
from retcon.core.types import Parent, Provenance, Stop, Trajectory
from retcon.http.endpoints import RequestRefused, error_response
from retcon.http.server import allow_many_connections, listen, run_in_loop
from retcon.rollout.context import HarnessResult, RolloutContext
from retcon.rollout.subcalls import SubcallBudget
from retcon.serve import app
from retcon.serve.agent import TOO_LONG, Agent, Reply, conversation_scope
from retcon.serve.errors import ServeSettings, invalid_request, openai_error_body
from retcon.serve.harness import HarnessFunction, ModelEndpoint, run_harness
from retcon.serve.recording import Record
from retcon.serve.requests import ChatRequest
from retcon.serve.sessions import (
    NOWHERE,
    SESSION,
    build_trajectories,
    conversation_key,
    is_task_name,
    nest_trajectories,
)
from retcon.tasks.types import Task

MODEL = "model"
AT_ONCE = 256
"""Requests of one rollout at a time."""
FOR_EVER = float("inf")
Limit = Literal["length", "turns"]
OUT_OF_TURNS = "max_turns"


class RolloutAgent(Agent):
    """Agent of one rollout, with its context's sampling whatever a request sets. session: the one to train on.

    over: the limit that refused the last request at that session's own URL, None if it was answered. beyond: likewise
    of the last request of all. refused: message of the last refusal. asked: whether that session had any request.
    aside: the client's name of another session that was answered, else empty. budget: of requests at agents' URLs.
    """

    def __init__(self, context: RolloutContext, session: str, task: str, seed: int) -> None:
        most = context.limits.max_tokens
        settings = ServeSettings(MODEL, seed=seed, answer_tokens=most, at_once=AT_ONCE, idle=FOR_EVER)
        super().__init__(context, settings, Record(None))
        self._named = task if is_task_name(task) else None
        self.session, self._task, self._limits = session, task, context.limits
        self.over: Limit | None = None
        self.beyond: Limit | None = None
        self.refused = self.aside = ""
        self.asked = False
        self._lost: dict[tuple[str, str], str] = {}  # by session and conversation key
        self._turns = self._held = 0  # that were answered; that requests which are being may take
        self._settled = asyncio.Event()  # set for a moment when one of these is over
        self._last: Reply | None = None  # at the session's own URL, else at an agent's
        self.budget = SubcallBudget(context.subcalls)

    async def answer(self, asked: ChatRequest, session: str | None, task: str | None) -> Reply:
        """Answer a request for the rollout's task, whatever task it names. Other sessions than the rollout's get its
        prefix, apart from other rollouts'. Raises RequestRefused."""
        own = session is None or session == self.session  # as replies name it, which clients may send back
        top = own and not asked.agent
        name = self.session if own else f"{self.session}.{(session or '').removeprefix(f'{self.session}.')}"
        self.asked = self.asked or own
        talk = name, conversation_key(conversation_scope(asked), asked.messages)
        if own and asked.agent and (refusal := self.budget.refusal()) is not None:
            self._refused_by("turns", top)
            self.refused = refusal
            raise invalid_request("messages", refusal, OUT_OF_TURNS)
        async with self._turns_for(asked, own) as turns:
            plain = replace(asked, temperature=None, top_p=None, top_k=None, min_p=None, seed=None, turns=turns)
            try:
                reply = await super().answer(plain, name, self._named)
            except RequestRefused as refused:
                self.refused = refused.message
                if refused.kind == TOO_LONG:
                    self._refused_by("length", top)
                elif refused.status >= 500:
                    self._lost[talk] = refused.message
                raise
            self._refused_by(None, top)
            self._lost.pop(talk, None)
            if not own:
                self.aside = session or ""
            elif asked.agent:
                self.budget.input_tokens += reply.before
                self.budget.output_tokens += reply.exchange.sampled_tokens
                if not self._turns:
                    self._last = reply
            else:
                self._turns += len(reply.exchange.turns)
                self._last = reply
        return reply

    @asynccontextmanager
    async def _turns_for(self, asked: ChatRequest, own: bool) -> AsyncIterator[int]:
        """Reserve a request's turns, apart from those that running requests may need; wait if these might leave none.
        Calls that run here take all that are left. Raises RequestRefused."""
        most = self._limits.max_turns
        if asked.agent or not own:
            yield most if asked.agent else max(1, most - self._turns)
            return
        while self._turns < most <= self._turns + self._held:
            await self._settled.wait()
        if self._turns >= most:
            self._refused_by("turns", own)
            raise invalid_request(
                "messages", f"the rollout has had its {self._turns} turns (rollout.max_turns)", OUT_OF_TURNS
            )
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
        """A fault of a conversation that was not answered later, if any."""
        return next(iter(self._lost.values()), "")

    def _refused_by(self, limit: Limit | None, top: bool) -> None:
        self.beyond = limit
        if top:
            self.over = limit

    def made(self, id: str, provenance: Provenance) -> Trajectory | None:
        """Return the last answered conversation, None without any.

        All others are its children: agents' by the turn in which they began, forks, and those of unknown place.
        """
        if self._last is None:
            return None
        exchange = self._last.exchange
        leaves = sorted(self.sessions.get(self.session).nodes(), key=lambda node: node.number)
        last = next(node for node in leaves if node.exchange is exchange)
        ids = {node: f"{id}/{'/'.join(filter(None, (node.agent, str(node.number))))}" for node in leaves}
        ordered = (last, *(node for node in leaves if node is not last))
        made, *others = build_trajectories(ordered, provenance, task=self._task, name=(ids | {last: id}).__getitem__)
        beside = Parent(id, NOWHERE, "", "beside")
        below = (replace(t, task=t.id, parent=t.parent or beside, stop=_ended(t.stop)) for t in others)
        (root,) = nest_trajectories([replace(made, parent=None), *below])
        return replace(root, stop=self.over or exchange.stop, refused=self.budget.refused)

    @property
    def answered(self) -> str | None:
        """The model's last message, if it is an answer with text."""
        if self._last is None or self._last.exchange.turns[-1].stop != "answer":
            return None
        return self._last.exchange.shown.text or None


def _ended(stop: Stop) -> Stop:
    """Return the stop of a conversation that its agent ended, perhaps by a call (`final_answer`)."""
    return "answer" if stop == "turns" else stop


LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class RolloutRouter:
    """ASGI application of all rollouts, routed by a path's first part."""

    _behind: dict[str, ASGIApp] = field(default_factory=dict)
    _running: dict[str, set[asyncio.Task[None]]] = field(default_factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        _, name, rest = (*scope["path"].split("/", 2), "")[:3]
        behind, running = self._behind.get(name), asyncio.current_task()
        if behind is None or running is None:
            gone = RequestRefused(404, "no_such_rollout", "this URL was a rollout's, which is over")
            await error_response(gone, openai_error_body)(scope, receive, send)
            return
        if rest.startswith("v1/sessions"):
            message = "a rollout has no sessions to end: its harness returns the reward (rollout.harness)"
            refused = RequestRefused(404, "no_such_endpoint", message)
            await error_response(refused, openai_error_body)(scope, receive, send)
            return
        unfinished = False

        async def sent(message: Message) -> None:
            nonlocal unfinished
            unfinished = message.get("more_body", message["type"] == "http.response.start")
            await send(message)

        self._running[name].add(running)
        try:
            await behind({**scope, "root_path": f"/{name}"}, receive, sent)
        except asyncio.CancelledError:
            if name in self._behind:
                raise
            if unfinished:  # cancelled as the rollout's path closed: end its stream
                await send({"type": "http.response.body"})
        finally:
            self._running.get(name, set()).discard(running)

    @asynccontextmanager
    async def opened(self, agent: RolloutAgent) -> AsyncIterator[str]:
        """Serve an agent within the block; yield its path. Open requests are cancelled at the end."""
        name = secrets.token_urlsafe(12)
        async with app.open_app(agent) as behind:
            self._behind[name], self._running[name] = behind, set()
            try:
                yield name
            finally:
                del self._behind[name]
                left = self._running.pop(name)
                for task in left:
                    task.cancel()
                await asyncio.gather(*left, return_exceptions=True)


@dataclass(eq=False)
class HarnessServer:
    """A harness with its server; implements `Harness`. url: of `doors`. seconds: time limit of a rollout."""

    solve: HarnessFunction
    seconds: float
    doors: RolloutRouter
    url: str
    _warned: bool = False

    async def run(
        self, task: Task, context: RolloutContext, *, id: str, seed: int, provenance: Provenance
    ) -> HarnessResult:
        """Run a rollout; see `Harness.run`. Raises RecipeError for an invalid return value."""
        session = f"{derive('harness', id):016x}"
        agent = RolloutAgent(context, session, task.id, seed)
        provenance = replace(provenance, seed=seed, purified=context.repair is not None)
        returned: str | float | None = None
        lost = ""
        async with self.doors.opened(agent) as name:
            endpoint = ModelEndpoint(f"{self.url}/{name}/v1", MODEL)
            try:
                async with asyncio.timeout(self.seconds) as clock:
                    returned = await run_harness(self.solve, task, endpoint)
            except RecipeError:
                raise
            except (Exception, SystemExit, asyncio.CancelledError) as error:
                running = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and running is not None and running.cancelling():
                    raise  # the run ends; else it is the harness's own error, which costs only this rollout
                agent.over = agent.over or agent.beyond  # another session's limit may be the reason
                if agent.over is None:
                    lost = _describe_error(error, self.solve)
            if clock.expired():  # also if the function has caught the cancellation
                lost = f"the harness took more than {self.seconds:g} seconds (rollout.harness_seconds)"
            made = agent.made(id, provenance)
        beside = sum(t.parent is not None and t.parent.relation == "beside" for t in (made.tree if made else ()))
        if beside and not self._warned:
            self._warned = True
            LOG.warning(
                "rollout %s: its harness led %s that began in an unknown turn: give each agent a URL of its own, "
                "endpoint.agent(NAME) (docs/training/harnesses.md); other rollouts are not reported",
                id, counted(beside, "conversation"),
            )  # fmt: skip
        lost = agent.lost or lost
        if made is None and not lost:
            why = f": {agent.refused}" if agent.refused else ""
            lost = f"the harness asked the model nothing that was answered{why}"
            if agent.aside and not agent.asked:
                lost = (
                    f"the harness asks under {SESSION}: {agent.aside} alone, and a session of its own is not learnt "
                    "from: leave that header out"
                )
        if lost:
            context.faults.add(id, lost)
            made = made or Trajectory(id, task.id, (), (), provenance=provenance)
            return HarnessResult(replace(made, stop="infrastructure"))
        assert made is not None
        if returned is None:
            return HarnessResult(made)
        ended: Stop = "answer"
        if isinstance(returned, str):
            return HarnessResult(replace(made, stop=ended), returned)
        return HarnessResult(replace(made, stop=ended, reward=returned, answer=agent.answered))


@asynccontextmanager
async def open_harness(solve: HarnessFunction, seconds: float) -> AsyncIterator[HarnessServer]:
    """Serve a harness's rollouts on this machine only. Raises AddressUnavailable."""
    doors = RolloutRouter()
    allow_many_connections()
    async with run_in_loop(doors, listen("127.0.0.1", 0)) as url:
        yield HarnessServer(solve, seconds, doors, url)


def _describe_error(error: BaseException, solve: HarnessFunction) -> str:
    """Describe a harness's error, of a group the first, with its line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    message = f": {error}" if str(error) else ""
    return f"the harness raised {type(error).__name__}{message}{_error_line(error, solve)}"


def _error_line(error: BaseException, solve: HarnessFunction) -> str:
    """Return an error's line in the function's own file, if any."""
    own = getattr(getattr(solve, "__code__", None), "co_filename", None)
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    return f" ({lines[-1].filename}:{lines[-1].lineno})" if lines else ""
