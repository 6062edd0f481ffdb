"""The server that harnesses ask: every rollout has a URL of its own there, for as long as it lasts."""

from __future__ import annotations

import asyncio
import logging
import secrets
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retcon.core.errors import RecipeError
from retcon.core.seeds import derive
from retcon.core.texts import counted
from retcon.core.types import Provenance, Stop, Trajectory
from retcon.http.handling import refusal
from retcon.http.refusal import RequestRefused
from retcon.http.server import allow_many_connections, listen, served
from retcon.rollout.context import Rolled, RolloutContext
from retcon.serve import app
from retcon.serve.harness.rolling import MODEL, RolloutAgent
from retcon.serve.harness.solving import ModelEndpoint, Solve, solved
from retcon.serve.refusing import as_openai
from retcon.serve.sessions import SESSION
from retcon.tasks.types import Task

LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class Doors:
    """The application of all rollouts: the first part of a path names the one that a request is for."""

    _behind: dict[str, ASGIApp] = field(default_factory=dict)
    _running: dict[str, set[asyncio.Task[None]]] = field(default_factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        _, name, rest = (*scope["path"].split("/", 2), "")[:3]
        behind, running = self._behind.get(name), asyncio.current_task()
        if behind is None or running is None:
            gone = RequestRefused(404, "no_such_rollout", "this URL was a rollout's, which is over")
            await refusal(gone, as_openai)(scope, receive, send)
            return
        if rest.startswith("v1/sessions"):
            said = "a rollout has no sessions to end: its harness returns the reward (rollout.harness)"
            await refusal(RequestRefused(404, "no_such_endpoint", said), as_openai)(scope, receive, send)
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
            if unfinished:  # cancelled by the door that closed: of a stream, what is there ends
                await send({"type": "http.response.body"})
        finally:
            self._running.get(name, set()).discard(running)

    @asynccontextmanager
    async def opened(self, agent: RolloutAgent) -> AsyncIterator[str]:
        """The path of an agent's own door. What is still asked there when it closes is cancelled."""
        name = secrets.token_urlsafe(12)
        async with app.opened(agent) as behind:
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
class ServedHarness:
    """Implements `retcon.rollout.context.Harness`. url: where `doors` are served. seconds: that a rollout may take."""

    solve: Solve
    seconds: float
    doors: Doors
    url: str
    _told: bool = False

    async def rolled(
        self, task: Task, context: RolloutContext, *, id: str, seed: int, provenance: Provenance
    ) -> Rolled:
        """See `Harness.rolled`. Raises RecipeError for what the function may not return."""
        session = f"{derive('harness', id):016x}"
        agent = RolloutAgent(context, session, task.id, seed)
        provenance = replace(provenance, seed=seed, purified=context.repair is not None)
        said: str | float | None = None
        lost = ""
        async with self.doors.opened(agent) as name:
            endpoint = ModelEndpoint(f"{self.url}/{name}/v1", MODEL)
            try:
                async with asyncio.timeout(self.seconds) as clock:
                    said = await solved(self.solve, task, endpoint)
            except RecipeError:
                raise
            except (Exception, SystemExit, asyncio.CancelledError) as error:
                running = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and running is not None and running.cancelling():
                    raise  # the run ends; else it is the harness's own, which costs this one rollout alone
                agent.over = agent.over or agent.beyond  # which may be another session's: it gave up for that
                if agent.over is None:
                    lost = _raised(error, self.solve)
            if clock.expired():  # also where the function has caught what should have ended it
                lost = f"the harness took more than {self.seconds:g} seconds (rollout.harness_seconds)"
            made = agent.made(id, provenance)
            beside = agent.beside
        if beside and not self._told:
            self._told = True
            LOG.warning(
                "rollout %s: beside the conversation that was answered last, which alone is learnt from, its harness "
                "led %s; of other rollouts like it nothing is said (docs/training/harnesses.md)",
                id, counted(beside, "other one"),
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
            return Rolled(replace(made, stop="infrastructure"))
        assert made is not None
        if said is None:
            return Rolled(made)
        ended: Stop = "answer"
        if isinstance(said, str):
            return Rolled(replace(made, stop=ended), said)
        return Rolled(replace(made, stop=ended, reward=said, answer=agent.answered))


@asynccontextmanager
async def open_harness(solve: Solve, seconds: float) -> AsyncIterator[ServedHarness]:
    """Rollouts by a function, the server listening on this machine alone. Raises AddressUnavailable."""
    doors = Doors()
    allow_many_connections()
    async with served(doors, listen("127.0.0.1", 0)) as url:
        yield ServedHarness(solve, seconds, doors, url)


def _raised(error: BaseException, solve: Solve) -> str:
    """What a harness raised, and where; of a group of errors the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    said = f": {error}" if str(error) else ""
    return f"the harness raised {type(error).__name__}{said}{_where(error, solve)}"


def _where(error: BaseException, solve: Solve) -> str:
    """The line of the function's own file that it came from, where it is one; empty otherwise."""
    own = getattr(getattr(solve, "__code__", None), "co_filename", None)
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    return f" ({lines[-1].filename}:{lines[-1].lineno})" if lines else ""
