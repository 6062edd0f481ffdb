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
            if data.keys() - {"seed"}:
                return {"type": "error", "data": {"message": f"no such {sorted(data)}", "code": "VALIDATION_ERROR"}}
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


TOOLS = [{"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}]
SEEN: dict[str, dict[str, Any]] = {
    "door": {"result": {"content": [{"type": "text", "text": "It is"}, {"type": "image"},
                                    {"type": "text", "text": "open."}], "is_error": False}, "error": None},
    "dark": {"result": {"content": [{"type": "text", "text": "too dark"}], "is_error": True}},
    "wall": {"error": {"error_type": "execution_error", "message": "there is a wall"}},
    "moon": {"error": {"error_type": "timeout", "message": "too far"}},
    "gone": {"error": {"error_type": "transport_error", "message": "no way there"}},
}  # fmt: skip
"""What `look` tells, by where it looks."""


class Lookout(Place):
    """One session, whose tools are listed."""

    def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        data = message["data"]
        if message["type"] == "reset":
            return super().answer(message)
        if data["type"] == "list_tools":
            return {"data": {"observation": {"tools": TOOLS}}}
        assert (data["type"], data["tool_name"]) == ("call_tool", "look")
        return {"data": {"observation": {"tool_name": "look", **SEEN[data["arguments"]["at"]]}}}


async def _session(place: Place, request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse()
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
def playing(kind: type[Place] = Place, title: str = "Move") -> Iterator[str]:
    """The URL of a server, on a free port, in a thread of its own. kind: of its sessions. title: of its actions."""
    loop, ready, urls = asyncio.new_event_loop(), threading.Event(), []

    async def schema(_: web.Request) -> web.Response:
        return web.json_response({"action": {**ACTION, "title": title}, "observation": {}})

    async def session(request: web.Request) -> web.WebSocketResponse:
        return await _session(kind(), request)

    async def opened() -> web.AppRunner:
        app = web.Application()
        app.add_routes([web.get("/schema", schema), web.get("/ws", session)])
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
