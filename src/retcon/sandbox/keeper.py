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

from retcon.sandbox import cells, child, wire
from retcon.sandbox.capture import Capture
from retcon.sandbox.deadlines import Deadlines
from retcon.sandbox.processes import below, children, end_below, resident
from retcon.sandbox.snapshot import Snapshot
from retcon.sandbox.verdict import cell_verdict, verdict

CHECKPOINTS = 16
SCRATCH_BYTES = 64 << 20  # that a checkpoint can keep of the scratch folder
FREEZE_SECONDS = 10.0  # for a copy to be made, or a cell to be taken
FOREVER = 10**9  # seconds of CPU: each cell's are watched from here
CHUNK = 1 << 16
READY = select.POLLIN | select.POLLHUP
ENDED = "The interpreter has ended: its variables are gone."


class Lost(Exception):
    """The interpreter is gone; says why."""


class Refused(Exception):
    """A checkpoint cannot be had; the session goes on. Says why."""


class Copy:
    """A frozen copy, and the scratch folder as it was when it was made. memory: bytes, most of them shared by fork."""

    snapshot: Snapshot

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended = os.pidfd_open(pid)
        self.memory = resident(pid)[1]

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

    limits: of a cell that brings none of its own, and the most that a cell's own may be.
    """

    def __init__(self, channel: socket.socket, setting: child.Setting, nothing: int, limits: dict[str, Any]) -> None:
        self._channel = channel
        self._setting = setting
        self._limits = limits
        self._alone = setting.world.processes and os.getpid() == 1
        self._copies: dict[str, Copy] = {}
        self._cause = ""
        self._shared = resident(os.getpid())[1]
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
        end_below(())

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
        clocks = Deadlines(self._pid, limits["cpu_seconds"], limits["wall_seconds"])
        said = self._ask(command, 1, clocks)
        if said:
            raised, _, value = said[0].partition("\0")
            status, error_type, line = cell_verdict(raised or None, clocks.late)
            peak, code = resident(self._pid)[0], None
        else:
            value = ""
            end, usage = self._bury()
            peak = usage.ru_maxrss << 10
            status, error_type, code, line = verdict(end, 0.0, limits["cpu_seconds"], None, None)
            if clocks.late:
                status, error_type, line = cell_verdict(None, clocks.late)
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
        for later in list(self._copies)[list(self._copies).index(name) + 1 :]:
            self._copies.pop(later).end()
        copy = self._copies.pop(name)
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            self._bury(copy.pid)
        if not end_below(self._frozen() | {copy.pid}):
            raise OSError("processes of a session would not end")
        if copy.is_over:
            copy.end()
            raise Lost(f"the frozen copy of {name} was ended")
        copy.snapshot.restore(self._setting.scratch)
        self._forget()
        self._pid, self._ended, self._cause = copy.pid, copy.ended, ""
        copy.signal(cells.WAKE)
        self._copies[name] = self._freeze(copy.snapshot)
        return {}

    def _discard(self, request: dict[str, Any]) -> dict[str, Any]:
        copy = self._copies.pop(request["checkpoint"], None)
        if copy is not None:
            copy.end()
        return {}

    def _freeze(self, snapshot: Snapshot | None) -> Copy:
        """A new frozen copy. snapshot: of the scratch folder as it is, None to take one.

        Raises Refused, Lost where the interpreter did not live through it.
        """
        said = self._ask({"op": "freeze"}, 2, Deadlines(self._pid, math.inf, FREEZE_SECONDS))
        if cells.FAILED in said:
            raise Refused("no further process can be made for a checkpoint: its cells left too many running")
        pid = next((int(text[1:]) for text in said if text[1:].isdecimal()), 0)
        if len(said) < 2 or pid in (0, self._pid, *self._frozen()) or pid not in children(os.getpid()):
            os.kill(self._pid, signal.SIGKILL)
            self._bury()
            self._cause = "its code kept the interpreter from being copied"
            raise Lost(self._cause)
        previous = next(reversed(self._copies.values())).snapshot if self._copies else None
        copy = Copy(pid)
        copy.signal(signal.SIGCONT)  # it was stopped with the others
        copy.signal(cells.WAKE)
        try:
            copy.snapshot = snapshot or Snapshot(self._setting.scratch, SCRATCH_BYTES, previous)
        except OSError as error:
            copy.end()
            raise Refused(f"no checkpoint: {error}") from error
        return copy

    # What stands between an operation and the processes.

    def _ask(self, command: dict[str, Any], want: int, clocks: Deadlines) -> list[str]:
        """What the session's processes said to a command, at most `want` of it; less where the interpreter ended.

        All are stopped again afterwards.
        """
        if not self._pid:
            raise Lost(self._cause)
        token = os.urandom(16)
        heard, said = bytearray(), []
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
            ready = {fd for fd, _ in poller.poll(math.ceil(1000 * clocks.wait()))}
            if channel in ready:  # nobody waits for the answer any more
                end_below(())
                os._exit(0)
            if control in ready:
                chunk = b""
                with contextlib.suppress(ConnectionResetError):  # it ended with a command unread
                    chunk = self._control.recv(CHUNK)
                heard += chunk
                said += _taken(heard, token, 16 * command.get("output", 0) + 4096)
                if not chunk:
                    poller.unregister(control)
            if len(said) >= want or self._ended in ready or cells.FAILED in said:
                break
            self._read_pipes(ready)
            clocks.check(self._frozen())
        self._signal_all(signal.SIGSTOP)
        while (orphan := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and orphan.si_pid != self._pid:
            os.waitpid(orphan.si_pid, 0)
        return said[:want]

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
        with contextlib.suppress(ProcessLookupError):
            if self._alone:
                os.kill(-1, number)  # all of this namespace; frozen copies wait for another signal, stopped or not
                return
            for pid in below(self._frozen()):
                os.kill(pid, number)

    def _bury(self, *keep: int) -> tuple[int, resource.struct_rusage]:
        """Reap the interpreter, which has ended or was killed, and end what it left; (its wait status, usage)."""
        _, status, usage = os.wait4(self._pid, 0)
        os.close(self._ended)
        self._pid = 0
        end_below(self._frozen() | set(keep))
        return status, usage

    def _frozen(self) -> set[int]:
        return {copy.pid for copy in self._copies.values()}

    def _held(self) -> int:
        """Bytes that the checkpoints take at most: what copies share by fork counts for each of them."""
        contents = {
            id(entry.content): len(entry.content)
            for copy in self._copies.values()
            for entry in copy.snapshot.entries.values()
            if entry.content is not None
        }
        return sum(max(0, copy.memory - self._shared) for copy in self._copies.values()) + sum(contents.values())

    def _memory(self) -> int:
        """Bytes that this session takes at most, besides what it shares with every other."""
        own = max(0, resident(self._pid)[1] - self._shared) if self._pid else 0
        return own + (self._held() if self._copies else 0)

    def _soft(self, limits: dict[str, Any]) -> list[tuple[int, int]]:
        """The limits that the interpreter sets on itself for a cell."""
        return [
            (resource.RLIMIT_AS, self._setting.baseline + (limits["memory_mb"] << 20)),
            (resource.RLIMIT_FSIZE, limits["file_mb"] << 20),
            (resource.RLIMIT_NOFILE, limits["open_files"]),
            (resource.RLIMIT_NPROC, self._setting.world.tasks + limits["processes"] + CHECKPOINTS + 2),
        ]


def _taken(heard: bytearray, token: bytes, cap: int) -> list[str]:
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
