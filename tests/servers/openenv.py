"""A server that speaks as those of OpenEnv do, without OpenEnv; tests/plugins tries the same with OpenEnv's own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import WSMsgType, web

ACTION = {
    "title": "Move",
    "type": "object",
    "properties": {"by": {"type": "integer"}, "metadata": {"type": "object"}},
    "required": ["by"],
}


class Place:
    """One session: a place from 0 on, from which one cannot step back; 3 is the end. by = 13 breaks the session off."""

    def __init__(self) -> None:
        self.at = 0

    def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        data = message["data"]
        if message["type"] == "reset":
            self.at = data.get("seed", 0)
            return {"data": {"observation": {"at": self.at, "blocked": None}, "reward": None, "done": False}}
        by = data["by"]
        if by == 13:
            return None
        if by == 0:
            return {"type": "error", "data": {"message": "stand still?", "code": "EXECUTION_ERROR"}}
        if by == 99:
            return {"type": "error", "data": {"message": "too many", "code": "CAPACITY_REACHED"}}
        blocked = self.at + by < 0
        self.at = self.at if blocked else self.at + by
        return {
            "type": "observation",
            "data": {"observation": {"at": self.at, "blocked": blocked}, "reward": self.at / 4, "done": self.at == 3},
        }


async def _schema(_: web.Request) -> web.Response:
    return web.json_response({"action": ACTION, "observation": {}})


async def _session(request: web.Request) -> web.WebSocketResponse:
    socket, place = web.WebSocketResponse(), Place()
    await socket.prepare(request)
    async for message in socket:
        said = json.loads(message.data) if message.type is WSMsgType.TEXT else {"type": "close"}
        told = None if said["type"] == "close" else place.answer(said)
        if told is None:
            break
        await socket.send_json(told)
    await socket.close()
    return socket


@contextmanager
def playing() -> Iterator[str]:
    """The URL of a server, on a free port, in a thread of its own."""
    loop, ready, urls = asyncio.new_event_loop(), threading.Event(), []

    async def opened() -> web.AppRunner:
        app = web.Application()
        app.add_routes([web.get("/schema", _schema), web.get("/ws", _session)])
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        return runner

    def run() -> None:
        try:
            runner = loop.run_until_complete(opened())
        finally:
            ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    try:
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
