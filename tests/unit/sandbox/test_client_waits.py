"""How long a client waits for the answer to what it asks: as long as the work itself may take, and its patience."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from retcon.http.asking import Answer
from retcon.sandbox.client import SandboxClient
from retcon.sandbox.types import Limits

PATIENCE = 900.0


class Connected:
    """Connections to a server that does all at once. waits: seconds that were given to each request for a program."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    async def ask(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | None = None,
        *,
        seconds: float,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        if url.endswith("/run"):
            self.waits.append(seconds - PATIENCE)
            return Answer(url, 200, {}, json.dumps({"status": "ok"}).encode())
        return Answer(url, 200, {}, json.dumps({"session": "s", "tier": "landlock"}).encode())

    async def close(self) -> None:
        """Nothing is open."""


def waits(asks: Callable[[SandboxClient], Awaitable[object]], limits: Limits | None = None) -> list[float]:
    async def main() -> list[float]:
        client, connected = SandboxClient("http://there", limits=limits, patience=PATIENCE), Connected()
        client.connect()
        assert client._remote is not None
        client._remote._connections = connected  # type: ignore[assignment]  # in place of the network
        await asks(client)
        return connected.waits

    return asyncio.run(main())


LONG = Limits(cpu_seconds=1.0, wall_seconds=3600.0)


@pytest.mark.parametrize(
    ("options", "limits", "seconds"),
    [
        ({"timeout": 1800.0}, None, 1800.0),
        ({"timeout": 7.0}, LONG, 7.0),
        ({"limits": LONG}, Limits(), 3600.0),
        ({}, LONG, 3600.0),
        ({}, None, 0.0),
    ],
    ids=["its own", "before the client's", "its limits", "the client's", "the server's"],
)
def test_a_program_may_take_its_time(options: dict[str, Any], limits: Limits | None, seconds: float) -> None:
    async def call(client: SandboxClient) -> None:
        await client.run("pass", **options)

    async def cell(client: SandboxClient) -> None:
        await (await client.session()).run("pass", **options)

    for asks in (call, cell):
        assert waits(asks, limits) == [seconds]


def test_a_cell_may_take_the_time_that_its_session_was_opened_with() -> None:
    async def cell(client: SandboxClient) -> None:
        session = await client.session(limits=LONG)
        await session.run("pass")
        await session.run("pass", timeout=5.0)

    assert waits(cell, Limits(wall_seconds=20.0)) == [3600.0, 5.0]
