"""Sessions over HTTP: what the service adds to a sandbox's own, with a fake one behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from retcon.core.errors import SessionLost
from retcon.http.server import listen, run_in_loop
from retcon.sandbox.client import SandboxClient
from retcon.sandbox.service import own as own_sessions
from retcon.sandbox.service.app import create_app
from retcon.sandbox.service.calls import Settings
from retcon.sandbox.types import Result, Session
from servers.serving import MemorySandbox


def using(work: Callable[[SandboxClient, httpx.AsyncClient, MemorySandbox], Awaitable[Any]], **settings: Any) -> Any:
    async def main() -> Any:
        sandbox = MemorySandbox()
        app = create_app(sandbox, "rlimits", Settings(**settings))
        async with (
            run_in_loop(app, listen("127.0.0.1", 0)) as url,
            SandboxClient(url, tries=3) as client,
            httpx.AsyncClient(base_url=url) as http,
        ):
            return await work(client, http, sandbox)

    return asyncio.run(main())


def test_a_session_that_has_ended_by_itself_is_not_waited_for() -> None:
    async def work() -> None:
        app = create_app(MemorySandbox(), "rlimits", Settings(drain=600))
        async with run_in_loop(app, listen("127.0.0.1", 0)) as url, SandboxClient(url) as client:
            sessions = [await client.session() for _ in range(2)]
            assert app.draining is not None
            app.draining.begin()
            assert (await sessions[0].run("lose()")).status == "ok"
            assert not app.draining.over
            await sessions[1].close()
            assert app.draining.over

    asyncio.run(work())


def test_variables_stay_and_come_back() -> None:
    async def work(client: SandboxClient, http: httpx.AsyncClient, sandbox: MemorySandbox) -> None:
        session = await client.session()
        await session.run("x = [1]")
        first = await session.checkpoint()
        await session.run("x.append(2)")
        assert (await session.run("print(x)")).stdout == "[1, 2]\n"
        for _ in range(2):
            await session.rollback(first)
            assert (await session.run("print(x)")).stdout == "[1]\n"
        later = await session.checkpoint()
        await session.rollback(first)
        await session.rollback(later)  # going back leaves later checkpoints as they are
        await session.discard(first)
        await session.discard("never there")
        with pytest.raises(KeyError, match="no checkpoint"):
            await session.rollback(first)
        assert "retcon_sandbox_sessions 1" in (await http.get("/metrics")).text
        await session.close()
        await session.close()
        assert "retcon_sandbox_sessions 0" in (await http.get("/metrics")).text
        with pytest.raises(SessionLost, match="closed"):
            await session.run("x")

    using(work)


def test_a_lost_session_says_why() -> None:
    async def work(client: SandboxClient, http: httpx.AsyncClient, sandbox: MemorySandbox) -> None:
        session = await client.session()
        assert (await session.run("lose()")).status == "ok"
        for _ in range(2):
            with pytest.raises(SessionLost, match="its code ended it"):
                await session.run("1")
        run = await http.post(f"/v1/sessions/{session.id}/run", json={"code": "1"})
        told = await http.get(f"/v1/sessions/{session.id}")
        assert (told.status_code, told.json()) == (run.status_code, run.json())
        assert (told.status_code, told.json()["error"]["type"]) == (410, "session_lost")
        await session.close()

    using(work)


def test_a_session_that_the_server_does_not_know_is_lost() -> None:
    async def work(client: SandboxClient, http: httpx.AsyncClient, sandbox: MemorySandbox) -> None:
        session = await client.session()
        assert (await http.delete(f"/v1/sessions/{session.id}")).status_code == 204
        assert (await http.delete(f"/v1/sessions/{session.id}")).status_code == 204
        with pytest.raises(SessionLost, match="no session"):
            await session.checkpoint()

    using(work)


def test_what_is_asked_twice_under_a_key_is_done_once() -> None:
    async def work(client: SandboxClient, http: httpx.AsyncClient, sandbox: MemorySandbox) -> None:
        session = await client.session()
        path, key = f"/v1/sessions/{session.id}/run", {"Idempotency-Key": "k"}
        body = {"code": "x = globals().get('x', locals().get('x', 0)) + 1\nprint(x)"}
        answers = await asyncio.gather(*(http.post(path, json=body, headers=key) for _ in range(5)))
        assert {answer.json()["stdout"] for answer in answers} == {"1\n"}
        assert sandbox.runs == 1
        other = await http.post(path, json={"code": "1"}, headers=key)
        assert (other.status_code, other.json()["error"]["field"]) == (422, "idempotency-key")
        assert (await http.post(path, json=body)).json()["stdout"] == "2\n"

    using(work)


def test_a_cell_whose_connection_broke_is_asked_for_again_and_has_run_once() -> None:
    """A proxy between client and server swallows the first answer to each request."""

    async def work(client: SandboxClient, http: httpx.AsyncClient, sandbox: MemorySandbox) -> None:
        broken: set[bytes] = set()
        port = http.base_url.port

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            request = await reader.readuntil(b"\r\n\r\n")
            size = next((int(h[15:]) for h in request.split(b"\r\n") if h.lower().startswith(b"content-length:")), 0)
            request += await reader.readexactly(size)
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
            up_writer.write(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            answer = await up_reader.read()
            if request in broken:
                writer.write(answer)
                await writer.drain()
            broken.add(request)
            writer.close()
            up_writer.close()

        proxy = await asyncio.start_server(relay, "127.0.0.1", 0)
        async with proxy, SandboxClient(f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}", tries=3) as through:
            session = await through.session()
            for i in range(3):
                assert (await session.run(f"x = {i}\nprint(x)")).stdout == f"{i}\n"
            await session.close()
        assert (sandbox.runs, sandbox.open_sessions) == (3, 0)

    using(work)


def test_idle_sessions_are_closed_when_another_opens() -> None:
    async def work(client: SandboxClient, http: httpx.AsyncClient, sandbox: MemorySandbox) -> None:
        old = await client.session()
        new = await client.session()
        with pytest.raises(SessionLost):
            await old.run("1")
        assert (await new.run("print(1)")).stdout == "1\n"

    using(work, session_idle=1e-9)


def test_of_sessions_that_have_ended_the_latest_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_sessions, "ENDED", 2)

    async def work(client: SandboxClient, http: httpx.AsyncClient, sandbox: MemorySandbox) -> None:
        living = await client.session()
        lost = [await client.session() for _ in range(4)]
        for session in lost:
            await session.run("lose()")
        await client.session()

        async def status(of: Session) -> int:
            return (await http.post(f"/v1/sessions/{of.id}/run", json={"code": "print(1)"})).status_code

        assert [await status(session) for session in (living, *lost)] == [200, 404, 404, 410, 410]

    using(work)


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("", {"limit": {}}, 422, "limit"), ("", {"limits": {"cpu_seconds": 0}}, 422, "limits.cpu_seconds"),
        ("/{id}/run", {"code": ""}, 422, "code"), ("/{id}/run", {"code": "1", "fetch": "a"}, 422, "fetch"),
        ("/{id}/rollback", {}, 422, "checkpoint"), ("/{id}/rollback", {"checkpoint": "x"}, 404, "checkpoint"),
        ("/{id}/checkpoints/x", {}, 405, None),
    ],
)  # fmt: skip
def test_bad_requests_are_refused_by_field(path: str, body: dict[str, Any], status: int, field: str | None) -> None:
    async def work(client: SandboxClient, http: httpx.AsyncClient, sandbox: MemorySandbox) -> None:
        session = await client.session()
        answer = await http.post("/v1/sessions" + path.format(id=session.id), json=body)
        assert answer.status_code == status
        assert answer.json()["error"]["field"] == field
        assert (await session.run("print(1)")).stdout == "1\n"

    using(work)


def test_a_fault_of_the_servers_own_is_infrastructure_and_is_not_asked_for_again() -> None:
    class Broken(MemorySandbox):
        async def run(self, code: str, **options: Any) -> Result:
            self.runs += 1
            raise ZeroDivisionError

    async def work() -> None:
        sandbox = Broken()
        app = create_app(sandbox, "rlimits", Settings())
        async with run_in_loop(app, listen("127.0.0.1", 0)) as url, SandboxClient(url) as client:
            result = await client.run("1")
            assert (result.status, sandbox.runs) == ("infrastructure", 1)
            assert "see the server's log" in result.stderr
            assert (await client.session()).id

    asyncio.run(work())
