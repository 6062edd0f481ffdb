"""Environments of an OpenEnv server: `reset` and `step` over a WebSocket.

Each rollout has a session. The messages are those of OpenEnv's own client (openenv-core 0.3), which would require a web
interface.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

import aiohttp
from pydantic import AfterValidator, Field

from retcon.config.section import NonNegative, server_urls
from retcon.core.concurrency import run_sync
from retcon.core.errors import InfrastructureFault, RecipeError
from retcon.core.types import ToolSpec, Trajectory
from retcon.tasks.environments.tasks import EnvironmentSection
from retcon.tasks.environments.types import CallFailed, Environment, Rollback, TaskRows, build_task, load_rows
from retcon.tasks.types import Split, Task

SECONDS = 60.0
"""Time limit of a server's answer."""
MCP = ("Action", "CallToolAction", "ListToolsAction")
"""Titles of action schemas with tools that the server lists."""
NOT_RESET = ("prompt", "answer")
_OWN = ("EXECUTION_ERROR", "VALIDATION_ERROR")
"""Codes of an action's errors; others are the server's."""
_FAULTS = (aiohttp.ClientError, OSError, TimeoutError, ValueError)
_OTHERS = (LookupError, TypeError, AttributeError)
"""Raised by the answers of a server of another kind."""


@dataclass(frozen=True, slots=True)
class Server:
    """An OpenEnv server. url: `http://host:port`. prompt: text before that of `reset`. failed: the field of an
    observation that is truthy where a step has failed; "" for none."""

    url: str
    prompt: str = ""
    failed: str = ""


@dataclass(slots=True)
class Episode:
    """A session of one rollout. reward: sum over all steps so far."""

    http: aiohttp.ClientSession
    socket: aiohttp.ClientWebSocketResponse
    reward: float = 0.0
    done: bool = False


class OpenEnvEnvironment:
    """An `Environment` (`retcon.tasks.environments.types`) of an OpenEnv server.

    The tools are those that the server lists, or else `step`, whose arguments are an action. Each row's `reset` must
    show the same each time. Sessions cannot be rolled back. Raises RecipeError where the server cannot be reached.
    """

    rollback: Rollback = "impossible"

    def __init__(self, server: Server, rows: Sequence[Mapping[str, Any]]) -> None:
        self._server, self._rows = server, rows
        self._url = server.url.rstrip("/")
        self.name = f"openenv-{self._url.rpartition('/')[2].replace(':', '-')}"
        self._task_rows = TaskRows(self.name, "url")
        try:
            self.specs: Sequence[ToolSpec] = run_sync(self._tools())
        except (InfrastructureFault, CallFailed, *_FAULTS, *_OTHERS) as error:
            raise RecipeError(f"task.url: no OpenEnv server answers at {self._url}: {_why(error)}") from error

    def tasks(self, split: Split) -> Sequence[Task]:
        return run_sync(self._tasks()) if split == "train" else []

    def row(self, task: str) -> Mapping[str, Any]:
        return self._task_rows.row(task)

    async def begin(self, task: str) -> Episode:
        episode, opening = await self._reset(self._task_rows.row(task))
        try:
            self._task_rows.check(task, opening)
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
            raise CallFailed(_render(observation))
        return _render(observation)

    def copy_state(self, state: Episode) -> NoReturn:
        raise TypeError("it is on a server (task.rollback)")

    async def end(self, state: Episode) -> None:
        try:
            await state.socket.send_str(json.dumps({"type": "close"}))
        except _FAULTS:
            pass  # it is closed already
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
        episode = await self._connect()
        try:
            tools = (await self._step(episode, {"type": "list_tools"}))["tools"]
        finally:
            await self.end(episode)
        self._listed = frozenset(tool["name"] for tool in tools)
        return [ToolSpec(tool["name"], tool["description"], tool["input_schema"]) for tool in tools]

    async def _tasks(self) -> list[Task]:
        found = []
        for number, row in enumerate(self._rows):
            episode, opening = await self._reset(row)
            await self.end(episode)
            prompt = row.get("prompt", self._server.prompt)
            task = build_task(prompt, set=self.name, number=number, answer=row.get("answer"), after=opening)
            self._task_rows.keep(task.id, row, opening)
            found.append(task)
        return found

    async def _reset(self, row: Mapping[str, Any]) -> tuple[Episode, str]:
        """Begin a session with a row, and return it with its text. Raises InfrastructureFault."""
        episode = await self._connect()
        try:
            given = {key: value for key, value in row.items() if key not in NOT_RESET}
            reply = await self._request(episode, {"type": "reset", "data": given})
        except CallFailed as failed:
            await self.end(episode)
            raise InfrastructureFault(f"{self.name} cannot be reset with {given}: {failed}") from failed
        except BaseException:
            await self.end(episode)
            raise
        shown = {key: value for key, value in reply.get("observation", {}).items() if value is not None}
        return episode, _render(shown) if shown else ""

    async def _connect(self) -> Episode:
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
        reply = await self._request(episode, {"type": "step", "data": action})
        episode.reward += reply.get("reward") or 0.0
        episode.done = bool(reply.get("done"))
        observation: Mapping[str, Any] = reply.get("observation", {})
        return observation

    async def _request(self, episode: Episode, message: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            await episode.socket.send_str(json.dumps(message))
            reply = json.loads(await episode.socket.receive_str(timeout=SECONDS))
        except (*_FAULTS, TypeError) as error:  # TypeError: it was closed
            raise InfrastructureFault(f"{self.name}: the session broke off: {_why(error)}") from error
        data: Mapping[str, Any] = reply.get("data") or {}
        if reply.get("type") != "error":
            return data
        reason, code = str(data.get("message")), data.get("code")
        if code in _OWN:
            raise CallFailed(reason, str(code))
        raise InfrastructureFault(f"{self.name}: {code}: {reason}")


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):  # its text is empty
        return f"no answer in {SECONDS:g} seconds"
    return f"{type(error).__name__}: {error}" if isinstance(error, _OTHERS) else str(error)


def _of_tool(observation: Mapping[str, Any]) -> str:
    """Return the answer of a listed tool. Raises CallFailed, and InfrastructureFault where it was not reached."""
    if (error := observation.get("error")) is not None:
        kind, reason = error["error_type"], error["message"]
        if kind == "transport_error":
            raise InfrastructureFault(f"{observation.get('tool_name')}: {reason}")
        raise CallFailed(reason, kind, "timeout" if kind == "timeout" else "error")
    result = observation.get("result")
    if not isinstance(result, Mapping) or "content" not in result:
        return result if isinstance(result, str) else json.dumps(result)
    text = "\n".join(part["text"] for part in result["content"] if part.get("type") == "text")
    if result.get("is_error") or result.get("isError"):
        raise CallFailed(text)
    return text


def _render(observation: Mapping[str, Any]) -> str:
    """Render an observation for the model: JSON, or the text of its single field."""
    if len(observation) == 1 and isinstance(only := next(iter(observation.values())), str):
        return only
    return json.dumps(observation, ensure_ascii=False)


Url = Annotated[str, AfterValidator(lambda url: server_urls((url,))[0])]


class Openenv(EnvironmentSection):
    """Section [task] of kind `openenv`."""

    url: Url = Field("http://127.0.0.1:8000", description="the server's")
    prompt: str = Field("", description="what stands before what `reset` shows, where a row has no column of that name")
    path: str = Field("", description="file whose rows `reset` is called with")
    seeds: NonNegative = Field(0, description="in place of a file: that many rows {seed = 0}, {seed = 1}, …")
    failed: str = Field("", description="field of an observation that is neither empty, 0 nor false where a step "
                        "failed, such as exit_code; of listed tools the server says it")  # fmt: skip

    def adapter(self) -> Environment:
        return OpenEnvEnvironment(Server(self.url, self.prompt, self.failed), load_rows(self.path, self.seeds))
