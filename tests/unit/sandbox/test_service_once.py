"""Work under a key, as its clients come and go."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import Request
from starlette.types import Message

from retcon.http.endpoints import RequestRefused
from retcon.sandbox.service.own import KeyedTasks


def asked_by(gone: asyncio.Event) -> Request:
    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http", "path": "/", "headers": []}, receive)


def test_a_refusal_is_not_remembered_nor_does_it_make_what_is_begun_anew_forgotten() -> None:
    async def main() -> None:
        answers, refused, done = KeyedTasks[int](), asyncio.Event(), []

        async def refusing() -> int:
            await refused.wait()
            raise RequestRefused(503, "busy", "no room")

        async def working() -> int:
            done.append(1)
            await asyncio.sleep(0)
            return len(done)

        stays = asked_by(asyncio.Event())
        both = [asyncio.create_task(answers.once(stays, "k", b"", refusing)) for _ in range(2)]
        await asyncio.sleep(0)
        refused.set()
        with pytest.raises(RequestRefused):
            await both[0]
        again = [asyncio.create_task(answers.once(stays, "k", b"", working)) for _ in range(2)]
        with pytest.raises(RequestRefused):
            await both[1]
        assert [await one for one in again] == [1, 1]

    asyncio.run(main())
