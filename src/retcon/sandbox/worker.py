"""A worker: a small warm interpreter that forks a child for each call, watches it, and tells how it ended.

Forked from a zygote (`zygote`), whose packages it has. Standard library only, and little of it: the smaller this
process, the faster it forks.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import signal
import socket
import time
from typing import Any

from retcon.sandbox import child, wire
from retcon.sandbox.capture import Capture
from retcon.sandbox.isolate import World, die_with_parent, isolate
from retcon.sandbox.keeper import Keeper
from retcon.sandbox.verdict import verdict

GRACE_SECONDS = 0.2  # between the wall clock's SIGXCPU, at which printed output is written out, and SIGKILL
SWEEP_SECONDS = 5.0
CHUNK = 1 << 16
READY = select.POLLIN | select.POLLHUP


def main(fd: int, root: str, tier: str) -> None:
    """Serve calls from the socket `fd` until it closes.

    root: folder for scratch where no tmpfs can be had. tier: the tier asked for, empty for the best that can be had.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    channel = socket.socket(fileno=fd)
    try:
        world = isolate(root, tier)
    except OSError as error:
        wire.send(channel, {"error": str(error)})
        return
    os.chdir(world.root)
    scratch = world.root + "/scratch"
    os.environ.update(HOME=scratch, TMPDIR=scratch)
    child.install_cpu_handler()
    wire.send(
        channel,
        {"tier": world.tier, "network": world.network, "files": world.files, "own_user": world.own_user},
    )
    Worker(channel, world, scratch).serve()


class Worker:
    """The loop: one call at a time."""

    def __init__(self, channel: socket.socket, world: World, scratch: str) -> None:
        self.channel = channel
        self.nothing = os.open(os.devnull, os.O_RDONLY)
        self.dirty = False
        gc.collect()
        gc.freeze()
        gc.disable()
        self.setting = child.Setting(world, scratch, child.address_space())

    def serve(self) -> None:
        while (call := wire.receive(self.channel)) is not None:
            if call.get("op") == "session":  # this worker is the session's from here on
                Keeper(self.channel, self.setting, self.nothing, call["limits"]).serve()
                return
            try:
                answer = self.call(call)
            except OSError as error:  # no process, no pipe, no folder to be had: the machine's fault, not the program's
                answer = {"status": "infrastructure", "stderr": f"sandbox worker: {error}"}
                self.dirty = True
            answer["retire"] = self.dirty
            wire.send(self.channel, answer)
            if self.dirty:
                return

    def call(self, call: dict[str, Any]) -> dict[str, Any]:
        os.mkdir(self.setting.scratch, 0o700)
        started = time.monotonic()
        running = Running(call, self)
        running.watch()
        status, usage = running.end()
        seconds = time.monotonic() - started
        self.clear()
        limits = call["limits"]
        raised, value = running.record()
        name, error_type, exit_code, line = verdict(
            status,
            usage.ru_utime + usage.ru_stime,
            limits["cpu_seconds"],
            limits["wall_seconds"] if running.late else None,
            raised,
        )
        stderr = running.stderr.text()
        if line:
            stderr += ("\n" if stderr and not stderr.endswith("\n") else "") + line + "\n"
        return {
            "status": name,
            "error_type": error_type,
            "stdout": running.stdout.text(),
            "stderr": stderr,
            "value": value,
            "exit_code": exit_code,
            "seconds": seconds,
            "peak_memory": usage.ru_maxrss << 10,
        }

    def sweep(self) -> None:
        """End every process that the call left behind."""
        if self.setting.world.processes and os.getpid() == 1:
            if _reap():
                return
            os.kill(-1, signal.SIGKILL)  # all of this namespace but its init, which is this process
        deadline = time.monotonic() + SWEEP_SECONDS
        while not _reap():
            for pid in _children():
                os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                self.dirty = True
                return
            time.sleep(0.001)

    def clear(self) -> None:
        """Remove what the call wrote. A worker that cannot is replaced, and its tmpfs goes with it."""
        try:
            os.rmdir(self.setting.scratch)
        except OSError:
            _remove(self.setting.scratch)
        if os.listdir(self.setting.world.root):
            self.dirty = True


class Running:
    """A call's process and the ends of its pipes that the worker holds."""

    def __init__(self, call: dict[str, Any], worker: Worker) -> None:
        limits = call["limits"]
        self.worker = worker
        self.late = False
        self.wall_seconds = limits["wall_seconds"]
        self.stdout, self.stderr = Capture(limits["output_bytes"]), Capture(limits["output_bytes"])
        self.said = Capture(16 * limits["output_bytes"] + 4096)
        self.token = os.urandom(16)
        stdin = _readable(call["stdin"]) if call["stdin"] else worker.nothing
        pipes = [os.pipe(), os.pipe(), os.pipe()]
        self.pid = os.fork()
        if self.pid == 0:
            streams = (stdin, pipes[0][1], pipes[1][1], pipes[2][1])
            child.run(call, self.token, streams, worker.setting)
        self.ended = os.pidfd_open(self.pid)
        self.open: dict[int, Capture] = {}
        for (reads, writes), sink in zip(pipes, (self.stdout, self.stderr, self.said), strict=True):
            os.close(writes)
            self.open[reads] = sink
        if stdin != worker.nothing:
            os.close(stdin)

    def watch(self) -> None:
        """Read what the process writes until it ends or the wall clock ends it."""
        channel = self.worker.channel.fileno()
        poller = select.poll()
        for fd in (self.ended, channel, *self.open):
            poller.register(fd, READY)
        deadline = time.monotonic() + self.wall_seconds
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                os.kill(self.pid, signal.SIGKILL if self.late else signal.SIGXCPU)
                deadline = time.monotonic() + (SWEEP_SECONDS if self.late else GRACE_SECONDS)
                self.late = True
                continue
            ready = poller.poll(left * 1000)
            for fd, _ in ready:
                sink = self.open.get(fd)
                if sink is not None:
                    chunk = os.read(fd, CHUNK)
                    if chunk:
                        sink.add(chunk)
                    else:
                        poller.unregister(fd)
                        os.close(fd)
                        del self.open[fd]
                elif fd == channel:  # nobody waits for the answer any more
                    os.kill(self.pid, signal.SIGKILL)
                    self.worker.sweep()
                    os._exit(0)
            if any(fd == self.ended for fd, _ in ready):
                os.close(self.ended)
                return

    def end(self) -> tuple[int, resource.struct_rusage]:
        """Reap the process, end its descendants, read what is still in the pipes."""
        _, status, usage = os.wait4(self.pid, 0)
        self.worker.sweep()
        for fd, sink in self.open.items():
            os.set_blocking(fd, False)
            try:
                while chunk := os.read(fd, CHUNK):
                    sink.add(chunk)
            except BlockingIOError:  # a writer outlived the sweep
                self.worker.dirty = True
            os.close(fd)
        return status, usage

    def record(self) -> tuple[str | None, str | None]:
        """(name of the uncaught exception, the value) as the child reported them, None where it did not."""
        _, found, rest = self.said.data().partition(self.token)
        body, complete, _ = rest.partition(self.token)
        if not (found and complete):
            return None, None
        raised, _, value = body.decode("utf-8", "replace").partition("\0")
        return raised or None, value[1:] if value else None


def _readable(text: str) -> int:
    fd = os.memfd_create("stdin")
    with open(fd, "wb", closefd=False) as file:
        file.write(text.encode("utf-8", "surrogateescape"))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _remove(folder: str) -> None:
    """Remove it, as far as it can be. Not shutil's, which brings three compression libraries into every fork."""
    with contextlib.suppress(OSError, RecursionError):
        os.chmod(folder, 0o700)
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _remove(entry.path)
                else:
                    os.unlink(entry.path)
        os.rmdir(folder)


def _reap() -> bool:
    """Reap what has ended; whether no child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]
