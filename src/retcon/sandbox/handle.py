"""The pool's side of one worker: its process and the channel to it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import retcon
from retcon.core.errors import SandboxUnavailable
from retcon.sandbox.types import Tier
from retcon.sandbox.wire import LENGTH, pack

START_SECONDS = 60.0
BOOT = (
    "import sys; sys.path.insert(0, sys.argv[3]); from retcon.sandbox import worker; del sys.path[0]; "
    "worker.main(int(sys.argv[1]), sys.argv[2], sys.argv[4])"
)
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # sets print in the same order in every call
    "MALLOC_ARENA_MAX": "1",  # each further arena takes 64 MiB of address space
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


class WorkerHandle:
    """A worker process and the channel to it.

    pid: of the worker's first process. network, files, own_user: whether calls are kept from the network, from writing
    outside their scratch folder, and from the rights of the user who started the pool. unprotected: in words, what they
    are not kept from.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.pid = process.pid
        self.tier: Tier = "rlimits"
        self.network = self.files = self.own_user = False
        self.unprotected: tuple[str, ...] = ()
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, scratch: Path, tier: str) -> WorkerHandle:
        """A worker that is ready. tier: asked for, empty for the best. Raises SandboxUnavailable."""
        log = scratch.with_suffix(".log")
        process, channel = _spawn(scratch, tier, log)
        worker = cls(process, *await asyncio.open_unix_connection(sock=channel))
        try:
            async with asyncio.timeout(START_SECONDS):
                hello = await worker._receive()
        except (EOFError, OSError, TimeoutError) as error:
            worker.kill()
            raise SandboxUnavailable(
                f"a sandbox worker did not come up (exit code {process.returncode}): "
                f"{log.read_text(errors='replace').strip() or 'it said nothing'}"
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
        return not self._reader.at_eof() and self._process.poll() is None

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._writer.write(pack(request))
        await self._writer.drain()
        return await self._receive()

    async def _receive(self) -> dict[str, Any]:
        size = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))[0]
        answer: dict[str, Any] = json.loads(await self._reader.readexactly(size))
        return answer

    def kill(self) -> None:
        """End the worker and, through it, all that it runs."""
        self._writer.transport.abort()
        self._process.kill()
        self._process.wait()


def _spawn(scratch: Path, tier: str, log: Path) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the process; (it, our end of its channel). It gets none of our environment, files or signals."""
    ours, theirs = socket.socketpair()
    source = str(Path(retcon.__file__).parents[1])
    command = [sys.executable, "-s", "-S", "-P", "-X", "utf8", "-c", BOOT]
    command += [str(theirs.fileno()), str(scratch), source, tier]
    environment = ENVIRONMENT | {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}
    with theirs, log.open("wb") as stderr:
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise SandboxUnavailable(f"cannot start a sandbox worker with {sys.executable}: {error}") from error
    return process, ours
