"""A response that is begun before it is known: server-sent events, of a client that may go away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from retcon.http.handling import closed, refusal
from retcon.http.refusal import RequestRefused
from retcon.serve.refusing import as_openai
from retcon.serve.replies import WORKING, event

PATIENCE = 5.0
"""Seconds after which a response begins whose answer is not there yet: until then an error has a status of its own."""
_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]


class Events(Response):
    """The events that `work` comes to. An error after the response began is an event itself. When the client closes the
    connection, `work` is cancelled. done: called in the end, whatever it was."""

    def __init__(self, work: Coroutine[Any, Any, Iterable[bytes]], done: Callable[[], None]) -> None:
        self._work, self._done = work, done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task, gone = asyncio.ensure_future(self._work), asyncio.ensure_future(closed(receive))
        begun = False
        try:
            while not (task.done() or gone.done()):
                await asyncio.wait((task, gone), timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
                if not (task.done() or gone.done()):
                    await self._send(send, WORKING, begin=not begun)
                    begun = True
            if not task.done():
                return
            try:
                parts = task.result()
            except RequestRefused as refused:
                if not begun:
                    await refusal(refused, as_openai)(scope, receive, send)
                    return
                parts = [event(as_openai(refused))]
            await self._send(send, b"".join(parts), begin=not begun, more=False)
        finally:
            gone.cancel()
            task.cancel()
            await asyncio.wait((task,))
            self._done()

    async def _send(self, send: Send, body: bytes, *, begin: bool, more: bool = True) -> None:
        if begin:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await send({"type": "http.response.body", "body": body, "more_body": more})
