"""Tools with a memory whose trajectories branch: of a tree the tool holds one state, the others are checkpoints of it.

A branch goes on from where its parent was. Whichever of a tree's trajectories makes a call has the tool to itself
meanwhile, and is put back to its own state first where another one was there since; what a tree costs beyond a single
trajectory is that. One whose state cannot be kept has the tool until it can, or until it is over: the others wait. So
any tool that can be rolled back can be forked, and needs to know nothing of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from retcon.core.errors import CheckpointRefused, InfrastructureFault
from retcon.core.types import Observation, ToolCall
from retcon.tools.types import OpenTool, StatefulTool

WAIT_SECONDS = 600.0
"""Longest wait for another trajectory whose state cannot be kept: with several tools, two may wait for each other."""


class Forkable:
    """Another tool that keeps state, whose trajectories can be forked; implements `StatefulTool`."""

    def __init__(self, tool: StatefulTool) -> None:
        self.name = tool.name
        self.spec = tool.spec
        self._tool = tool
        self._of: dict[str, Fork] = {}
        self._begun: dict[str, Fork] = {}  # forks whose trajectories have not called yet

    async def open(self, trajectory: str) -> OpenTool:
        fork = self._begun.pop(trajectory, None)
        if fork is None:
            fork = Fork(_Shared(await self._tool.open(trajectory)))
        self._of[trajectory] = fork
        return fork

    async def fork(self, source: str, trajectory: str) -> None:
        """`trajectory` will begin in the state that `source` is in now. Raises CheckpointRefused where that cannot be
        kept, InfrastructureFault."""
        parent = self._of.get(source) or self._begun.get(source)
        if parent is not None:  # else it has not called, and has no state
            self._begun[trajectory] = await parent.fork()

    async def over(self, trajectory: str) -> None:
        """The trajectory is over: what was kept for it and never used is freed."""
        self._of.pop(trajectory, None)
        fork = self._begun.pop(trajectory, None)
        if fork is not None:
            with suppress(InfrastructureFault):
                await fork.close()

    async def all_over(self) -> None:
        """No trajectory that has not called yet ever will."""
        for trajectory in list(self._begun):
            await self.over(trajectory)


class _Shared:
    """The tool of a tree. lock: is notified when the tool may have come into a state that can be kept. owner: whose
    state it is in. users: trajectories that have it."""

    def __init__(self, tool: OpenTool) -> None:
        self.tool = tool
        self.lock = asyncio.Condition()
        self.owner: Fork | None = None
        self.users = 0


class Fork:
    """One trajectory's share of a tree's tool; implements `OpenTool`. kept: the checkpoint of its state while another
    one has the tool. asked: the checkpoints that it was asked for and that nobody has discarded."""

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
            async with self._mine() as tool:
                return await tool(call)
        except InfrastructureFault as fault:
            return Observation(call.id, str(fault), "infrastructure", type(fault).__name__)

    async def checkpoint(self) -> str:
        async with self._mine() as tool:
            name = await tool.checkpoint()
            self._asked.add(name)
            return name

    async def rollback(self, checkpoint: str) -> None:
        async with self._mine() as tool:
            await tool.rollback(checkpoint)

    async def discard(self, checkpoint: str) -> None:
        async with self._shared.lock:
            self._asked.discard(checkpoint)
            await self._shared.tool.discard(checkpoint)
            self._shared.lock.notify_all()

    async def fork(self) -> Fork:
        """Another trajectory's share, in the state that this one is in. Raises CheckpointRefused, also where that would
        leave no room for this one's own state, once another one has the tool; InfrastructureFault."""
        async with self._mine() as tool:
            kept = await tool.checkpoint()
            try:
                await tool.discard(await tool.checkpoint())
            except (CheckpointRefused, InfrastructureFault):
                await tool.discard(kept)
                raise
            return Fork(self._shared, kept)

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
    async def _mine(self) -> AsyncIterator[OpenTool]:
        """Within, no other has the tool, and it is in this trajectory's state."""
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
