"""A zygote: a Python process that imports a profile's packages once and forks a worker whenever the pool asks.

A worker that is forked costs milliseconds and shares the packages' memory. Started by the pool as a process of its own
(never forked from it: that process may hold gigabytes, locks and secrets). Standard library only. It runs no untrusted
code; it holds the workers it forked, and when it ends, by whatever cause, none of what they run stays.
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

OOM_SCORE = "500"  # if the machine runs out of memory, sooner one of ours than the process that uses the sandbox
MESSAGE_BYTES = 1 << 16
SWEEP_SECONDS = 1.0  # for processes that fork as fast as they are ended
FIRST_FD = 3


class Order(NamedTuple):
    """What a forked worker is: the fd of its channel, and what the host asked for."""

    channel: int
    asked: ForkOrder


class Worker(NamedTuple):
    """pid: of its first process. root: its folder on the host."""

    pid: int
    root: str


class _Stop(BaseException):
    """The process that started this one is gone."""


def main(fd: int, folder: str, exercise: str, modules: list[str]) -> Order:
    """Import `modules`, then fork a worker for each order on the socket `fd` until it closes; then end.

    folder: the pool's, removed at the end where the pool was killed and cannot. exercise: see `profiles.Profile`.
    Returns in the forked workers only.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    zygote = _Zygote(socket.socket(fileno=fd))
    try:
        signal.signal(signal.SIGTERM, zygote.stop)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)  # what a killed worker leaves behind comes here to be ended
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write(OOM_SCORE)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # its user's calls cannot write the memory that workers are forked with
        problem = preload(modules, exercise)
        packages = sorted({name.partition(".")[0] for name in sys.modules})
        zygote.say(Failed(problem) if problem else Imported(packages))
        if not problem:
            return zygote.serve()
    except (_Stop, ConnectionError):
        pass
    zygote.end()
    remove_abandoned(folder)
    os._exit(0)


def preload(modules: list[str], exercise: str = "") -> str:
    """Import them and make this process fit for forking; why it is not, empty where it is."""
    for name in modules:
        try:
            import_module(name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a package may raise anything while it is imported
            return f"cannot import {name}: {type(error).__name__}: {error}"
        if threads := _threads():
            return (
                f"{name} starts {threads} thread(s) when it is imported, which a fork would lose: it cannot be "
                "preloaded; leave it out, and each call imports it itself"
            )
    for name in _used_by(exercise) if exercise else ():
        with contextlib.suppress(ImportError):
            import_module(name)
    if (nnpack := sys.modules.get("torch.backends.nnpack")) is not None:
        nnpack.is_available()  # reads /proc/cpuinfo once; calls have none to read, and torch complains to their stderr
    if threads := _threads():
        return f"{modules[-1]} starts {threads} thread(s) when it is used, which a fork would lose: leave it out"
    for stream in (sys.stdout, sys.stderr):  # what an import printed must not come out once more in every call
        stream.flush()
    child.prepare()
    gc.collect()
    gc.freeze()
    gc.disable()
    return ""


def _threads() -> int:
    """Of this process, beside the one that runs."""
    return len(os.listdir("/proc/self/task")) - 1


def _used_by(exercise: str) -> list[str]:
    """What a program imports beyond what is there already, found by running it in a fork."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            exec(exercise, {})
        finally:  # of what it got to
            os.write(writes, "\n".join(sys.modules).encode())
            os._exit(0)
    os.close(writes)
    with open(reads) as file:
        names = file.read().split()
    os.waitpid(pid, 0)
    return [name for name in names if name not in sys.modules and name != "__main__"]


class _Zygote:
    """workers: each by the pidfd of its first process."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.pid = os.getpid()
        self.stopping = False
        self.workers: dict[int, Worker] = {}

    def stop(self, _number: int, _frame: object) -> None:
        """At most once: the end itself must not be interrupted."""
        if os.getpid() == self.pid and not self.stopping:
            self.stopping = True
            raise _Stop

    def say(self, message: Message, fds: tuple[int, ...] = ()) -> None:
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
                    raise ValueError(f"a zygote forks, and was told to {type(asked).__name__}")
                order = Order(fds[0], asked)
                try:
                    pid = os.fork()
                except OSError as error:
                    os.close(order.channel)
                    self.say(Failed(f"cannot fork: {error}"))
                    continue
                if pid == 0:
                    return self.leave(order)
                os.close(order.channel)
                worker = os.pidfd_open(pid)
                self.workers[worker] = Worker(pid, asked.root)
                poller.register(worker, select.POLLIN)
                self.say(Forked(pid), (worker,))

    def leave(self, order: Order) -> Order:
        """In the fork: keep nothing of the zygote's but its memory, its log and the worker's channel."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.channel.detach()
        if order.channel != FIRST_FD:
            os.dup2(order.channel, FIRST_FD, inheritable=False)
        os.closerange(FIRST_FD + 1, 1 << 20)
        return order._replace(channel=FIRST_FD)

    def reap(self, worker: int) -> None:
        """A worker ended: so must all that it ran, and then what is left of its folder goes."""
        pid, root = self.workers.pop(worker)
        os.waitpid(pid, 0)
        os.close(worker)
        known = {other.pid for other in self.workers.values()}
        deadline = time.monotonic() + SWEEP_SECONDS
        while (orphans := _children() - known) and time.monotonic() < deadline:  # whose own children come here next
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
            for pid in orphans:
                os.waitpid(pid, 0)
        remove(root)

    def end(self) -> None:
        """End every descendant: whatever loses its parent becomes a child of this process."""
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
