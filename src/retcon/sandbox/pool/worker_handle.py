"""The pool's side of one worker: the channel to it, and a hold on its process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import suppress
from typing import TypeVar

import msgspec

from retcon.core.errors import SandboxUnavailable
from retcon.sandbox.jail.messages import Facts, Failed, Message, decoded
from retcon.sandbox.jail.wire import LENGTH, pack
from retcon.sandbox.types import Tier

T = TypeVar("T", bound=Message)
START_SECONDS = 60.0


class WorkerHandle:
    """A worker and the channel to it.

    pid: of the worker's first process. profile: of the zygote that forked it. network, files, own_user: whether calls
    are kept from the network, from writing outside their scratch folder, and from the rights of the user who started
    the pool. unprotected: in words, what they are not kept from. no_cgroup: why the kernel does not bound their memory,
    "" where it does. folders: where their files may be put by an absolute path.
    """

    def __init__(
        self,
        pid: int,
        process: int,
        profile: str,
        channel: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.pid = pid
        self.profile = profile
        self.tier: Tier = "rlimits"
        self.network = self.files = self.own_user = False
        self.unprotected: tuple[str, ...] = ()
        self.no_cgroup = ""
        self.folders: tuple[str, ...] = ()
        self._process: int | None = process
        self._reader, self._writer = channel

    @classmethod
    async def open(cls, pid: int, process: int, profile: str, channel: socket.socket) -> WorkerHandle:
        """A worker that was just forked, once it is ready. process: pidfd, the handle's from here on.

        Raises SandboxUnavailable, with the worker ended.
        """
        try:
            streams = await asyncio.open_unix_connection(sock=channel)
        except BaseException:
            channel.close()
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
            os.close(process)
            raise
        worker = cls(pid, process, profile, streams)
        try:
            async with asyncio.timeout(START_SECONDS):
                hello = await worker._receive()
        except (EOFError, OSError) as error:  # a TimeoutError is an OSError
            worker.kill()
            raise SandboxUnavailable(
                f"sandbox worker {pid} did not come up: {'no answer' if isinstance(error, TimeoutError) else 'it died'}"
            ) from error
        except BaseException:
            worker.kill()
            raise
        if not isinstance(hello, Facts):
            worker.kill()
            why = hello.error if isinstance(hello, Failed) else f"it said {type(hello).__name__}"
            raise SandboxUnavailable(f"a sandbox worker could not set itself up: {why}")
        worker.tier, worker.network = msgspec.convert(hello.tier, Tier), hello.network
        worker.files, worker.own_user, worker.no_cgroup = hello.files, hello.own_user, hello.no_cgroup
        worker.unprotected, worker.folders = tuple(hello.unprotected), tuple(hello.folders)
        return worker

    @property
    def alive(self) -> bool:
        return self._process is not None and not self._reader.at_eof()

    async def ask(self, message: Message, kind: type[T]) -> T:
        """The worker's answer, which is of that kind. Raises EOFError or OSError where the worker died."""
        self._writer.write(pack(message))
        await self._writer.drain()
        answer = await self._receive()
        if not isinstance(answer, kind):
            raise OSError(f"a sandbox worker answered {type(answer).__name__}, and not {kind.__name__}")
        return answer

    async def _receive(self) -> Message:
        size = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))[0]
        body = await self._reader.readexactly(size)
        try:
            return decoded(body)
        except ValueError as error:
            raise OSError(str(error)) from error

    def kill(self) -> None:
        """End the worker and, through it, all that it runs. Killing twice is no error.

        Its zygote reaps it and removes its folder, with what a call that did not come to its end has left there.
        """
        if self._process is None:
            return
        self._writer.transport.abort()
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
        os.close(self._process)
        self._process = None
