"""The worker's side of a session: its interpreter, the frozen copies, the snapshots of the scratch folder.

A worker that was given to a session serves nothing else and ends with it. Between operations every process of the
session but its frozen copies is stopped: threads and processes that a cell left running go on with the next cell, in
whose clocks and output they count, and an idle session takes no CPU time. Standard library only.
"""

from __future__ import annotations

import base64
import contextlib
import marshal
import math
import os
import resource
import select
import signal
import socket
import time
from typing import Any

from retcon.sandbox import cells, child, processes, wire
from retcon.sandbox.capture import Capture
from retcon.sandbox.deadlines import Deadlines
from retcon.sandbox.processes import end_below, number_of, signal_below
from retcon.sandbox.snapshot import Snapshot
from retcon.sandbox.usage import resident
from retcon.sandbox.verdict import cell_verdict, verdict
from retcon.sandbox.watchdog import Watchdog

CHECKPOINTS = 16
SCRATCH_BYTES = 64 << 20  # that a checkpoint can keep of the scratch folder
FREEZE_SECONDS = 10.0  # for a copy to be made, or a cell to be taken
FOREVER = 10**9  # seconds of CPU: each cell's are watched from here
PID_DIGITS = 11  # with the mark before it; `int` refuses what is much longer
CHUNK = 1 << 16
READY = select.POLLIN | select.POLLHUP
ENDED = "The interpreter has ended: its variables are gone."


class Lost(Exception):
    """The interpreter is gone; says why."""


class Refused(Exception):
    """A checkpoint cannot be had; the session goes on. Says why."""


class Copy:
    """A frozen copy, and what the writable folders held when it was made.

    number: in the worker's /proc. memory: bytes, most of them shared by fork.
    """

    def __init__(self, pid: int, number: int, memory: int) -> None:
        self.pid = pid
        self.number = number
        self.ended = os.pidfd_open(pid)
        self.memory = memory
        self.folders: dict[str, Snapshot] = {}

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.ended, number)

    @property
    def is_over(self) -> bool:
        poller = select.poll()
        poller.register(self.ended, select.POLLIN)
        return bool(poller.poll(0))

    def end(self) -> None:
        self.signal(signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # it ended before, and was reaped
            os.waitid(os.P_PIDFD, self.ended, os.WEXITED)
        os.close(self.ended)


class Keeper:
    """Serves one session, until the worker's channel closes.

    limits: those of memory, files and processes that no cell's own exceed. baseline: resident bytes of the warm
    interpreter.
    """

    def __init__(
        self, channel: socket.socket, setting: child.Setting, nothing: int, limits: dict[str, Any], baseline: int
    ) -> None:
        self._channel = channel
        self._setting = setting
        self._limits = limits
        self._proc = setting.world.proc
        self._copies: dict[str, Copy] = {}
        self._cause = ""
        self._baseline = baseline
        os.mkdir(setting.scratch, 0o700)
        self._control, theirs = socket.socketpair()
        self._control.settimeout(FREEZE_SECONDS)
        reads, writes = zip(os.pipe(), os.pipe(), strict=True)
        for fd in reads:
            os.set_blocking(fd, False)
        self._pipes = dict.fromkeys(reads, Capture(1))  # this process keeps the writing ends too: they never hang up
        ceiling = limits | {"cpu_seconds": FOREVER, "processes": limits["processes"] + CHECKPOINTS + 2}
        keeper = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            cells.serve((nothing, *writes, theirs.fileno()), setting, ceiling, keeper)
        theirs.close()
        self._ended = os.pidfd_open(self._pid)
        self._number = number_of(self._proc, self._pid)

    def serve(self) -> None:
        operations = {
            "cell": self._cell,
            "checkpoint": self._checkpoint,
            "rollback": self._rollback,
            "discard": self._discard,
        }
        wire.send(self._channel, {"memory": self._memory()})
        while (request := wire.receive(self._channel)) is not None:
            try:
                answer = operations[request["op"]](request)
            except Refused as refused:
                answer = {"refused": str(refused)}
            except Lost as lost:
                answer = {"lost": str(lost)}
            except OSError as error:  # no process, no pipe, no folder to be had: the machine's fault
                answer = {"lost": f"sandbox worker: {error}", "fault": True}
            wire.send(self._channel, answer | {"memory": self._memory()})
        end_below(self._proc, ())

    def _cell(self, request: dict[str, Any]) -> dict[str, Any]:
        limits, started = request["limits"], time.monotonic()
        self._pipes = {fd: Capture(limits["output_bytes"]) for fd in self._pipes}
        command = {
            "op": "cell",
            "code": request["code"],
            "stdin": request["stdin"],
            "files": {name: base64.b64decode(content) for name, content in request["files"].items()},
            "echo": request["echo"],
            "output": limits["output_bytes"],
            "limits": self._soft(limits),
        }
        deadlines = self._deadlines(limits["cpu_seconds"], limits["wall_seconds"], limits)
        said = self._ask(command, 1, deadlines)
        early = (
            said.pop(0).removeprefix(cells.EARLY)[: child.NAME_CHARS]
            if said and said[0].startswith(cells.EARLY)
            else None
        )
        if said:
            raised, _, value = said[0].partition("\0")
            status, error_type, line = cell_verdict(early or raised[: child.NAME_CHARS] or None, deadlines.over)
            peak, code = processes.peak(self._proc, self._number), None
        else:
            value = ""
            end, usage = self._bury()
            peak = usage.ru_maxrss << 10
            status, error_type, code, line = verdict(end, 0.0, limits["cpu_seconds"], None, early)
            if deadlines.over:
                status, error_type, line = cell_verdict(None, deadlines.over)
            self._cause = f"its code ended the interpreter ({line or 'exit code 0'})"
        self._read_pipes()
        stdout, stderr = (sink.text() for sink in self._pipes.values())
        for text in filter(None, (self._cause and ENDED, line)):
            stderr += ("\n" if stderr and not stderr.endswith("\n") else "") + text + "\n"
        return {
            "lost": self._cause,
            "status": status,
            "error_type": error_type,
            "stdout": stdout,
            "stderr": stderr,
            "value": value[1:] if value else None,
            "exit_code": code,
            "seconds": time.monotonic() - started,
            "peak_memory": peak,
        }

    def _checkpoint(self, request: dict[str, Any]) -> dict[str, Any]:
        if len(self._copies) >= CHECKPOINTS:
            raise Refused(f"a session keeps {CHECKPOINTS} checkpoints at most: discard some")
        room = 2 * self._limits["memory_mb"]
        if self._held() > room << 20:
            raise Refused(f"the checkpoints of this session hold more than {room} MiB: discard some")
        self._copies[request["checkpoint"]] = self._freeze(None)
        return {}

    def _rollback(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["checkpoint"]
        copy = self._copies.pop(name)
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            self._bury(copy.number)
        if not end_below(self._proc, {*self._frozen(), copy.number}):
            raise OSError("processes of a session would not end")
        if copy.is_over:
            copy.end()
            raise Lost(f"the frozen copy of {name} was ended")
        try:
            for folder, snapshot in copy.folders.items():
                snapshot.restore(folder)
        except OSError as error:
            copy.end()
            if self._setting.world.bounded:  # what takes the room, or bars the way, can only be the session's own
                raise Lost(f"the files of {name} could not be put back: {error}") from error
            raise
        self._forget()
        self._pid, self._number, self._ended, self._cause = copy.pid, copy.number, copy.ended, ""
        copy.signal(cells.WAKE)
        try:
            self._copies[name] = self._freeze(copy.folders)
        except Refused as refused:
            raise Lost(f"{name} could not be kept: {refused}") from refused
        return {}

    def _discard(self, request: dict[str, Any]) -> dict[str, Any]:
        copy = self._copies.pop(request["checkpoint"], None)
        if copy is not None:
            copy.end()
        return {}

    def _freeze(self, folders: dict[str, Snapshot] | None) -> Copy:
        """A new frozen copy. folders: what the writable folders hold, None to have it taken.

        Raises Refused, Lost where the interpreter did not live through it.
        """
        said = self._ask({"op": "freeze"}, 2, self._deadlines(math.inf, FREEZE_SECONDS, self._limits))
        if cells.FAILED in said:
            raise Refused("no further process can be made for a checkpoint: its cells left too many running")
        pid = next((int(text[1:]) for text in said if text[1:].isdecimal() and len(text) <= PID_DIGITS), 0)
        number = number_of(self._proc, pid) if pid != self._pid else 0
        if len(said) < 2 or number in (0, *self._frozen()):
            os.kill(self._pid, signal.SIGKILL)
            self._bury()
            self._cause = "its code kept the interpreter from being copied"
            raise Lost(self._cause)
        copy = Copy(pid, number, max(0, resident(self._proc, number) - self._baseline))
        copy.signal(signal.SIGCONT)  # it was stopped with the others
        copy.signal(cells.WAKE)
        try:
            copy.folders = self._taken() if folders is None else folders
        except OSError as error:
            copy.end()
            raise Refused(f"no checkpoint: {error}") from error
        return copy

    def _taken(self) -> dict[str, Snapshot]:
        """What the writable folders hold. Raises OSError."""
        before = next(reversed(self._copies.values())).folders if self._copies else {}
        return {folder: Snapshot(folder, SCRATCH_BYTES, before.get(folder)) for folder in self._setting.world.writable}

    def _deadlines(self, cpu: float, wall: float, limits: dict[str, Any]) -> Deadlines:
        world = self._setting.world
        watchdog = Watchdog(world, limits, self._baseline, self._frozen())
        return Deadlines(self._pid, cpu, wall, watchdog)

    # What stands between an operation and the processes.

    def _ask(self, command: dict[str, Any], want: int, deadlines: Deadlines) -> list[str]:
        """What the session's processes said to a command, at most `want` of it; less where the interpreter ended.

        All are stopped again afterwards.
        """
        if not self._pid:
            raise Lost(self._cause)
        token = os.urandom(16)
        heard = bytearray()
        said: list[str] = []
        self._signal_all(signal.SIGCONT)
        try:
            self._control.sendall(wire.framed(marshal.dumps(command | {"token": token})))
        except OSError:  # it takes no more: a cell closed the channel, or left something that reads from it
            os.kill(self._pid, signal.SIGKILL)
        control, channel = self._control.fileno(), self._channel.fileno()
        poller = select.poll()
        for fd in (self._ended, control, channel, *self._pipes):
            poller.register(fd, READY)
        while True:
            ready = {fd for fd, _ in poller.poll(math.ceil(1000 * deadlines.wait()))}
            if channel in ready:  # nobody waits for the answer any more
                end_below(self._proc, ())
                os._exit(0)
            if control in ready:
                chunk = b""
                with contextlib.suppress(ConnectionResetError):  # it ended with a command unread
                    chunk = self._control.recv(CHUNK)
                heard += chunk
                for text in _said(heard, token, 16 * command.get("output", 0) + 4096):
                    if not (said and text.startswith(cells.EARLY)):  # it comes first and once
                        said.append(text)
                if not chunk:
                    poller.unregister(control)
            if self._ended in ready or cells.FAILED in said:
                break
            if sum(not text.startswith(cells.EARLY) for text in said) >= want:
                break
            self._read_pipes(ready)
            deadlines.check(self._proc, self._frozen())
        self._signal_all(signal.SIGSTOP)
        while (orphan := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and orphan.si_pid != self._pid:
            os.waitpid(orphan.si_pid, 0)
        return said

    def _read_pipes(self, ready: set[int] | None = None) -> None:
        """Read what is there; of those in `ready` once, of all until they are empty where it is None."""
        for fd, sink in self._pipes.items():
            with contextlib.suppress(BlockingIOError):
                if ready is not None:
                    if fd in ready:
                        sink.add(os.read(fd, CHUNK))
                    continue
                while True:
                    sink.add(os.read(fd, CHUNK))

    def _forget(self) -> None:
        """Drop what was said and printed before a rollback."""
        self._read_pipes()
        self._control.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while self._control.recv(CHUNK):
                pass
        self._control.settimeout(FREEZE_SECONDS)

    def _signal_all(self, number: int) -> None:
        if not self._setting.world.kill_reaches:
            signal_below(self._proc, self._frozen(), number)
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, number)  # frozen copies too: they wait for another signal, stopped or not

    def _bury(self, *keep: int) -> tuple[int, resource.struct_rusage]:
        """Reap the interpreter, which has ended or was killed, and end what it left; (its wait status, usage)."""
        _, status, usage = os.wait4(self._pid, 0)
        os.close(self._ended)
        self._pid = 0
        end_below(self._proc, {*self._frozen(), *keep})
        return status, usage

    def _frozen(self) -> set[int]:
        return {copy.number for copy in self._copies.values()}

    def _held(self) -> int:
        """Bytes that the checkpoints take at most: what copies share by fork counts for each of them."""
        contents = {
            id(entry.content): len(entry.content)
            for copy in self._copies.values()
            for snapshot in copy.folders.values()
            for entry in snapshot.entries.values()
            if entry.content is not None
        }
        return sum(copy.memory for copy in self._copies.values()) + sum(contents.values())

    def _memory(self) -> int:
        """Bytes that this session takes at most, besides what it shares with every other."""
        own = max(0, resident(self._proc, self._number) - self._baseline) if self._pid else 0
        return own + (self._held() if self._copies else 0)

    def _soft(self, limits: dict[str, Any]) -> list[tuple[int, int]]:
        """The limits that the interpreter sets on itself for a cell."""
        return [
            (resource.RLIMIT_AS, self._setting.baseline + (limits["memory_mb"] << 20)),
            (resource.RLIMIT_FSIZE, limits["file_mb"] << 20),
            (resource.RLIMIT_NOFILE, limits["open_files"]),
            (resource.RLIMIT_NPROC, self._setting.world.tasks + limits["processes"] + CHECKPOINTS + 2),
        ]


def _said(heard: bytearray, token: bytes, cap: int) -> list[str]:
    """Take out of `heard` what stands between two tokens; of the rest keep what may yet become that, up to `cap`."""
    found: list[str] = []
    while (start := heard.find(token)) >= 0:
        end = heard.find(token, start + len(token))
        if end < 0:
            del heard[: start if len(heard) - start <= cap else len(heard)]
            return found
        found.append(heard[start + len(token) : end].decode("utf-8", "replace"))
        del heard[: end + len(token)]
    del heard[: max(0, len(heard) - len(token) + 1)]
    return found
