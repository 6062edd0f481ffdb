#!/usr/bin/env python
"""CPU time that a request over HTTP costs its client: `retcon.http.client`, which the clients of sandbox and model
servers use, against httpx.

    python benchmarks/studies/client.py [--rounds 3] [--requests 256] [--at-once 8 64 256]

A program goes out as JSON and a call's answer comes back, from a server in a process of its own that answers at once
and does nothing else, over as many connections as there are requests at a time. Milliseconds of this process's CPU time
a request; medians of the rounds with the least and the most, in turns; a round before them opens the connections.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import multiprocessing
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection

import httpx

from retcon.http.client import HttpClient

PROGRAM = {"code": "total = 0\nfor n in range(10):\n    total += n * n\nprint(total)\n", "timeout": 4.0}
ANSWER = b'{"status": "ok", "stdout": "285\\n", "stderr": "", "value": null, "seconds": 0.0021, "cpu_seconds": 0.0017}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(ANSWER)


class AtOnce(asyncio.Protocol):
    """Answers each request as its last byte arrives; nothing is read of it but its length."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._have = b""

    def data_received(self, data: bytes) -> None:
        self._have += data
        while (end := self._have.find(b"\r\n\r\n")) >= 0:
            _, _, rest = self._have[:end].lower().partition(b"content-length:")
            whole = end + 4 + int(rest.split(b"\r\n", 1)[0])
            if len(self._have) < whole:
                return
            self._have = self._have[whole:]
            self._transport.write(HEAD + ANSWER)  # type: ignore[attr-defined]


def answer_at_once(pipe: Connection) -> None:
    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(AtOnce, "127.0.0.1", 0, backlog=1024)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


async def milliseconds(ask: Callable[[], Awaitable[int]], requests: int, at_once: int) -> float:
    """Of this process's CPU time, a request."""
    left = iter(range(requests))

    async def asker() -> None:
        for _ in left:
            assert await ask() == len(ANSWER)

    cpu = time.process_time()
    await asyncio.gather(*(asker() for _ in range(at_once)))
    return (time.process_time() - cpu) * 1000 / requests


async def measured(url: str, requests: int, at_once: int, rounds: int) -> dict[str, list[float]]:
    ours = HttpClient()
    limits = httpx.Limits(max_connections=at_once, max_keepalive_connections=at_once)
    async with httpx.AsyncClient(limits=limits, trust_env=False) as theirs:

        async def by_asking() -> int:
            return len((await ours.request("POST", url, PROGRAM, seconds=60)).body)

        async def by_httpx() -> int:
            return len((await theirs.post(url, json=PROGRAM, timeout=60)).content)

        ways = {"retcon.http.client": by_asking, "httpx": by_httpx}
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds + 1):
            for name, ask in ways.items():
                found[name].append(await milliseconds(ask, requests, at_once))
    await ours.close()
    return {name: values[1:] for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=256, help="of a round")
    parser.add_argument("--at-once", type=int, nargs="+", default=[8, 64, 256], help="connections")
    options = parser.parse_args()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=answer_at_once, args=(there,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{here.recv()}/run"
    print(f"{datetime.date.today()}, load {os.getloadavg()[0]:.1f}; ms of the client's CPU a request")
    for at_once in options.at_once:
        found = asyncio.run(measured(url, options.requests, at_once, options.rounds))
        middle = {name: statistics.median(values) for name, values in found.items()}
        print(f"{at_once} at a time")
        for name, values in found.items():
            print(f"  {name:20} {middle[name]:5.2f}  ({min(values):.2f}…{max(values):.2f})")
        print(f"  {'ratio':20} {middle['httpx'] / middle['retcon.http.client']:5.1f}")
    server.kill()


if __name__ == "__main__":
    main()
