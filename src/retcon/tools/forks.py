"""Stateful tools for trees of trajectories: one tool, and a checkpoint per branch.

A branch starts from its parent's state. A trajectory that makes a call has the tree's tool to itself, rolled back first
to its own state if another one used it since; that is all a tree costs beyond a single trajectory. If its state cannot
be kept, the others wait until it can, or until the trajectory has ended. So any tool with rollback can be forked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from retcon.core.errors import CheckpointRefused, InfrastructureFault
from retcon.core.types import Observation, ToolCall
from retcon.tools.types import OpenTool, StatefulTool

WAIT_SECONDS = 600.0
"""Longest wait for a trajectory whose state cannot be kept, as two may deadlock over several tools."""


class ForkableTool:
    """A stateful tool whose trajectories can be forked; implements `StatefulTool`."""

    def __init__(self, tool: StatefulTool) -> None:
        self.name = tool.name
        self.spec = tool.spec
        self._tool = tool
        self._of: dict[str, ForkedTool] = {}
        self._begun: dict[str, ForkedTool] = {}  # forks whose trajectories have not called yet

    async def open(self, trajectory: str) -> OpenTool:
        fork = self._begun.pop(trajectory, None)
        if fork is None:
            fork = ForkedTool(_Shared(await self._tool.open(trajectory)))
        self._of[trajectory] = fork
        return fork

    async def fork(self, source: str, trajectory: str) -> None:
        """Let `trajectory` start in the current state of `source`. Raises CheckpointRefused, InfrastructureFault."""
        parent = self._of.get(source) or self._begun.get(source)
        if parent is not None:  # else it has not called, and has no state
            self._begun[trajectory] = await parent.fork()

    async def end(self, trajectory: str) -> None:
        """Free what an ended trajectory never used."""
        self._of.pop(trajectory, None)
        fork = self._begun.pop(trajectory, None)
        if fork is not None:
            with suppress(InfrastructureFault):
                await fork.close()

    async def end_all(self) -> None:
        """End all trajectories that have not called yet."""
        for trajectory in list(self._begun):
            await self.end(trajectory)


class _Shared:
    """The tool of a tree. lock: notified when the state may have become one that can be kept. owner: whose state it is
    in. users: trajectories that have it."""

    def __init__(self, tool: OpenTool) -> None:
        self.tool = tool
        self.lock = asyncio.Condition()
        self.owner: ForkedTool | None = None
        self.users = 0


class ForkedTool:
    """One trajectory's share of a tree's tool; implements `OpenTool`. kept: checkpoint of its state while another one
    has the tool. asked: its checkpoints that are not yet discarded."""

    def __init__(self, shared: _Shared, kept: str | None = None) -> None:
        self.name = shared.tool.name
        self.spec = shared.tool.spec
        self._shared = shared
        self._kept = kept
        self._asked: set[str] = set()
        shared.users += 1
        if kept is None:
            shared.owner = self

    async def __call__(self, call: ToolCall) -> Observation:
        try:
            async with self._acquire() as tool:
                return await tool(call)
        except InfrastructureFault as fault:
            return Observation(call.id, str(fault), "infrastructure", type(fault).__name__)

    async def checkpoint(self) -> str:
        async with self._acquire() as tool:
            name = await tool.checkpoint()
            self._asked.add(name)
            return name

    async def rollback(self, checkpoint: str) -> None:
        async with self._acquire() as tool:
            await tool.rollback(checkpoint)

    async def discard(self, checkpoint: str) -> None:
        async with self._shared.lock:
            self._asked.discard(checkpoint)
            await self._shared.tool.discard(checkpoint)
            self._shared.lock.notify_all()

    async def fork(self) -> ForkedTool:
        """Return a share for another trajectory, in this one's state. Raises CheckpointRefused, also if that leaves no
        room for a checkpoint of this one's own state, and InfrastructureFault."""
        async with self._acquire() as tool:
            kept = await tool.checkpoint()
            try:
                await tool.discard(await tool.checkpoint())
            except (CheckpointRefused, InfrastructureFault):
                await tool.discard(kept)
                raise
            return ForkedTool(self._shared, kept)

    async def close(self) -> None:
        async with self._shared.lock:
            shared = self._shared
            shared.users -= 1
            if shared.owner is self:
                shared.owner = None
                shared.lock.notify_all()
            if not shared.users:
                await shared.tool.close()
                return
            left = self._asked if self._kept is None else {*self._asked, self._kept}
            for checkpoint in sorted(left):
                await shared.tool.discard(checkpoint)

    @asynccontextmanager
    async def _acquire(self) -> AsyncIterator[OpenTool]:
        """Lock the tool within the block, in this trajectory's state."""
        async with self._shared.lock:
            tool = self._shared.tool
            while (owner := self._shared.owner) not in (None, self):
                try:
                    owner._kept = await tool.checkpoint()
                    self._shared.owner = None
                except CheckpointRefused as refused:
                    try:
                        await asyncio.wait_for(self._shared.lock.wait(), WAIT_SECONDS)
                    except TimeoutError:
                        raise InfrastructureFault(f"another trajectory of the tree keeps the tool: {refused}") from None
            if owner is not self:
                if self._kept is None:
                    raise InfrastructureFault("the state of this trajectory was lost as another one took the tool")
                await tool.rollback(self._kept)
                self._shared.owner = self
                kept, self._kept = self._kept, None
                await tool.discard(kept)
            try:
                yield tool
            finally:
                self._shared.lock.notify_all()
