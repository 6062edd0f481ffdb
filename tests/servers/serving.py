"""A real server process for tests, and a fake sandbox whose sessions run in this process."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import io
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack

from retcon.core.errors import SessionLost
from retcon.sandbox.pool.paths import WRITABLE
from retcon.sandbox.types import Limits, Program, ProgramOptions, Result, as_program

FOLDERS = [
    folder
    for folder in WRITABLE
    if not any(Path(path).is_relative_to(folder) for path in (sys.prefix, sys.base_prefix))
]
"""Where a server's calls may be given files by an absolute path, in the tier `namespaces`."""


class Server:
    """`retcon sandbox serve` on a free loopback port."""

    def __init__(self, *options: str, port: int = 0) -> None:
        words = [sys.executable, "-m", "retcon", "sandbox", "serve", "--port", str(port), *options]
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "src"}
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        if not self.said.startswith("listening on "):
            raise AssertionError(f"no server: {self.said}{self.process.communicate()[1]}")
        self.url = self.said.split()[2]
        self.port = int(self.url.rpartition(":")[2])

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """(exit code, what it said on stderr)."""
        self.process.send_signal(number)
        stderr = self.process.communicate()[1]
        return self.process.returncode, stderr


@contextmanager
def server(*options: str, port: int = 0) -> Iterator[Server]:
    made = Server(*options, port=port)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.stop(signal.SIGKILL)
        for pipe in (made.process.stdout, made.process.stderr):
            if pipe is not None:
                pipe.close()


class MemorySandbox:
    """Implements `Sandbox`, for tests of what stands before one: sessions are dictionaries, nothing is contained.

    runs: how many cells have run. wait: what a cell waits for before it runs. begun: cells that wait or have run.
    place: what a session waits for before it opens. open_sessions: that have not ended. `lose()` in a cell ends its
    session.
    """

    def __init__(self) -> None:
        self.runs = 0
        self.begun = 0
        self.wait: asyncio.Event | None = None
        self.place: asyncio.Event | None = None
        self.open_sessions = 0

    async def run(self, program: str | Program, /, **options: Unpack[ProgramOptions]) -> Result:
        return await MemorySession(self).run(program, **options)

    async def session(self, *, limits: Limits | None = None, seed: int | None = None) -> MemorySession:
        if self.place is not None:
            await self.place.wait()
        self.open_sessions += 1
        return MemorySession(self)

    async def close(self) -> None:
        pass


class MemorySession:
    def __init__(self, sandbox: MemorySandbox) -> None:
        self.id = uuid.uuid4().hex
        self._sandbox = sandbox
        self._variables: dict[str, Any] = {}
        self._frozen: dict[str, dict[str, Any]] = {}
        self._lost = ""

    async def run(self, program: str | Program, /, **options: Unpack[ProgramOptions]) -> Result:
        self._check()
        self._sandbox.begun += 1
        if self._sandbox.wait is not None:
            await self._sandbox.wait.wait()
        self._sandbox.runs += 1
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(as_program(program, options).code, self._variables | {"lose": self._lose}, self._variables)
        return Result("ok", stdout=out.getvalue(), exit_code=0)

    @property
    def ended(self) -> bool:
        return bool(self._lost)

    async def checkpoint(self) -> str:
        self._check()
        name = str(len(self._frozen))
        self._frozen[name] = copy.deepcopy(self._variables)
        return name

    async def rollback(self, checkpoint: str) -> None:
        self._check()
        self._variables = copy.deepcopy(self._frozen[checkpoint])

    async def discard(self, checkpoint: str) -> None:
        self._check()
        self._frozen.pop(checkpoint, None)

    async def close(self) -> None:
        self._lose("it was closed")

    def _lose(self, why: str = "its code ended it") -> None:
        self._sandbox.open_sessions -= not self._lost
        self._lost = self._lost or why

    def _check(self) -> None:
        if self._lost:
            raise SessionLost(f"session {self.id}: {self._lost}")
