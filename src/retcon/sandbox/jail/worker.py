"""Worker: a small warm interpreter that forks a child for each call.

It watches the child and reports its end. Forked from a zygote (`zygote`), whose packages it has. Standard library only,
and little of it: the smaller this process, the faster it forks.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import signal
import socket
import sys
import time

from retcon.sandbox.jail import child, scratch, usage
from retcon.sandbox.jail import messages as wire
from retcon.sandbox.jail.capture import Capture, Record
from retcon.sandbox.jail.confine.confinement import Confinement
from retcon.sandbox.jail.confine.isolate import die_with_parent, isolate
from retcon.sandbox.jail.confine.users import pick_uid
from retcon.sandbox.jail.messages import CallEnded, Failed, ForkOrder, OpenSession, Outcome, RunCall, SessionClosed
from retcon.sandbox.jail.program import reseed
from retcon.sandbox.jail.session.keeper import Keeper
from retcon.sandbox.jail.watchdog import Watchdog, append_lines, verdict

GRACE_SECONDS = 0.2  # between the wall clock's SIGXCPU, at which printed output is written out, and SIGKILL
SWEEP_SECONDS = 5.0
CHUNK = 1 << 16
GROWN = 4 << 20  # bytes of address space; a worker that grew by more retires
LARGE = 1 << 20  # characters of an answer, after which it retires too: making it takes several times that
READY = select.POLLIN | select.POLLHUP


def main(fd: int, asked: ForkOrder) -> None:
    """Serve calls from the socket `fd` until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)  # process 1 cannot be sent a signal that it does not handle
    die_with_parent()
    channel = socket.socket(fileno=fd)
    while os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) < child.RECORD_FD:  # reserve a call's streams
        pass
    try:
        uid = pick_uid(*asked.uids) if asked.uids and os.geteuid() == 0 else None
        confinement = isolate(asked.root, asked.tier, uid)
    except OSError as error:
        wire.send(channel, Failed(str(error)))
        return
    os.chdir(confinement.root)
    folder = confinement.root + "/scratch"
    os.environ.update(HOME=folder, TMPDIR=folder, USER="sandbox", LOGNAME="sandbox")
    if confinement.tier != "namespaces":  # joblib, which sklearn imports, warns if it cannot start processes
        os.environ["JOBLIB_MULTIPROCESSING"] = "0"
    wire.send(channel, confinement.facts())
    Worker(channel, confinement, folder).serve()


class Worker:
    """Worker loop, one call at a time. dirty: retire after this call. ran: whether its program was started.

    resident: bytes in memory at the fork, of the setting's `baseline`, which do not count for the program, nor do its
    input files; memory that an earlier call left does not extend its limit.
    """

    def __init__(self, channel: socket.socket, confinement: Confinement, folder: str) -> None:
        self.channel = channel
        self.nothing = os.open(os.devnull, os.O_RDONLY)
        self.dirty = False
        self.ran = False
        sys.argv = [child.FILENAME]
        reseed()
        gc.collect()
        gc.freeze()
        gc.disable()
        self.statm = usage.open_own(confinement.proc)
        self.first_size, self.resident = usage.own(self.statm)
        self.setting = child.Setting(confinement, folder, self.first_size)
        self.folders = [os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for folder in confinement.writable]

    def serve(self) -> None:
        while (asked := wire.receive(self.channel)) is not None:
            self.measure()
            if isinstance(asked, OpenSession):
                if not self.session(asked):
                    return
                wire.send(self.channel, SessionClosed(self.dirty))
                if self.dirty:
                    return
                continue
            if not isinstance(asked, RunCall):
                raise ValueError(f"a worker runs calls; got {type(asked).__name__}")
            self.ran = False
            try:
                outcome = self.call(asked)
            except OSError as error:  # no process, pipe or folder could be made: the machine's fault
                tier = self.setting.confinement.tier if self.ran else None
                outcome = Outcome("infrastructure", stderr=f"sandbox worker: {error}", tier=tier)
                self.dirty = True
            grown = self.setting.baseline - self.first_size
            self.dirty |= grown > GROWN or _characters(outcome) > LARGE
            wire.send(self.channel, CallEnded(outcome, self.dirty))
            if self.dirty:
                return
            del asked, outcome  # the next call could read them in the inherited frames

    def session(self, asked: OpenSession) -> bool:
        """Serve a session; return whether it was closed. Remains of it make the worker `dirty`."""
        before = self.descriptors()
        keeper = Keeper(self.channel, self.setting, self.nothing, asked, self.resident)
        if not keeper.serve():
            return False
        del keeper  # which closes its sockets
        for fd in self.descriptors() - before:
            os.close(fd)
        self.sweep()
        self.clear()
        self.measure()
        self.dirty |= self.setting.baseline - self.first_size > GROWN
        return True

    def descriptors(self) -> set[int]:
        """Return this process's open descriptors, without those of the listing itself."""
        return {int(fd) for fd in usage.listing(self.setting.confinement.proc, "self/fd") if _is_open(int(fd))}

    def measure(self) -> None:
        """Update the memory baseline, before a fork."""
        size, self.resident = usage.own(self.statm)
        if size != self.setting.baseline:
            self.setting = self.setting._replace(baseline=size)

    def call(self, call: RunCall) -> Outcome:
        """Run one program. Raises OSError."""
        os.mkdir(self.setting.scratch, 0o700)
        self.setting.confinement.kills.note()
        started = time.monotonic()
        running = RunningCall(call, self)
        running.watch()
        status, used = running.end()
        self.ran = True
        seconds = time.monotonic() - started
        files = scratch.collect(self.setting.scratch, call.fetch)
        self.clear()
        limits = call.limits
        raised, value = running.record()
        name, error_type, exit_code, line = verdict(
            status,
            used.ru_utime + used.ru_stime,
            limits.cpu_seconds,
            limits.wall_seconds if running.late else None,
            raised,
            over=running.watchdog.reason,
            machine=running.starved,
        )
        return Outcome(
            status=name,
            error_type=error_type,
            stdout=running.stdout.text(),
            stderr=append_lines(running.stderr.text(), [line], raised),
            value=value,
            exit_code=exit_code,
            seconds=seconds,
            peak_memory=used.ru_maxrss << 10,
            tier=self.setting.confinement.tier,
            files=files,
        )

    def sweep(self) -> None:
        """End every process that the call left behind."""
        deadline = time.monotonic() + SWEEP_SECONDS
        while not _reap():
            self.setting.confinement.kill_all()
            if time.monotonic() > deadline:
                self.dirty = True
                return
            time.sleep(0.0005)

    def clear(self) -> None:
        """Remove the call's files. A worker that cannot is replaced, with its tmpfs and network."""
        if self.setting.confinement.traffic is not None and self.setting.confinement.traffic.seen():
            self.dirty = True
        with contextlib.suppress(OSError):
            os.rmdir(self.setting.scratch)
        for folder in self.folders:  # by descriptor: the call's user may have replaced it by a link
            try:
                os.chmod(folder, self.setting.confinement.mode)
                if os.listdir(folder):
                    scratch.empty_folder(folder)
            except OSError:
                self.dirty = True


class RunningCall:
    """A call's process, and the worker's ends of its pipes."""

    def __init__(self, call: RunCall, worker: Worker) -> None:
        limits = call.limits
        self.worker = worker
        self.late = self.starved = False
        self.wall_seconds = limits.wall_seconds
        self.stdout, self.stderr = Capture(limits.output_bytes), Capture(limits.output_bytes)
        self.token = os.urandom(16)
        self.report = Record(self.token, child.record_bytes(limits.output_bytes))
        stdin = self._readable(call.stdin) if call.stdin else worker.nothing
        pipes = [os.pipe(), os.pipe(), os.pipe()]
        self.setup, setup = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            streams = (stdin, pipes[0][1], pipes[1][1], pipes[2][1])
            child.run(call, self.token, streams, setup, worker.setting)
        os.close(setup)
        self.watchdog = Watchdog(worker.setting.confinement, limits, worker.resident, pid=self.pid)
        self.ended = os.pidfd_open(self.pid)
        self.open: dict[int, Capture | Record] = {}
        sinks: tuple[Capture | Record, ...] = (self.stdout, self.stderr, self.report)
        for (reads, writes), sink in zip(pipes, sinks, strict=True):
            os.close(writes)
            self.open[reads] = sink
        if stdin != worker.nothing:
            os.close(stdin)

    def _readable(self, text: str) -> int:
        """Write stdin to an unnamed file; return its descriptor."""
        path = self.worker.setting.confinement.root + "/stdin"
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            os.unlink(path)
            file.write(text.encode("utf-8", "surrogateescape"))
        return fd

    def watch(self) -> None:
        """Read output until the process ends or the clock ends it."""
        channel = self.worker.channel.fileno()
        poller = select.poll()
        for fd in (self.ended, channel, *self.open):
            poller.register(fd, READY)
        deadline = time.monotonic() + self.wall_seconds
        while True:
            now = time.monotonic()
            if now >= self.watchdog.due and not self.late and self.watchdog.look():
                os.kill(self.pid, signal.SIGKILL)
                self.watchdog.due = now + SWEEP_SECONDS
            left = deadline - now
            if left <= 0:
                os.kill(self.pid, signal.SIGKILL if self.late else signal.SIGXCPU)
                deadline = time.monotonic() + (SWEEP_SECONDS if self.late else GRACE_SECONDS)
                self.late = True
                continue
            ready = poller.poll(1000 * (left if self.late else min(left, self.watchdog.due - now)))
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
                elif fd == channel:  # the host is gone
                    os.kill(self.pid, signal.SIGKILL)
                    self.worker.sweep()
                    os._exit(0)
            if any(fd == self.ended for fd, _ in ready):
                os.close(self.ended)
                return

    def end(self) -> tuple[int, resource.struct_rusage]:
        """Reap the process, end its descendants, read the rest of the pipes."""
        _, status, used = os.wait4(self.pid, 0)
        self.starved = self.watchdog.judge(status)
        self.worker.sweep()
        problem = os.read(self.setup, select.PIPE_BUF)
        os.close(self.setup)
        for fd, sink in self.open.items():
            os.set_blocking(fd, False)
            try:
                while chunk := os.read(fd, CHUNK):
                    sink.add(chunk)
            except BlockingIOError:  # a writer outlived the sweep
                self.worker.dirty = True
            os.close(fd)
        if problem:
            raise OSError(f"the program could not be started: {problem.decode(errors='replace')}")
        return status, used

    def record(self) -> tuple[str | None, str | None]:
        """Return (uncaught exception's name, value) as the child reported, else None."""
        body = self.report.text()
        if body is None:
            return None, None
        raised, _, value = body.partition("\0")
        return raised[: child.NAME_CHARS] or None, value[1:] if value else None


def _characters(outcome: Outcome) -> int:
    return len(outcome.stdout) + len(outcome.stderr) + len(outcome.value or "") + sum(map(len, outcome.files.values()))


def _is_open(fd: int) -> bool:
    try:
        os.get_inheritable(fd)
    except OSError:
        return False
    return True


def _reap() -> bool:
    """Reap ended children; return whether none is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False
