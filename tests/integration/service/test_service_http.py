"""What is no good request, over a raw connection: the service stays up, and is told to stop within a bound."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import httpx
import pytest

from retcon.core.errors import SandboxUnavailable
from retcon.sandbox.client import SandboxClient
from servers.serving import Server, server


@pytest.fixture(scope="module")
def made() -> Iterator[Server]:
    with server("--workers", "1", "--max-body", "1") as made:
        yield made


@pytest.fixture(scope="module")
def http(made: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=made.url, timeout=120) as client:
        yield client


def spoken(made: Server, *parts: bytes) -> bytes:
    """What comes back for raw bytes, until the connection ends or an answer is whole."""
    with socket.create_connection(("127.0.0.1", made.port), timeout=60) as raw:
        raw.settimeout(60)
        try:
            for part in parts:
                raw.sendall(part)
        except OSError:  # it had enough
            pass
        try:
            return raw.recv(1 << 16)
        except OSError:
            return b""


HEAD = b"POST /v1/run HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ((b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200) + b"\r\n\r\n",), b"400"),
        ((b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * (1 << 20), b"\r\n\r\n"), b"400"),
        ((b"GET /" + b"a" * (1 << 20), b" HTTP/1.1\r\n\r\n"), b"400"),
        ((HEAD + b"Content-Length: -1\r\n\r\n",), b"400"),
        ((HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",), b"400"),
        ((HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",), b""),
        ((HEAD + b"Content-Length: 2\r\nContent-Type: text/plain\r\n\r\n{}",), b"422"),
        ((HEAD + b"Content-Length: 4\r\nContent-Type: application/x-protobuf\r\n\r\n\xff\xfe\xfd\xfc",), b"400"),
        ((HEAD + b'Content-Length: 9\r\nContent-Type: application/json; charset=utf-16\r\n\r\n{"code":}',), b"400"),
        ((HEAD + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n",), b"100"),
    ],
    ids=["tls", "header", "path", "negative", "two lengths", "chunk", "plain text", "bytes", "charset", "expect"],
)
def test_what_is_no_good_request_is_answered_or_cut_off(
    made: Server, http: httpx.Client, parts: tuple[bytes, ...], status: bytes
) -> None:
    answer = spoken(made, *parts)
    assert answer.startswith(b"HTTP/1.1 " + status) if status and answer else not status or not answer
    assert http.post("/v1/run", json={"code": "print(1)"}).json()["stdout"] == "1\n"


@pytest.mark.parametrize("path", ["/v1/run", "/run", "/run/batch", "/run_code", "/run_jupyter", "/v1/batch"])
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400), (b"null", 422), (b'"text"', 422), (b"[]", 422), (b'{"code": "\xff"}', 400),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, 400), (b'{"a":' * 500 + b"1" + b"}" * 500, 422),
        (b'{"code": 1e999, "solution": [], "cells": {}, "calls": 0, "submissions": true}', 422),
        (b"{" + b",".join(b'"f%d": 0' % i for i in range(20_000)) + b"}", 422), (b" " * (3 << 20), 413),
    ],
    ids=["nothing", "null", "text", "list", "bytes", "deep", "less deep", "types", "wide", "long"],
)  # fmt: skip
def test_every_endpoint_refuses_what_is_no_request(http: httpx.Client, path: str, body: bytes, status: int) -> None:
    response = http.post(path, content=body)
    assert response.status_code == status
    assert response.json()


def test_slow_senders_do_not_block_others(made: Server, http: httpx.Client) -> None:
    idle = [socket.create_connection(("127.0.0.1", made.port)) for _ in range(50)]
    for index, one in enumerate(idle):
        one.sendall([b"", b"POST /v1/r", HEAD, HEAD + b"Content-Length: 99\r\n\r\n{"][index % 4])
    assert http.post("/v1/run", json={"code": "print(1)"}).json()["stdout"] == "1\n"
    for one in idle:
        one.close()


def test_the_document_says_what_is_served(http: httpx.Client) -> None:
    said = http.get("/openapi.json").json()
    assert said["openapi"].startswith("3.1")
    schemas = said["components"]["schemas"]
    for path, operations in said["paths"].items():
        for method, operation in operations.items():
            if "{" in path or method == "get":
                continue
            asked = operation.get("requestBody")
            needed = (
                asked and schemas[asked["content"]["application/json"]["schema"]["$ref"].split("/")[-1]]["required"]
            )
            response = http.request(method, path, json={})
            if needed:  # the field that the answer names is one that the document says is needed
                assert response.status_code == 422
                assert any(field in response.text for field in needed)
            else:
                assert response.status_code in operation["responses"] or response.is_success
    ran = http.post("/run_code", json={"code": "1", "language": "python"}).json()
    assert ran.keys() == schemas["RunCodeResponse"]["properties"].keys()
    assert ran["run_result"].keys() == schemas["Command"]["properties"].keys()
    assert http.post("/v1/run", json={"code": "1"}).json().keys() == schemas["Result"]["properties"].keys()
    assert http.get("/health").json().keys() == schemas["Health"]["properties"].keys()
    assert {"type": "number", "exclusiveMinimum": 0} in schemas["RunCode"]["properties"]["run_timeout"]["anyOf"]


STUCK = """
    import sys, time
    sys.path.insert(0, "src")
    from retcon.http import server

    async def app(scope, receive, send):
        print("stuck", flush=True)
        while True:  # the event loop turns no more
            time.sleep(1)

    import asyncio
    opened = server.listen("127.0.0.1", 0)
    print(opened.getsockname()[1], flush=True)
    asyncio.run(server.serve(app, opened, server.StopSignals(last_seconds=1)))
"""


def test_a_service_that_is_stuck_ends_when_it_is_asked_to() -> None:
    with subprocess.Popen([sys.executable, "-c", dedent(STUCK)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert process.stdout.readline() == "stuck\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == -signal.SIGALRM


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Of localhost, signed by itself; its key beside it."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "own.pem")]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *files, *name]
    subprocess.run(command, check=True, capture_output=True)
    return tmp_path / "own.pem"


def test_the_client_believes_a_custom_certificate(
    made: Server, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a proxy that ends TLS, as docs/sandbox/service.md has it."""

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while part := await source.read(1 << 16):
            target.write(part)
            await target.drain()

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = await asyncio.open_connection("127.0.0.1", made.port)
        ways = [asyncio.ensure_future(copy(reader, inner[1])), asyncio.ensure_future(copy(inner[0], writer))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        for end in (writer, inner[1]):
            end.close()
            await end.wait_closed()
        ended.set()

    ended = asyncio.Event()

    async def work() -> Any:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, certificate.with_name("key.pem"))
        proxy = await asyncio.start_server(passed, "127.0.0.1", 0, ssl=context)
        url = f"https://localhost:{proxy.sockets[0].getsockname()[1]}"
        async with proxy:
            with pytest.raises(SandboxUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
                await SandboxClient(url, tries=1).start()
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            async with SandboxClient(url, tries=1) as client:
                result = await client.run("print(1)")
            await ended.wait()
            return result

    assert asyncio.run(work()).stdout == "1\n"
