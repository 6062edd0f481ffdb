"""The agent endpoint over a scripted engine, asked in this process or over real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.chat.types import Tokenizer
from retcon.core.types import Trajectory
from retcon.engine.kinds.scripted import Reply, ScriptedEngine
from retcon.engine.types import Generator, SamplingParams
from retcon.http.server import listen, run_in_loop
from retcon.purify.saar import Saar
from retcon.purify.types import Repair
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.serve import app
from retcon.serve.agent import Agent
from retcon.serve.errors import ServeSettings
from retcon.serve.recording import Record
from retcon.tools.schema import python_spec
from retcon.tools.scripted import ScriptedTool

MODEL = "small"
BYTES = ByteTokenizer()
LIMITS = RolloutLimits(max_tokens=4000, max_turns=6, lookahead_tokens=4000)
Message = Mapping[str, object]
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}


def run_python(code: str) -> tuple[str, Any, str | None]:
    """`x` is not defined; everything else is printed."""
    return ("NameError: x", "error", "NameError") if "x" in code else (f"<{code}>", "ok", None)


def context_of(
    engine: Generator,
    *,
    style: str = "markdown",
    repair: Repair | None = None,
    limits: RolloutLimits = LIMITS,
    tokenizer: Tokenizer = BYTES,
) -> RolloutContext:
    tool = ScriptedTool(run_python, spec=python_spec())
    chat = Chat(tokenizer, style=style)
    return RolloutContext(engine, chat, {"python": tool}, limits, SamplingParams(), repair, model=MODEL)


@dataclass
class Asking:
    """A client of an endpoint, and what stands behind it."""

    http: httpx.AsyncClient
    engine: ScriptedEngine
    agent: Agent

    async def chat(self, messages: Sequence[Message], *, session: str | None = None, **more: object) -> Any:
        """The answer's body. Raises AssertionError for an error."""
        answer = await self.post(messages, session=session, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(
        self,
        messages: Sequence[Message],
        *,
        session: str | None = None,
        task: str | None = None,
        agent: str = "",
        **more: object,
    ) -> httpx.Response:
        named = {"X-Retcon-Session": session, "X-Retcon-Task": task}
        headers = {name: value for name, value in named.items() if value is not None}
        body = {"model": MODEL, "messages": list(messages), **more}
        door = f"/agents/{agent}" if agent else ""
        return await self.http.post(f"{door}/v1/chat/completions", json=body, headers=headers)

    def trajectories(self, session: str) -> list[Trajectory]:
        return self.agent.sessions.get(session).trajectories(self.agent.provenance)


@asynccontextmanager
async def asking(
    replies: Sequence[Reply] | Callable[[str, str, int], str],
    *,
    style: str = "markdown",
    repair: Repair | None = None,
    limits: RolloutLimits = LIMITS,
    tokenizer: Tokenizer = BYTES,
    record: Path | None = None,
    **settings: Any,
) -> AsyncIterator[Asking]:
    """Without a socket."""
    engine = ScriptedEngine(tokenizer, replies)
    context = context_of(engine, style=style, repair=repair, limits=limits, tokenizer=tokenizer)
    agent = Agent(context, ServeSettings(MODEL, **settings), Record(record))
    async with app.open_app(agent) as application:
        transport = httpx.ASGITransport(application, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
            yield Asking(http, engine, agent)


@asynccontextmanager
async def serving(context: RolloutContext, record: Path | None = None, **settings: Any) -> AsyncIterator[str]:
    """Over a socket; its URL."""
    agent = Agent(context, ServeSettings(MODEL, **settings), Record(record))
    async with app.open_app(agent) as application, run_in_loop(application, listen("127.0.0.1", 0)) as url:
        yield url


def asked(play: Callable[[Asking], Coroutine[Any, Any, None]], replies: Any, **how: Any) -> None:
    """Runs a test's conversation."""

    async def main() -> None:
        async with asking(replies, **how) as client:
            await play(client)

    asyncio.run(asyncio.wait_for(main(), 300))


@contextmanager
def serving_beside(context: RolloutContext, record: Path | None = None, **settings: Any) -> Iterator[str]:
    """As `serving`, in a thread of its own, for clients that block."""
    loop, stack = asyncio.new_event_loop(), AsyncExitStack()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        opened = stack.enter_async_context(serving(context, record, **settings))
        yield asyncio.run_coroutine_threadsafe(opened, loop).result(120)
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(120)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(answer: Any) -> Message:
    """The message of an answer, as a harness sends it back."""
    message = answer["choices"][0]["message"]
    return {key: value for key, value in message.items() if key in ("role", "content", "tool_calls")}


SAAR = Saar()


async def conversed(client: Asking, *questions: str, session: str | None = None) -> tuple[list[Message], Any]:
    """The messages of a conversation of these questions, and the last answer."""
    told: list[Message] = []
    answer: Any = None
    for question in questions:
        answer = await client.chat([*told, user(question)], session=session)
        told += [user(question), said(answer)]
    return told, answer
