"""Pool's handles of zygotes and workers: channels and processes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

import retcon
from retcon.core.concurrency import cancel_all
from retcon.core.errors import SandboxUnavailable, nearest
from retcon.sandbox.jail.confine import cgroup
from retcon.sandbox.jail.messages import (
    LENGTH,
    Facts,
    Failed,
    Forked,
    ForkOrder,
    HostCall,
    HostReturn,
    Imported,
    Message,
    decoded,
    encoded,
    pack,
)
from retcon.sandbox.pool.profiles import DISTRIBUTIONS, Profile
from retcon.sandbox.types import Tier

T = TypeVar("T", bound=Message)
WORKER_START_SECONDS = 60.0
BACKSTOP_SECONDS = 30.0  # beyond a program's wall limit, until a silent worker is given up


class WorkerHandle:
    """Handle of a worker and its channel.

    pid: of the worker's first process. profile: of the zygote that forked it. facts: protection around its calls.
    """

    facts: Facts
    tier: Tier

    def __init__(
        self,
        pid: int,
        process: int,
        profile: str,
        channel: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.pid = pid
        self.profile = profile
        self._process: int | None = process
        self._reader, self._writer = channel

    @classmethod
    async def open(cls, pid: int, process: int, profile: str, channel: socket.socket) -> WorkerHandle:
        """Wait until a new worker is ready. process: pidfd, owned by the handle from here on.

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
            async with asyncio.timeout(WORKER_START_SECONDS):
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
            why = hello.error if isinstance(hello, Failed) else f"unexpected message {type(hello).__name__}"
            raise SandboxUnavailable(f"a sandbox worker could not set itself up: {why}")
        worker.facts, worker.tier = hello, msgspec.convert(hello.tier, Tier)
        return worker

    @property
    def alive(self) -> bool:
        return self._process is not None and not self._reader.at_eof()

    async def ask(
        self,
        message: Message,
        kind: type[T],
        seconds: float,
        answer_call: Callable[[HostCall], Awaitable[HostReturn]] | None = None,
    ) -> T:
        """Send a message and return the answer. Raises EOFError or OSError if the worker died, TimeoutError (which is
        an OSError) after `seconds`.

        answer_call: answers function calls that come before the answer, concurrently; `seconds` are paused meanwhile.
        Open ones are cancelled when the answer comes.
        """
        calls: set[asyncio.Task[None]] = set()
        left = seconds
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds) as clock:

                async def serve(call: HostCall) -> None:
                    assert answer_call is not None
                    self._writer.write(pack(await answer_call(call)))

                def ended(task: asyncio.Task[None]) -> None:
                    calls.discard(task)
                    if not calls and not clock.expired():
                        with suppress(RuntimeError):  # the block has ended
                            clock.reschedule(loop.time() + left)

                self._writer.write(pack(message))
                await self._writer.drain()
                while isinstance(answer := await self._receive(), HostCall) and answer_call is not None:
                    if not calls:
                        left = (clock.when() or 0) - loop.time()
                        clock.reschedule(None)
                    task = asyncio.create_task(serve(answer))
                    calls.add(task)
                    task.add_done_callback(ended)
        finally:
            await cancel_all(calls)
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
        """Kill the worker and thereby all that it runs. Killing twice is no error.

        Its zygote reaps it and removes its folder, with the files of an unfinished call.
        """
        if self._process is None:
            return
        self._writer.transport.abort()
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
        os.close(self._process)
        self._process = None


ZYGOTE_START_SECONDS = 120.0  # importing large packages from a cold disk
END_SECONDS = 10.0
REAP_SECONDS = 1.0  # blocks the event loop; it takes milliseconds
FULL_SECONDS = 0.01
MESSAGE_BYTES = 1 << 16
LOG_TAIL_BYTES = 4000
BOOT = (
    "import sys; sys.path.insert(0, sys.argv[2]); from retcon.sandbox.jail import worker, zygote; del sys.path[0]; "
    "worker.main(*zygote.main(int(sys.argv[1]), sys.argv[3], sys.argv[4], sys.argv[5:]))"
)
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # sets print in the same order in every call
    "MALLOC_ARENA_MAX": "1",  # each further arena takes 64 MiB of address space
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "LOKY_MAX_CPU_COUNT": "1",  # joblib would warn that it cannot count the cores
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow's, which pandas imports, would prevent forking
    "MPLBACKEND": "Agg",
}
PASSED = ("LD_LIBRARY_PATH", cgroup.VARIABLE)
"""Variables passed from our own environment."""


class ZygoteHandle:
    """Handle of a zygote. pid: its process. packages: top-level names of its imports."""

    def __init__(self, profile: str, process: subprocess.Popen[bytes], channel: socket.socket, log: Path) -> None:
        self.profile = profile
        self.pid = process.pid
        self.alive = True
        self.packages: list[str] = []
        self._starting = True
        self._process = process
        self._channel = channel
        self._log = log
        self._asked: deque[asyncio.Future[tuple[Message, int | None]]] = deque()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(channel.fileno(), self._readable)

    @classmethod
    async def start(cls, profile: Profile, python: str, folder: Path, log: Path) -> ZygoteHandle:
        """Start a zygote and wait for its imports. Raises SandboxUnavailable with the reason."""
        process, channel = _spawn(profile, python, folder, log)
        zygote = cls(profile.name, process, channel, log)
        try:
            async with asyncio.timeout(ZYGOTE_START_SECONDS):
                hello, _ = await zygote._answer()
        except BaseException as error:
            await zygote.close()
            if isinstance(error, TimeoutError):
                raise SandboxUnavailable(
                    f"the imports of sandbox profile {profile.name!r} did not end within {ZYGOTE_START_SECONDS:g} s"
                ) from error
            raise
        if not isinstance(hello, Imported):
            await zygote.close()
            raise SandboxUnavailable(f"sandbox profile {profile.name!r}: {_failure_reason(hello)}")
        zygote._starting = False
        zygote.packages = hello.packages
        return zygote

    async def fork(self, root: Path, tier: str, uids: range | None = None) -> WorkerHandle:
        """Fork a worker. root: its folder on the host. tier: requested, "" for the best. uids: see the pool.

        Raises SandboxUnavailable, and OSError if the machine lacks resources, with nothing left running.
        """
        if not self.alive:
            raise SandboxUnavailable(f"the zygote of sandbox profile {self.profile!r} is gone")
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                root.mkdir(mode=0o711)
                order = encoded(ForkOrder(str(root), tier, [uids.start, len(uids)] if uids else None))
                await self._order(order, theirs.fileno())
            answer, process = await self._answer()
            if process is None or not isinstance(answer, Forked):
                raise SandboxUnavailable(f"sandbox profile {self.profile!r}: {_failure_reason(answer)}")
        except BaseException:
            ours.close()
            with suppress(OSError):
                root.rmdir()
            raise
        try:
            return await WorkerHandle.open(answer.pid, process, self.profile, ours)
        except SandboxUnavailable as error:
            raise SandboxUnavailable(f"{error}: {self._log_tail()}") from error

    async def close(self) -> None:
        """End it and all its workers; wait, also if cancelled."""
        self.stop()
        try:
            if self._process.poll() is None:
                await self._ended()
        finally:
            self.reap()

    def stop(self) -> None:
        """Ask it to end, with all its workers."""
        self._mark_dead()
        if self._starting:  # during imports it does not notice the closed channel
            self._process.terminate()

    def reap(self) -> None:
        """Wait for its end after `stop`, blocking, and kill it after `REAP_SECONDS`."""
        try:
            self._process.wait(REAP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    async def _ended(self) -> None:
        """Wait for its end, and kill it after `END_SECONDS`."""
        process = os.pidfd_open(self.pid)
        ended = asyncio.Event()
        self._loop.add_reader(process, ended.set)
        try:
            async with asyncio.timeout(END_SECONDS):
                await ended.wait()
        except TimeoutError:
            self._process.kill()
        finally:
            self._loop.remove_reader(process)
            os.close(process)

    async def _order(self, order: bytes, channel: int) -> None:
        """Send an order. Raises SandboxUnavailable if the zygote takes none any more."""
        while True:
            try:
                socket.send_fds(self._channel, [order], [channel])
                return
            except BlockingIOError:  # its queue is full
                await asyncio.sleep(FULL_SECONDS)
            except OSError as error:
                self._mark_dead()
                raise SandboxUnavailable(
                    f"the zygote of sandbox profile {self.profile!r} takes no orders: {error}"
                ) from error

    async def _answer(self) -> tuple[Message, int | None]:
        """Return the zygote's next unclaimed message, and its pidfd if any."""
        future: asyncio.Future[tuple[Message, int | None]] = self._loop.create_future()
        self._asked.append(future)
        return await future

    def _readable(self) -> None:
        try:
            message, fds, _, _ = socket.recv_fds(self._channel, MESSAGE_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            message, fds = b"", []
        if not message:
            self._mark_dead()
            return
        asked = self._asked.popleft()
        if asked.done():  # the caller was cancelled
            for process in fds:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                os.close(process)
            return
        try:
            asked.set_result((decoded(message), fds[0] if fds else None))
        except ValueError as error:
            asked.set_exception(error)
            for process in fds:
                os.close(process)

    def _mark_dead(self) -> None:
        if not self.alive:
            return
        self.alive = False
        self._loop.remove_reader(self._channel.fileno())
        with suppress(OSError):  # it ended first
            self._channel.shutdown(socket.SHUT_RDWR)  # a fork of the user's process may keep the channel open
        self._channel.close()
        for asked in self._asked:
            if not asked.done():
                asked.set_exception(SandboxUnavailable(self._death_message()))
        self._asked.clear()

    def _death_message(self) -> str:
        try:
            code: int | None = self._process.wait(1)  # its end of the channel is closed: it is about to end
        except subprocess.TimeoutExpired:
            code = None
        return f"the zygote of sandbox profile {self.profile!r} did not come up (exit code {code}): {self._log_tail()}"

    def _log_tail(self) -> str:
        """Return the last stderr output of the zygote and its workers."""
        with self._log.open("rb") as file:
            file.seek(-min(LOG_TAIL_BYTES, file.seek(0, os.SEEK_END)), os.SEEK_END)
            return file.read().decode(errors="replace").strip() or "no output on stderr"


def _failure_reason(answer: Message) -> str:
    return answer.error if isinstance(answer, Failed) else "no worker came"


def _spawn(profile: Profile, python: str, folder: Path, log: Path) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a zygote, without our files and signals; return it and our end of its channel."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    source = str(Path(retcon.__file__).parents[1])
    command = [python, "-s", "-P", "-X", "utf8", "-c", BOOT]
    command += [str(theirs.fileno()), source, str(folder), profile.exercise, *profile.modules]
    environment = ENVIRONMENT | {name: os.environ[name] for name in PASSED if name in os.environ}
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
            raise SandboxUnavailable(f"cannot start a sandbox worker with {python}: {error}") from error
    return process, ours


LEAST = (3, 11)
"""Oldest Python version for calls."""
_LOOK = """
import json, sys
sys.path.pop(0)
found = {"version": sys.version_info[:3], "missing": [], "had": []}
if sys.version_info >= (3, 11):
    import importlib.util, pkgutil
    had = {module.name for module in pkgutil.iter_modules()} | sys.stdlib_module_names
    found["missing"] = [name for name in sys.argv[1:] if name not in had and not importlib.util.find_spec(name)]
    found["had"] = sorted(had)
print(json.dumps(found))
"""
_SECONDS = 60.0


def find_python(python: str | None) -> str:
    """Return an interpreter's path, by path, name or venv folder.

    None: this one. Raises ValueError if it does not exist.
    """
    if python is None:
        return sys.executable
    path = Path(python).expanduser()
    path = path / "bin" / "python" if path.is_dir() else path
    found = shutil.which(path)
    if found is None:
        raise ValueError(f"python is {python!r}, where there is no program: give an interpreter, or a venv's folder")
    return str(Path(found).absolute())  # without following links, as a venv's interpreter is one


async def check_python(python: str, modules: Iterable[str]) -> None:
    """Check an interpreter's version and packages; else raise SandboxUnavailable.

    Looks for top-level packages of `modules` without importing them.
    """
    packages = list(dict.fromkeys(module.partition(".")[0] for module in modules))
    if packages or python != sys.executable:
        await asyncio.to_thread(_check, python, packages)


def _check(python: str, packages: list[str]) -> None:
    command = [python, "-s", "-c", _LOOK, *packages]  # it runs in old versions too
    try:
        done = subprocess.run(command, env=ENVIRONMENT, cwd="/", capture_output=True, timeout=_SECONDS, check=False)
        if done.returncode:
            raise ValueError(done.stderr.decode(errors="replace").strip()[-300:] or f"exit code {done.returncode}")
        found = json.loads(done.stdout)
        version = tuple(map(int, found["version"]))
    except (OSError, ValueError, LookupError, TypeError, subprocess.SubprocessError) as error:
        raise SandboxUnavailable(f"python is {python}, which cannot be asked for its packages: {error}") from error
    if version < LEAST:
        raise SandboxUnavailable(
            f"python is {python}, which is Python {'.'.join(map(str, version))}: calls need 3.11 or later; name a "
            "later one, or leave `python` out"
        )
    for name in found["missing"]:
        raise SandboxUnavailable(
            f"package {name!r} is not installed for {python}{nearest(name, found['had'])}: install it by "
            f"`{python} -m pip install {DISTRIBUTIONS.get(name, name)}`, or leave it out of `packages`"
        )
