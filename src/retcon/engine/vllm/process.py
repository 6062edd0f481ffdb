"""A vLLM server in a child process."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.request import ProxyHandler, build_opener

from retcon.core.errors import EngineError
from retcon.engine.types import Adapters

NO_PROXY = build_opener(ProxyHandler({}))  # a server on this machine

EXTENSION = Path(__file__).parent / "extension"
RUNTIME = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM rounds adapters' ranks up to."""
NAME = "retcon"
"""The model's name on the server."""
GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL."""
PORTS = 4
"""Ports that are tried if a server finds its port in use."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a server.

    Args:
        python: of an environment that has vLLM.
        folder: of the model, with weights of `dtype`.
        max_len: tokens of a request.
        kv_memory_mb: MiB for keys and values on a CPU, 0 for 1024.
        arguments: further arguments of the server, which take precedence.
        adapters: that it will have to load.
    """

    python: str
    folder: Path
    dtype: str
    max_len: int
    kv_memory_mb: int = 0
    threads: int = 1
    arguments: tuple[str, ...] = ()
    adapters: Adapters | None = None

    def command(self, port: int) -> list[str]:
        """Return the command line.

        Prefills are not chunked: on a CPU that ends vLLM's engine if requests have seeds ("CPU Generator does not use
        offset").
        """
        transfer = json.dumps({"backend": "retcon"})
        return [
            self.python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.folder), "--served-model-name",
            NAME, "--host", "127.0.0.1", "--port", str(port), "--dtype", self.dtype, "--max-model-len",
            str(self.max_len), "--enable-scale-out", "--enable-prefix-caching", "--no-enable-chunked-prefill",
            "--max-num-batched-tokens", str(max(2048, self.max_len)), "--weight-transfer-config", transfer,
            "--worker-extension-cls", "retcon_vllm.Extension", *adapter_arguments(self.adapters), *self.arguments,
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        """Return the server's environment; the user's variables for vLLM take precedence."""
        gib = max(1, -(-self.kv_memory_mb // 1024))
        ours = {
            "VLLM_CPU_KVCACHE_SPACE": str(gib), "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": str(self.threads),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }  # fmt: skip
        path = os.pathsep.join(filter(None, (str(EXTENSION), os.environ.get("PYTHONPATH", ""))))
        return {
            **ours,
            **os.environ,
            "PYTHONPATH": path,
            "VLLM_SERVER_DEV_MODE": "1",
            "RETCON_OWNER": str(os.getpid()),
            **({RUNTIME: "1"} if self.adapters else {}),
        }


class Server:
    """A server process on the loopback interface; restarts keep its port.

    seconds: limit of its start.
    """

    def __init__(self, launch: Launch, seconds: float) -> None:
        self._launch, self._seconds = launch, seconds
        self._held: socket.socket | None = None
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self.starts = 0

    @property
    def url(self) -> str:
        """URL of the server's root, once it was started."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """Id of the process, None before the start."""
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        """(Re)start the server and wait until it answers. Raises EngineError with its last lines."""
        await self._end()
        if self._held is not None:
            await self._started()
            return
        for left in reversed(range(PORTS)):
            self._held = _reserve_port()
            self._port = self._held.getsockname()[1]
            if left < PORTS - 1:  # some servers do not bind a port that is held
                self._held.close()
            try:
                await self._started()
                return
            except EngineError:
                taken = self._port_taken()
                await self.stop()
                if not (left and taken):
                    raise

    async def _started(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        began = time.monotonic()
        try:
            self._process = subprocess.Popen(
                self._launch.command(self._port), env=self._launch.environment(), stdin=subprocess.DEVNULL,
                stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise EngineError(f"engine.python: {self._launch.python} cannot be started: {error}") from error
        self.starts += 1
        while not await asyncio.to_thread(self._answers):
            if not self.alive:
                raise EngineError(f"the vLLM server ended before it answered: {self._last_lines()}")
            if time.monotonic() - began > self._seconds:
                lines = self._last_lines()
                await self._end()
                raise EngineError(
                    f"the vLLM server did not answer within engine.start_seconds = {self._seconds:g}: {lines}"
                )
            await asyncio.sleep(0.25)

    async def stop(self) -> None:
        """End the server and its child processes."""
        try:
            await self._end()
        finally:
            if self._held is not None:
                self._held.close()
                self._held = None

    async def _end(self) -> None:
        process = self._process
        if process is not None:
            _signal(process, signal.SIGTERM)
            try:
                await asyncio.to_thread(process.wait, GRACE)
            except subprocess.TimeoutExpired:
                pass
            finally:
                _signal(process, signal.SIGKILL)
                process.wait()
        self._close_log()

    def _answers(self) -> bool:
        try:
            with NO_PROXY.open(f"{self.url}/health", timeout=2) as answer:
                return bool(200 <= answer.status < 300)
        except (OSError, HTTPException):  # urllib's errors are of the first kind
            return False

    def _last_lines(self) -> str:
        lines = [line.strip() for line in self._logged().splitlines() if line.strip()]
        errors = [line for line in lines if "rror" in line]
        return f"{shlex.join(self._launch.command(self._port))}: {' | '.join((errors or lines)[-3:])}"

    def _port_taken(self) -> bool:
        logged = self._logged().lower()
        return f"errno {errno.EADDRINUSE}" in logged or "address already in use" in logged

    def _logged(self) -> str:
        if self._log is None:
            return ""
        self._log.seek(0)
        return self._log.read().decode("utf-8", "replace")

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Signal the whole session, which may outlive its leader."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _reserve_port() -> socket.socket:
    """Reserve a free port. A server that binds it with SO_REUSEPORT, as vLLM's does, can still use it."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "SO_REUSEPORT"):
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("127.0.0.1", 0))
    return held


def adapter_arguments(adapters: Adapters | None) -> tuple[str, ...]:
    """Return a server's arguments for two versions of adapters.

    Rollouts may run ahead. Without target modules vLLM would adapt the output layer too, and fail to score on a CPU.
    """
    if adapters is None:
        return ()
    rank = next((one for one in RANKS if one >= adapters.rank), adapters.rank)  # vLLM rejects larger ones
    return ("--enable-lora", "--max-lora-rank", str(rank), "--max-loras", "2",
            "--lora-target-modules", *adapters.targets)  # fmt: skip


def start_command(max_len: int, adapters: Adapters | None = None) -> str:
    """Return the command by which a user starts a server. adapters: loaded instead of weights."""
    transfer = ("--weight-transfer-config", '{"backend": "retcon"}', "--worker-extension-cls", "retcon_vllm.Extension")
    taking = adapter_arguments(adapters) or transfer
    environment = f"{RUNTIME}=1" if adapters else f"PYTHONPATH={EXTENSION}"
    tokens = str(max(2048, max_len))
    words = ("--enable-scale-out", "--no-enable-chunked-prefill", "--max-num-batched-tokens", tokens, *taking)
    return f"{environment} VLLM_SERVER_DEV_MODE=1 vllm serve … {shlex.join(words)}"
