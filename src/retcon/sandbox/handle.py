"""The pool's side of one worker: the channel to it, and a hold on its process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from retcon.core.errors import SandboxUnavailable
from retcon.sandbox.types import Tier
from retcon.sandbox.wire import LENGTH, pack

START_SECONDS = 60.0


class WorkerHandle:
    """A worker and the channel to it.

    pid: of the worker's first process. profile: of the zygote that forked it. network, files, own_user: whether calls
    are kept from the network, from writing outside their scratch folder, and from the rights of the user who started
    the pool. unprotected: in words, what they are not kept from.
    """

    def __init__(
        self,
        pid: int,
        process: int,
        profile: str,
        root: Path,
        channel: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.pid = pid
        self.profile = profile
        self.tier: Tier = "rlimits"
        self.network = self.files = self.own_user = False
        self.unprotected: tuple[str, ...] = ()
        self._process: int | None = process
        self._root = root
        self._reader, self._writer = channel

    @classmethod
    async def open(cls, pid: int, process: int, profile: str, root: Path, channel: socket.socket) -> WorkerHandle:
        """A worker that was just forked, once it is ready. process: pidfd, the handle's from here on.

        root: its folder on the host, likewise. Raises SandboxUnavailable, with the worker ended.
        """
        try:
            streams = await asyncio.open_unix_connection(sock=channel)
        except BaseException:
            channel.close()
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
            os.close(process)
            raise
        worker = cls(pid, process, profile, root, streams)
        try:
            async with asyncio.timeout(START_SECONDS):
                hello = await worker._receive()
        except (EOFError, OSError, TimeoutError) as error:
            worker.kill()
            raise SandboxUnavailable(
                f"sandbox worker {pid} did not come up: {'no answer' if isinstance(error, TimeoutError) else 'it died'}"
            ) from error
        except BaseException:
            worker.kill()
            raise
        if "error" in hello:
            worker.kill()
            raise SandboxUnavailable(f"a sandbox worker could not set itself up: {hello['error']}")
        worker.tier, worker.network = hello["tier"], hello["network"]
        worker.files, worker.own_user = hello["files"], hello["own_user"]
        worker.unprotected = tuple(hello["unprotected"])
        return worker

    @property
    def alive(self) -> bool:
        return self._process is not None and not self._reader.at_eof()

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Raises EOFError or OSError where the worker died."""
        self._writer.write(pack(request))
        await self._writer.drain()
        return await self._receive()

    async def _receive(self) -> dict[str, Any]:
        size = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))[0]
        answer: dict[str, Any] = json.loads(await self._reader.readexactly(size))
        return answer

    def kill(self) -> None:
        """End the worker and, through it, all that it runs; its zygote reaps it. Killing twice is no error."""
        if self._process is None:
            return
        self._writer.transport.abort()
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
        os.close(self._process)
        self._process = None
        with suppress(OSError):  # not empty: a call left files where there is no tmpfs; they go with the pool's folder
            self._root.rmdir()
