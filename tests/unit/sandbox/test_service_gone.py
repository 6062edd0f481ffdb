"""Work for a client that goes away: it is ended, and what it made in the same moment undone."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import Request
from starlette.types import Message

from retcon.http.endpoints import ClientDisconnected, cancel_on_disconnect


def asked_by(gone: asyncio.Event) -> Request:
    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http"}, receive)


@pytest.mark.parametrize("stays", [True, False])
def test_what_is_ready_in_the_moment_that_the_client_goes_is_undone(stays: bool) -> None:
    async def main() -> None:
        gone, made, undone = asyncio.Event(), asyncio.Event(), []

        async def work() -> str:
            await made.wait()
            return "made"

        async def undo(result: str) -> None:
            undone.append(result)

        asked = asyncio.create_task(cancel_on_disconnect(asked_by(gone), work(), undo=undo))
        await asyncio.sleep(0)
        made.set()
        if stays:
            assert (await asked, undone) == ("made", [])
        else:
            gone.set()
            with pytest.raises(ClientDisconnected):
                await asked
            assert undone == ["made"]

    asyncio.run(main())


@pytest.mark.parametrize("fault", [True, False])
def test_of_work_that_is_cancelled_or_fails_as_the_client_goes_there_is_nothing_to_undo(fault: bool) -> None:
    async def main() -> None:
        gone = asyncio.Event()
        gone.set()
        faults = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))

        async def work() -> None:
            if fault:
                raise ValueError
            await asyncio.Event().wait()

        async def undo(result: None) -> None:
            raise AssertionError

        with pytest.raises(ClientDisconnected):
            await cancel_on_disconnect(asked_by(gone), work(), undo=undo)
        assert not faults

    asyncio.run(main())
