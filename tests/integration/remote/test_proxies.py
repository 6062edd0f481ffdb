"""Requests through a proxy that the environment names, and to a server that has stopped."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from retcon.http import client as asking
from retcon.http.client import ConnectionFailed, HttpClient

KEY = "Bearer secret"
US = "Basic dXNAOnA6YXNz"
"""Of `us@` with the password `p:ass`."""


@dataclass
class Proxy:
    """heads: of the requests that it was sent, by the names of headers in small letters, the first line as `asked`. It
    answers all but those for a tunnel, which it refuses."""

    port: int = 0
    heads: list[dict[str, str]] = field(default_factory=list)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        named = (line.partition(": ") for line in lines)
        self.heads.append({"asked": first, **{name.lower(): said for name, _, said in named}})
        status = "502 Bad Gateway" if first.startswith("CONNECT") else "200 OK"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}".encode())
        await writer.drain()
        writer.close()


@asynccontextmanager
async def proxy() -> AsyncIterator[Proxy]:
    made = Proxy()
    server = await asyncio.start_server(made.answer, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made


def asked_through(
    before: str, monkeypatch: pytest.MonkeyPatch, url: str = "http://model.example/v1"
) -> tuple[str, dict[str, str]]:
    """What came of a request with a key, and its head. before: what stands before the proxy's address."""

    async def main() -> tuple[str, dict[str, str]]:
        async with proxy() as there:
            for name in ("http_proxy", "https_proxy"):
                monkeypatch.setenv(name, f"{before}127.0.0.1:{there.port}")
            connections = HttpClient("secret", proxies=True)
            try:
                came = str((await connections.request("GET", url, seconds=10)).status)
            except ConnectionFailed as error:
                came = str(error)
            finally:
                await connections.close()
            return came, there.heads[0] if there.heads else {}

    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    return asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_a_proxy_may_be_named_without_its_scheme(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    came, head = asked_through(scheme, monkeypatch)
    assert came == "200"
    assert head["asked"] == "GET http://model.example/v1 HTTP/1.1"
    assert head["authorization"] == KEY
    assert "proxy-authorization" not in head


def test_a_proxy_is_told_who_asks_and_never_the_key_of_a_server_behind_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    came, head = asked_through("http://us%40:p%3Aass@", monkeypatch)
    assert (came, head["proxy-authorization"], head["authorization"]) == ("200", US, KEY)
    came, head = asked_through("http://us%40:p%3Aass@", monkeypatch, "https://model.example/v1")
    assert head["asked"] == "CONNECT model.example:443 HTTP/1.1"
    assert (head["proxy-authorization"], "authorization" in head) == (US, False)
    assert "502" in came
    assert "ass" not in came
    _, head = asked_through("http://", monkeypatch, "https://model.example/v1")
    assert not {"proxy-authorization", "authorization"} & set(head)


def test_what_netrc_says_of_a_server_is_nothing_to_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".netrc").write_text("default login me password mine\n", encoding="utf-8")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    came, head = asked_through("http://", monkeypatch)
    assert (came, head.get("authorization")) == ("200", KEY)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_a_server_that_has_stopped_and_takes_no_more_of_a_request_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel takes connections, and nobody reads: a body that is larger than the buffers is never sent."""

    async def main(stopped: socket.socket, size: int) -> None:
        connections, before = HttpClient(), open_files()
        url = f"http://127.0.0.1:{stopped.getsockname()[1]}"
        try:
            with pytest.raises(ConnectionFailed, match="no answer in time") as raised:
                await connections.request("POST", url, {"code": "#" * size}, seconds=0.2)
            assert raised.value.late
        finally:
            stopped.accept()[0].close()
            await connections.close()
        while open_files() > before:  # what was not sent is given up as the other side ends
            await asyncio.sleep(0.01)

    monkeypatch.setattr(asking, "CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        for size in (1, 1 << 25):
            asyncio.run(asyncio.wait_for(main(stopped, size), 60))
