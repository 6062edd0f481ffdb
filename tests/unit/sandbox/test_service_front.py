from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from retcon.http.endpoints import AccessMiddleware
from retcon.sandbox.service.calls import own_error_body


def status(address: str, host: str, token: str | None = None, path: str = "/metrics") -> int:
    """Of a GET without an `Origin`."""
    counted: Counter[int] = Counter()

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Any:
        raise AssertionError("a GET has no body")

    async def send(_: Any) -> None:
        return

    headers = [(b"host", host.encode()), *([(b"authorization", f"Bearer {token}".encode())] if token else [])]
    scope = {"type": "http", "method": "GET", "path": path, "headers": headers, "server": (address, 8088)}
    asyncio.run(AccessMiddleware(app, token, ("/health",), own_error_body, counted)(scope, receive, send))
    (found,) = counted
    return found


@pytest.mark.parametrize(
    "host", ["page.example", "page.example:8088", "PAGE.example.:8088", "127.0.0.1.example", "a b.c:d"]
)
def test_a_page_cannot_read_under_a_name_of_its_own(host: str) -> None:
    assert status("127.0.0.1", host) == status("::1", host) == status("::ffff:127.0.0.1", host) == 403
    assert status("127.0.0.1", host, path="/health") == status("127.0.0.1", host, token="t") == 200
    assert status("::ffff:10.0.0.7", host) == 200
    assert status("10.0.0.7", host) == 200  # which others reach too, by whatever name it has


@pytest.mark.parametrize(
    "host", ["", "localhost:8088", "a.localhost", "127.0.0.1:8088", "127.1.2.3", "[::1]:8088", "box"]
)
def test_a_server_without_a_token_is_asked_by_its_address_or_a_name_of_its_machine(host: str) -> None:
    assert status("127.0.0.1", host) == 200


def test_a_request_that_the_servers_end_cancels_is_sent_to_another_one() -> None:
    sent: list[Any] = []
    counted: Counter[int] = Counter()

    async def send(message: Any) -> None:
        sent.append(message)

    async def ended(begun: bool) -> None:
        reached = asyncio.Event()

        async def app(_scope: Any, _receive: Any, send: Any) -> None:
            if begun:
                await send({"type": "http.response.start", "status": 200, "headers": []})
            reached.set()
            await asyncio.Event().wait()

        sent.clear()
        scope = {"type": "http", "method": "POST", "path": "/v1/run", "headers": [], "server": ("10.0.0.7", 8088)}
        task = asyncio.ensure_future(AccessMiddleware(app, None, (), own_error_body, counted)(scope, app, send))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ended(False))
    start, body = sent
    assert start["status"] == 503
    assert (b"retry-after", b"1") in start["headers"]
    assert b'"type":"unavailable"' in body["body"]
    asyncio.run(ended(True))
    assert [message["type"] for message in sent] == ["http.response.start"], "an answer that has begun just breaks off"
    assert counted == {503: 1, 200: 1}
