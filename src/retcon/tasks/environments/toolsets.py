"""Toolsets of `verifiers` 0.4 in this process: without a server and a port, and with a state that can be copied."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from contextvars import ContextVar
from copy import deepcopy
from functools import cache
from typing import Any

from retcon.core.errors import RecipeError
from retcon.core.schema import ToolSpec
from retcon.tasks.environments.types import CallFailed, failure, shown

_state: ContextVar[Any] = ContextVar("state")
"""The state of the rollout whose call is being made: what `Toolset.state` gives here."""


class Served:
    """The tools of one rollout. own: toolsets of this rollout alone, as `served_here` made them; shared: those that all
    rollouts have."""

    def __init__(self, own: Sequence[Any], shared: Sequence[Any] = ()) -> None:
        self.own, self._shared = own, shared
        self._servers = [(toolset, _server(toolset)) for toolset in (*own, *shared)]
        self._tools: dict[str, tuple[Any, str]] = {}

    async def specs(self) -> list[ToolSpec]:
        """Named as verifiers' own agents name them, `SERVER_TOOL`, or `TOOL` where the toolset has no prefix. Raises
        RecipeError where two have one name."""
        found: list[ToolSpec] = []
        self._tools.clear()
        for toolset, server in self._servers:
            prefix = f"{toolset.server_name}_" if toolset.server_name else ""
            for tool in await server.list_tools():
                name = prefix + tool.name
                if name in self._tools:
                    raise RecipeError(f"task.environment: two tools are called '{name}'")
                self._tools[name] = server, tool.name
                found.append(ToolSpec(name, tool.description or "", dict(tool.input_schema)))
        return found

    async def call(self, state: Any, name: str, arguments: Mapping[str, Any], faults: Collection[str]) -> str:
        """What a tool answers. state: the rollout's. faults: see `failure`. Raises CallFailed, InfrastructureFault."""
        from mcp.server.mcpserver.exceptions import ToolError

        if not self._tools:
            await self.specs()
        server, tool = self._tools[name]
        token = _state.set(state)
        try:
            answer = await server.call_tool(tool, dict(arguments))
        except ToolError as error:  # its text is what the model is told there, too
            raise failure(_cause(error), faults, str(error)) from error
        finally:
            _state.reset(token)
        told = shown([_part(block) for block in answer.content]) if answer.content else ""
        if answer.is_error:
            raise CallFailed(told)
        return told

    def copied(self) -> Served:
        """With all that its own toolsets keep; those that are shared stay as they are."""
        return Served([_copied(toolset) for toolset in self.own], self._shared)

    async def end(self) -> None:
        """Closes what its own toolsets have opened."""
        await end_toolsets(self.own)


async def end_toolsets(toolsets: Sequence[Any]) -> None:
    """Closes what they have opened, the rest too where closing one of them raises."""
    async with AsyncExitStack() as closing:
        for toolset in toolsets:
            closing.push_async_callback(toolset._exit_stack.aclose)  # as the server does in which verifiers runs it


def served_here(toolset: Any) -> Any:
    """The toolset, with the state of the rollout whose call it answers as its state.

    Raises RecipeError for one that runs in another place.
    """
    name = type(toolset).__name__
    if url := getattr(toolset.config, "url", None):
        raise RecipeError(f"task.environment: the tools of {name} are served at {url}, where nothing can be taken back")
    if getattr(toolset.config, "colocated", False):
        raise RecipeError(f"task.environment: the tools of {name} run in the agent's runtime, and here it has none")
    kind: Any = type(toolset)
    toolset.__class__ = _here(kind)
    return toolset


@cache
def _here(kind: type) -> type:
    """The same class, whose state is the rollout's and does not come over HTTP."""
    state = property(lambda self: _state.get(None) or self._inert_state)
    return type(kind.__name__, (kind,), {"state": state, "__module__": kind.__module__})


def _server(toolset: Any) -> Any:
    from mcp.server.mcpserver import MCPServer

    server = MCPServer(toolset.server_name or type(toolset).__name__)
    toolset.register(server)
    return server


def _copied(toolset: Any) -> Any:
    """What every toolset has (its settings, adapters, what it closes) is shared; what this one added is copied."""
    import verifiers.v1 as vf

    every = vars(vf.Toolset(vf.ToolsetConfig()))
    copy = object.__new__(type(toolset))
    memo = {id(toolset): copy}
    for name, value in vars(toolset).items():
        vars(copy)[name] = value if name in every else deepcopy(value, memo)
    return copy


def _cause(error: Exception) -> Exception:
    return error.__cause__ if isinstance(error.__cause__, Exception) else error


def _part(block: Any) -> dict[str, Any]:
    """A block of MCP as a part of a message."""
    return {"type": block.type, "text": block.text} if block.type == "text" else {"type": block.type}
