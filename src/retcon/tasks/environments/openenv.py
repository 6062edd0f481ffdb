"""Environments behind an OpenEnv server: `reset` and `step` over a WebSocket, a session for each rollout.

Its messages are those of OpenEnv's own client (openenv-core 0.3), which would bring a web interface along.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import aiohttp

from retcon.core.concurrency import run_sync
from retcon.core.errors import InfrastructureFault, RecipeError
from retcon.core.types import ToolSpec, Trajectory
from retcon.tasks.environments.types import BegunRows, CallFailed, Rollback, task_of
from retcon.tasks.types import Split, Task

SECONDS = 60.0
"""That a server has for an answer."""
MCP = ("Action", "CallToolAction", "ListToolsAction")
"""Titles of the schemas of actions behind which there are tools, which the server lists."""
NOT_RESET = ("prompt", "answer")
_OWN = ("EXECUTION_ERROR", "VALIDATION_ERROR")
"""Codes of errors that an action has met with; others are the server's."""
_FAULTS = (aiohttp.ClientError, OSError, TimeoutError, ValueError)
_OTHERS = (LookupError, TypeError, AttributeError)
"""Raised by what another server says."""


@dataclass(frozen=True, slots=True)
class Server:
    """url: `http://host:port`. prompt: what stands before what `reset` shows. failed: the field of an observation that
    is neither empty, 0 nor false where a step has failed; none where empty."""

    url: str
    prompt: str = ""
    failed: str = ""


@dataclass(slots=True)
class Episode:
    """A session. reward: of all steps so far, added."""

    http: aiohttp.ClientSession
    socket: aiohttp.ClientWebSocketResponse
    reward: float = 0.0
    done: bool = False


class OpenEnvEnvironment:
    """Implements `retcon.tasks.environments.types.Environment`.

    The tools are those that the server lists; where it has none, one, `step`, whose arguments are an action. Each row's
    `reset` must show the same each time. Nothing says that a session can be gone back to. Raises RecipeError where the
    server cannot be reached.
    """

    rollback: Rollback = "impossible"

    def __init__(self, server: Server, rows: Sequence[Mapping[str, Any]]) -> None:
        self._server, self._rows = server, rows
        self._url = server.url.rstrip("/")
        self.name = f"openenv-{self._url.rpartition('/')[2].replace(':', '-')}"
        self._begun = BegunRows(self.name, "url")
        try:
            self.specs: Sequence[ToolSpec] = run_sync(self._tools())
        except (InfrastructureFault, CallFailed, *_FAULTS, *_OTHERS) as error:
            raise RecipeError(f"task.url: no OpenEnv server answers at {self._url}: {_why(error)}") from error

    def tasks(self, split: Split) -> Sequence[Task]:
        return run_sync(self._tasks()) if split == "train" else []

    def row(self, task: str) -> Mapping[str, Any]:
        return self._begun.row(task)

    async def begin(self, task: str) -> Episode:
        episode, said = await self._reset(self._begun.row(task))
        try:
            self._begun.check(task, said)
        except RecipeError:
            await self.end(episode)
            raise
        return episode

    async def call(self, state: Episode, name: str, arguments: Mapping[str, Any]) -> str:
        if state.done:
            raise CallFailed("the episode is over", "EpisodeOver")
        listed = name in self._listed
        action = {"type": "call_tool", "tool_name": name, "arguments": dict(arguments)} if listed else dict(arguments)
        observation = await self._step(state, action)
        if listed:
            return _of_tool(observation)
        if self._server.failed and observation.get(self._server.failed):
            raise CallFailed(_shown(observation))
        return _shown(observation)

    def copied(self, state: Episode) -> NoReturn:
        raise TypeError("it is on a server (task.rollback)")

    async def end(self, state: Episode) -> None:
        try:
            await state.socket.send_str(json.dumps({"type": "close"}))
        except _FAULTS:
            pass  # it is gone already
        finally:
            await state.socket.close()
            await state.http.close()

    async def reward(self, task: Task, trajectory: Trajectory, state: Episode) -> tuple[float, str | None]:
        return state.reward, None

    async def _tools(self) -> Sequence[ToolSpec]:
        limit = aiohttp.ClientTimeout(SECONDS)
        async with (
            aiohttp.ClientSession(timeout=limit) as http,
            http.get(f"{self._url}/schema", raise_for_status=True) as response,
        ):
            schema = (await response.json())["action"]
        self._listed: frozenset[str] = frozenset()
        if schema.get("title") not in MCP:
            parameters = {key: value for key, value in schema.items() if key != "title"}
            parameters["properties"] = {k: v for k, v in schema.get("properties", {}).items() if k != "metadata"}
            return [ToolSpec("step", schema.get("description", ""), parameters)]
        episode = await self._connected()
        try:
            tools = (await self._step(episode, {"type": "list_tools"}))["tools"]
        finally:
            await self.end(episode)
        self._listed = frozenset(tool["name"] for tool in tools)
        return [ToolSpec(tool["name"], tool["description"], tool["input_schema"]) for tool in tools]

    async def _tasks(self) -> list[Task]:
        found = []
        for number, row in enumerate(self._rows):
            episode, said = await self._reset(row)
            await self.end(episode)
            prompt = row.get("prompt", self._server.prompt)
            task = task_of(prompt, set=self.name, number=number, answer=row.get("answer"), after=said)
            self._begun.keep(task.id, row, said)
            found.append(task)
        return found

    async def _reset(self, row: Mapping[str, Any]) -> tuple[Episode, str]:
        """A session that begins with a row, and what it shows. Raises InfrastructureFault."""
        episode = await self._connected()
        try:
            given = {key: value for key, value in row.items() if key not in NOT_RESET}
            said = await self._asked(episode, {"type": "reset", "data": given})
        except CallFailed as failed:
            await self.end(episode)
            raise InfrastructureFault(f"{self.name} cannot be reset with {given}: {failed}") from failed
        except BaseException:
            await self.end(episode)
            raise
        shown = {key: value for key, value in said.get("observation", {}).items() if value is not None}
        return episode, _shown(shown) if shown else ""

    async def _connected(self) -> Episode:
        http = aiohttp.ClientSession()
        try:
            async with asyncio.timeout(SECONDS):
                socket = await http.ws_connect(f"{self._url}/ws", max_msg_size=100 << 20)
        except BaseException as error:
            await http.close()
            if isinstance(error, _FAULTS):
                raise InfrastructureFault(f"{self.name}: no session: {_why(error)}") from error
            raise
        return Episode(http, socket)

    async def _step(self, episode: Episode, action: Mapping[str, Any]) -> Mapping[str, Any]:
        said = await self._asked(episode, {"type": "step", "data": action})
        episode.reward += said.get("reward") or 0.0
        episode.done = bool(said.get("done"))
        observation: Mapping[str, Any] = said.get("observation", {})
        return observation

    async def _asked(self, episode: Episode, message: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            await episode.socket.send_str(json.dumps(message))
            told = json.loads(await episode.socket.receive_str(timeout=SECONDS))
        except (*_FAULTS, TypeError) as error:  # TypeError: it was closed
            raise InfrastructureFault(f"{self.name}: the session broke off: {_why(error)}") from error
        data: Mapping[str, Any] = told.get("data") or {}
        if told.get("type") != "error":
            return data
        said, code = str(data.get("message")), data.get("code")
        if code in _OWN:
            raise CallFailed(said, str(code))
        raise InfrastructureFault(f"{self.name}: {code}: {said}")


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):  # which says nothing
        return f"no answer in {SECONDS:g} seconds"
    return f"{type(error).__name__}: {error}" if isinstance(error, _OTHERS) else str(error)


def _of_tool(observation: Mapping[str, Any]) -> str:
    """What a listed tool answered. Raises CallFailed, and InfrastructureFault where it was not reached."""
    if (error := observation.get("error")) is not None:
        kind, said = error["error_type"], error["message"]
        if kind == "transport_error":
            raise InfrastructureFault(f"{observation.get('tool_name')}: {said}")
        raise CallFailed(said, kind, "timeout" if kind == "timeout" else "error")
    result = observation.get("result")
    if not isinstance(result, Mapping) or "content" not in result:
        return result if isinstance(result, str) else json.dumps(result)
    told = "\n".join(part["text"] for part in result["content"] if part.get("type") == "text")
    if result.get("is_error") or result.get("isError"):
        raise CallFailed(told)
    return told


def _shown(observation: Mapping[str, Any]) -> str:
    """An observation as the model reads it: JSON; of one with a single field, the text there."""
    if len(observation) == 1 and isinstance(only := next(iter(observation.values())), str):
        return only
    return json.dumps(observation, ensure_ascii=False)
