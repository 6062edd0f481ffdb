"""Zygote: a process that imports a profile's packages once and forks workers.

A forked worker costs milliseconds and shares the packages' memory. The pool spawns the zygote (never forks it: the
pool's process may hold gigabytes, locks and secrets). Standard library only. It runs no untrusted code; it holds its
workers' processes, and when it ends, for whatever reason, all that they run ends too.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from importlib import import_module
from typing import NamedTuple

from retcon.sandbox.jail import child, kernel
from retcon.sandbox.jail.messages import Failed, Forked, ForkOrder, Imported, Message, decoded, encoded
from retcon.sandbox.jail.scratch import remove, remove_abandoned

OOM_SCORE = "500"  # if the machine runs out of memory, kill one of ours before the sandbox's user
MESSAGE_BYTES = 1 << 16
SWEEP_SECONDS = 1.0  # for processes that fork as fast as they are ended
FIRST_FD = 3


class Order(NamedTuple):
    """Order of a forked worker: the fd of its channel, and the host's request."""

    channel: int
    asked: ForkOrder


class Worker(NamedTuple):
    """A forked worker. pid: of its first process. root: its folder on the host."""

    pid: int
    root: str


class _Stop(BaseException):
    """The process that started this one is gone."""


def main(fd: int, folder: str, exercise: str, modules: list[str]) -> Order:
    """Import `modules`, then fork workers on orders from `fd`, until it closes.

    folder: the pool's, removed at the end if the pool was killed. exercise: see `profiles.Profile`. Returns in the
    forked workers only.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    zygote = _Zygote(socket.socket(fileno=fd))
    try:
        signal.signal(signal.SIGTERM, zygote.stop)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)  # adopts a killed worker's processes, to end them
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write(OOM_SCORE)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # calls of its user cannot write its memory
        problem = preload(modules, exercise)
        packages = sorted({name.partition(".")[0] for name in sys.modules})
        zygote.send(Failed(problem) if problem else Imported(packages))
        if not problem:
            return zygote.serve()
    except (_Stop, ConnectionError):
        pass
    zygote.end()
    remove_abandoned(folder)
    os._exit(0)


def preload(modules: list[str], exercise: str = "") -> str:
    """Import modules and prepare for forking; return the problem, "" if none."""
    for name in modules:
        try:
            import_module(name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an import may raise anything
            return f"cannot import {name}: {type(error).__name__}: {error}"
        if threads := _threads():
            return (
                f"{name} starts {threads} thread(s) when it is imported, which a fork would lose: it cannot be "
                "preloaded; leave it out, and each call imports it itself"
            )
    for name in _lazy_imports(exercise) if exercise else ():
        with contextlib.suppress(ImportError):
            import_module(name)
    if (nnpack := sys.modules.get("torch.backends.nnpack")) is not None:
        nnpack.is_available()  # reads /proc/cpuinfo once, which calls cannot read: torch would warn on their stderr
    if threads := _threads():
        return f"{modules[-1]} starts {threads} thread(s) when it is used, which a fork would lose: leave it out"
    for stream in (sys.stdout, sys.stderr):  # else every call would print an import's output again
        stream.flush()
    child.prepare()
    gc.collect()
    gc.freeze()
    gc.disable()
    return ""


def _threads() -> int:
    """Count this process's threads besides the current one."""
    return len(os.listdir("/proc/self/task")) - 1


def _lazy_imports(exercise: str) -> list[str]:
    """Return a program's further imports, found by running it in a fork."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            exec(exercise, {})
        finally:  # also after an error
            os.write(writes, "\n".join(sys.modules).encode())
            os._exit(0)
    os.close(writes)
    with open(reads) as file:
        names = file.read().split()
    os.waitpid(pid, 0)
    return [name for name in names if name not in sys.modules and name != "__main__"]


class _Zygote:
    """The zygote's loop. workers: by the pidfd of their first process."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.pid = os.getpid()
        self.stopping = False
        self.workers: dict[int, Worker] = {}

    def stop(self, _number: int, _frame: object) -> None:
        """Stop on a signal, once: the end itself must not be interrupted."""
        if os.getpid() == self.pid and not self.stopping:
            self.stopping = True
            raise _Stop

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        socket.send_fds(self.channel, [encoded(message)], fds)

    def serve(self) -> Order:
        poller = select.poll()
        poller.register(self.channel, select.POLLIN)
        while True:
            for fd, _ in poller.poll():
                if fd != self.channel.fileno():
                    poller.unregister(fd)
                    self.reap(fd)
                    continue
                message, fds, _, _ = socket.recv_fds(self.channel, MESSAGE_BYTES, 1)
                if not message:
                    self.stopping = True
                    raise _Stop
                asked = decoded(message)
                if not isinstance(asked, ForkOrder):
                    raise ValueError(f"a zygote forks; got {type(asked).__name__}")
                order = Order(fds[0], asked)
                try:
                    pid = os.fork()
                except OSError as error:
                    os.close(order.channel)
                    self.send(Failed(f"cannot fork: {error}"))
                    continue
                if pid == 0:
                    return self.become_worker(order)
                os.close(order.channel)
                worker = os.pidfd_open(pid)
                self.workers[worker] = Worker(pid, asked.root)
                poller.register(worker, select.POLLIN)
                self.send(Forked(pid), (worker,))

    def become_worker(self, order: Order) -> Order:
        """Close all in the fork except log and worker's channel."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.channel.detach()
        if order.channel != FIRST_FD:
            os.dup2(order.channel, FIRST_FD, inheritable=False)
        os.closerange(FIRST_FD + 1, 1 << 20)
        return order._replace(channel=FIRST_FD)

    def reap(self, worker: int) -> None:
        """End all processes of an ended worker, then remove its folder."""
        pid, root = self.workers.pop(worker)
        os.waitpid(pid, 0)
        os.close(worker)
        known = {other.pid for other in self.workers.values()}
        deadline = time.monotonic() + SWEEP_SECONDS
        while (orphans := _children() - known) and time.monotonic() < deadline:  # their children follow
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
            for pid in orphans:
                os.waitpid(pid, 0)
        remove(root)

    def end(self) -> None:
        """End every descendant: orphans become children of this process."""
        self.stopping = True
        with contextlib.suppress(ChildProcessError):  # none is left
            while True:
                for pid in _children():  # which may miss some while others end
                    os.kill(pid, signal.SIGKILL)
                if not os.waitpid(-1, os.WNOHANG)[0]:
                    time.sleep(0.001)


def _children() -> set[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return {int(pid) for pid in file.read().split()}
