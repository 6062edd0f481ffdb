"""One of four servers fails at once: it must not attract the work that the others are busy with."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from retcon.core.errors import InfrastructureFault, SandboxUnavailable
from retcon.engine.pool.policy import PoolSettings
from retcon.engine.types import SamplingParams
from retcon.http.client import ConnectionFailed, HttpClient
from retcon.plugins.verl.router import LONGEST_PAUSE, RetconRouter
from retcon.plugins.verl.shared import ServerEngine
from retcon.sandbox.client import SandboxRouter
from servers.answering import Answer, Asked, Server, serving
from servers.asking_vllm import engine_of
from servers.speaking_vllm import VLLM

ROLLOUTS, AT_ONCE, BUSY = 200, 16, 8
HANDFUL = AT_ONCE // 4 + 6
"""Its share of those that are under way at the first fault, and probes whose pauses double."""
PAUSE = 0.5
SAYS = r"http://127.0.0.1:\d+: \S|no space left|no worker starts|^request r\d+: \S"
INTERNAL = Answer({"error": {"type": "internal", "message": "no space left"}}, 500)
FAILS = {
    "breaks off": Answer(status=None), "internal": INTERNAL, "a page": Answer("Internal Server Error", 500),
    "infrastructure": Answer({"status": "infrastructure", "stderr": "no worker starts"}),
}  # fmt: skip
Rollout = Callable[[int], Awaitable[bool]]
"""Whether the rollout of that number was served."""


class Fleet:
    """Four servers. Each takes its time: it answers once `BUSY` more requests have come. failing: those that answer
    `fails` at once. work: the paths that this is about; asked: how often each server was asked for it."""

    def __init__(self, work: Callable[[str], bool], answers: Callable[[Asked], Answer], fails: Answer) -> None:
        self.work, self.answers, self.fails = work, answers, fails
        self.failing, self.asked = {0}, [0] * 4
        self._begun, self._over = threading.Condition(), False
        self._arrived, self.begun, self.servers, self.said = 0, 0, list[Server](), list[str]()

    @contextmanager
    def serving(self) -> Iterator[Fleet]:
        with ExitStack() as stack:
            replies = (lambda asked, n=n: self.reply(n, asked) for n in range(4))
            self.servers = [stack.enter_context(serving(reply, models=())) for reply in replies]
            yield self

    @property
    def urls(self) -> list[str]:
        return [server.url.removesuffix("/v1") for server in self.servers]

    def reply(self, number: int, asked: Asked) -> Answer:
        if not self.work(asked.path) or asked.body == {}:
            return self.answers(asked)
        self.asked[number] += 1
        if number in self.failing:
            return self.fails
        with self._begun:
            self._arrived += 1
            self._begun.notify_all()
            until = self._arrived + BUSY
            self._begun.wait_for(lambda: self._over or self._arrived >= until, 30)
        return self.answers(asked)

    def lost(self, why: object) -> bool:
        self.said.append(str(why))
        return False

    async def rollouts(self, one: Rollout, count: int = ROLLOUTS) -> int:
        """How many of them were served, `AT_ONCE` at a time."""
        left, served = iter(range(count)), 0

        async def worker() -> None:
            nonlocal served
            for number in left:
                with self._begun:
                    self.begun += 1
                    self._over = number == count - 1  # none begins after it
                    self._begun.notify_all()
                made = await one(number)
                served += made

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
        return served


async def checked(fleet: Fleet, one: Rollout, longest: float, clock: Callable[[], float] = time.monotonic) -> None:
    """What holds of each of our routers. longest: seconds of its pauses, by `clock`."""
    began = clock()
    assert await fleet.rollouts(one) == ROLLOUTS, f"lost, though three servers work: {fleet.asked}"
    assert fleet.asked[0] <= HANDFUL + (clock() - began) / longest, f"of {ROLLOUTS} rollouts: {fleet.asked}"
    print(f"\nof {ROLLOUTS} rollouts: {fleet.asked}")
    fleet.failing = set()
    fleet.asked = [0] * 4
    while not fleet.asked[0]:  # its pause is of real time
        assert await fleet.rollouts(one, AT_ONCE) == AT_ONCE
    fleet.asked = [0] * 4
    assert await fleet.rollouts(one) == ROLLOUTS
    assert min(fleet.asked) >= ROLLOUTS / 8, f"it works again, and has its share: {fleet.asked}"
    fleet.failing = set(range(4))
    fleet.asked = [0] * 4
    async with asyncio.timeout(30):
        assert await fleet.rollouts(one, AT_ONCE) == 0
    assert all(re.search(SAYS, said) for said in fleet.said), fleet.said
    assert sum(fleet.asked) <= 6 * 4 * AT_ONCE, "it is not asked for ever"


def run(fleet: Fleet, work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(main())


@pytest.mark.parametrize("fails", ["breaks off", "a page"])
def test_vllm(fails: str) -> None:
    with Fleet(lambda path: path.endswith("/generate"), VLLM(), FAILS[fails]).serving() as fleet:
        engine = engine_of(*fleet.servers, patience=0.5)

        async def one(number: int) -> bool:
            id = f"r{fleet.begun}"
            try:
                made = await engine.generate(id, [5, 6], SamplingParams(max_tokens=3))
            except InfrastructureFault as fault:
                return fleet.lost(fault)
            finally:
                await engine.release(id)
            return made.ids == (6, 6, 6)

        async def main() -> None:
            async with engine.connected():
                await checked(fleet, one, PoolSettings().longest_pause)

        run(fleet, main)


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retcon.sandbox.client.LONGEST_PAUSE", PAUSE)


def sandbox(asked: Asked) -> Answer:
    if asked.path.endswith("/run"):
        return Answer({"status": "ok"})
    return Answer({"session": "s", "tier": "landlock"})


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("fails", FAILS)
def test_sandbox_calls(fails: str) -> None:
    with Fleet(lambda path: path == "/v1/run", sandbox, FAILS[fails]).serving() as fleet:

        async def main() -> None:
            async with SandboxRouter(fleet.urls, tries=2) as router:

                async def one(number: int) -> bool:
                    result = await router.run(f"print({number})")
                    assert result.status in ("ok", "infrastructure"), "never the model's fault"
                    return result.status == "ok" or fleet.lost(result.stderr)

                await checked(fleet, one, PAUSE)

        run(fleet, main)


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("fails", FAILS)
def test_sandbox_sessions(fails: str) -> None:
    """A session that is lost in its first cell is no session that another server could serve: it is opened anew."""
    with Fleet(lambda path: path.endswith("/run"), sandbox, FAILS[fails]).serving() as fleet:

        async def main() -> None:
            async with SandboxRouter(fleet.urls, tries=1) as router:

                async def one(number: int) -> bool:
                    try:
                        session = await router.session()
                    except SandboxUnavailable as error:
                        return fleet.lost(error)
                    result = await session.run("print(1)")
                    assert result.status in ("ok", "infrastructure"), "never the model's fault"
                    await session.close()
                    return True

                began = time.monotonic()
                await fleet.rollouts(one)
                assert fleet.asked[0] <= HANDFUL + (time.monotonic() - began) / PAUSE, fleet.asked

        run(fleet, main)


@pytest.mark.usefixtures("short_pauses")
def test_sandbox_openings() -> None:
    opens = Fleet(lambda path: path == "/v1/sessions", sandbox, INTERNAL)
    with opens.serving() as fleet:

        async def main() -> None:
            async with SandboxRouter(fleet.urls, tries=2) as router:

                async def one(number: int) -> bool:
                    try:
                        session = await router.session(seed=1)
                    except SandboxUnavailable as error:
                        return fleet.lost(error)
                    assert (await session.run("print(1)")).status == "ok"
                    await session.close()
                    return True

                await checked(fleet, one, PAUSE)

        run(fleet, main)


class RayError(Exception):
    """Ray's, which is not installed here."""


class RayTaskError(RayError):
    cause = RuntimeError("the engine is dead")


class Remote:
    """A method of a Ray actor."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    async def remote(self, *args: Any, **kwargs: Any) -> Any:
        return self._method(*args, **kwargs)


class Client:
    """verl's `LLMServerClient`: its router is told when a request is over, and never how it went."""

    def __init__(self, router: RetconRouter, connections: HttpClient) -> None:
        self._load_balancer = SimpleNamespace(failed=Remote(router.failed)) if hasattr(router, "failed") else None
        self._router, self._connections = router, connections

    async def generate(self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: dict[str, Any]) -> Any:
        name, url = self._router.acquire_server(request_id, prompt_ids, sampling_params)
        try:
            answer = await self._connections.request("POST", f"{url}/generate", {"ids": list(prompt_ids)}, seconds=30)
            if not answer.ok:
                raise RayTaskError(answer.text)
            return SimpleNamespace(token_ids=[6], log_probs=None, stop_reason="completed", num_preempted=None,
                                   extra_fields={})  # fmt: skip
        except ConnectionFailed as error:
            raise RayError(str(error)) from error
        finally:
            self._router.release_server(name, request_id)


@pytest.mark.parametrize("fails", ["breaks off", "a page"])
def test_verl(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exceptions = ModuleType("ray.exceptions")
    exceptions.RayError, exceptions.RayTaskError = RayError, RayTaskError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setitem(sys.modules, "ray.exceptions", exceptions)
    with Fleet(lambda path: path == "/generate", lambda asked: Answer({}), FAILS[fails]).serving() as fleet:

        async def main() -> None:
            router = RetconRouter(dict(zip("abcd", fleet.urls, strict=True)), clock=lambda: fleet.begun / 20)
            client = Client(router, HttpClient())

            async def one(number: int) -> bool:
                engine, id = ServerEngine(client), f"r{fleet.begun}"
                try:
                    turns = [await engine.generate(id, [5, 6], SamplingParams(max_tokens=3)) for _ in range(2)]
                except InfrastructureFault as fault:
                    return fleet.lost(fault)
                return [made.ids for made in turns] == [(6,)] * 2

            await checked(fleet, one, LONGEST_PAUSE, lambda: fleet.begun / 20)
            await client._connections.close()

        run(fleet, main)
