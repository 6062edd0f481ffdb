"""Process tree below a worker: finding, stopping and ending. Standard library only.

A process has a pid here and a number in the worker's /proc, which may be of an outer namespace. The processes may be
hostile: they fork, orphan and wake each other while they are inspected. Facts about them hold only once all are
stopped, which `Tree.settle` learns from the kernel.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Mapping

from retcon.sandbox.jail.session.snapshot import Snapshot
from retcon.sandbox.jail.usage import children, listing, read

SWEEP_SECONDS = 5.0
PAUSE = 0.00002  # seconds between two checks: the processes may need this CPU to stop
STILL = frozenset(b"TtZXDx")
"""States of a thread that runs no user code. D (in the kernel: it waits for a disk, or for its vfork child) is one of
them once the stop signal is pending."""
CHILDREN_BYTES = 1 << 16


class Tree:
    """Descendants of this process.

    It must have one thread, and be process 1 of a namespace or a subreaper. proc: descriptor of a /proc. reaches:
    whether a signal to -1 reaches exactly them.
    """

    def __init__(self, proc: int, *, reaches: bool) -> None:
        self._proc = proc
        self._reaches = reaches
        own = os.readlink("self", dir_fd=proc)
        self._same = own == str(os.getpid())
        self._children = os.open(f"{own}/task/{own}/children", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)

    def children(self) -> list[int]:
        """Return the numbers of this process's children, zombies included."""
        return [int(number) for number in _whole(self._children).split()]

    def number(self, pid: int) -> int:
        """Return the number of a child, 0 if it is gone."""
        if self._same:
            return pid if pid in self.children() else 0
        return number_of(self._proc, pid)

    def pid(self, number: int) -> int:
        """Return a process's pid, 0 if it is gone."""
        return number if self._same else pid_of(self._proc, number)

    def threads(self, number: int) -> list[str]:
        try:
            return listing(self._proc, f"{number}/task")
        except OSError:
            return []

    def children_of(self, number: int) -> list[int]:
        found: list[int] = []
        for thread in self.threads(number):
            with contextlib.suppress(OSError):
                fd = os.open(f"{number}/task/{thread}/children", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
                try:
                    found += [int(child) for child in _whole(fd).split()]
                finally:
                    os.close(fd)
        return found

    def below(self, apart: Collection[int] = ()) -> Iterator[int]:
        """Yield every descendant except the children in `apart`."""
        left = self.children()
        for number in apart:
            if number in left:
                left.remove(number)
                left += self.children_of(number)
        while left:
            number = left.pop()
            yield number
            left += self.children_of(number)

    def signal(self, number: int, sent: int) -> None:
        pid = self.pid(number)
        if pid:
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(pid, sent)

    def stop(self) -> None:
        """Send SIGSTOP to all; some may stop later."""
        if self._reaches:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGSTOP)
        else:
            found = [self.pid(number) for number in self.below()]
            for pid in filter(None, found):  # without a pause, in which running ones would wake stopped ones
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)

    def settle(self, still: Collection[int] = ()) -> list[int]:
        """Stop all; return their numbers once none runs.

        A running process can wake a stopped one. So all must be seen stopped, and seen once more without any CPU use in
        between: then at one moment none ran, and none is left to wake the others. still: children that the caller
        checks likewise. Raises OSError if some would not stop.
        """
        deadline = time.monotonic() + SWEEP_SECONDS
        self.stop()
        before = self._cpu_times_of_stopped(still)
        while True:
            self.stop()
            after = self._cpu_times_of_stopped(still)
            if before == after and None not in after.values():
                return list(after)
            if time.monotonic() > deadline:
                raise OSError("processes of a session would not stop")
            time.sleep(PAUSE)
            before = after

    def _cpu_times_of_stopped(self, still: Collection[int]) -> dict[int, int | None]:
        """Return each process's CPU nanoseconds, None if it is not stopped."""
        return {number: self._cpu_time_if_stopped(number) for number in self.below(still)}

    def _cpu_time_if_stopped(self, number: int) -> int | None:
        pid = self.pid(number)
        used = cpu_nanoseconds(pid)
        for thread in self.threads(number):
            try:
                text = read(self._proc, f"{number}/task/{thread}/stat")
            except OSError:  # it has ended
                continue
            if text[text.rindex(b")") + 2] not in STILL:
                return None
        return used

    def end(self, keep: Collection[int]) -> bool:
        """Kill and reap all except the children in `keep`; return success.

        Orphans become children of this process. Those in `keep` are never reaped here, so that no other process gets
        their numbers.
        """
        deadline = time.monotonic() + SWEEP_SECONDS
        while True:
            found = [number for number in self.children() if number not in keep]
            if not found:
                return True
            for number in found:
                self.signal(number, signal.SIGKILL)
            for number in found:
                self.reap(number)
            if time.monotonic() > deadline:
                return False
            time.sleep(PAUSE)

    def reap(self, number: int) -> None:
        """Reap a child, if it has ended."""
        pid = self.pid(number)
        if pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def number_of(proc: int, pid: int) -> int:
    """Return the number of a child of this process, 0 if gone."""
    return next((number for number in children(proc) if pid_of(proc, number) == pid), 0)


def pid_of(proc: int, number: int) -> int:
    """Return the pid of a descendant, 0 if it is gone."""
    if os.readlink("self", dir_fd=proc) == str(os.getpid()):
        return number
    return int(_status(proc, number, b"NSpid:") or 0)


def cpu_nanoseconds(pid: int) -> int:
    """Return a process's CPU time, 0 if it has ended."""
    if not pid:
        return 0
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)  # the kernel's number for the CPU clock of a process
    except OSError:
        return 0


def cpu_seconds(pid: int) -> float:
    return cpu_nanoseconds(pid) / 1e9


def peak(proc: int, number: int) -> int:
    """Return a process's peak resident bytes, 0 if it has ended."""
    return int(_status(proc, number, b"VmHWM:") or 0) << 10


def _status(proc: int, number: int, name: bytes) -> bytes:
    """Return the last number of a line in a process's status."""
    try:
        text = read(proc, f"{number}/status")
    except OSError:
        return b""
    line = text.partition(name)[2].partition(b"\n")[0].removesuffix(b" kB")
    return line.split()[-1] if line else b""


def _whole(fd: int) -> bytes:
    """Read a whole file of /proc, which gives a page at a time."""
    found = b""
    while part := os.pread(fd, CHILDREN_BYTES, len(found)):
        found += part
    return found


# Frozen copies of a session's interpreter, as the kernel sees them.
#
# The session's code owns its interpreter, so that any of its processes can take a copy's place. Security does not
# depend on a genuine copy: it is a child of this process that was made while only the interpreter ran, with one thread
# and no children, it is stopped by the kernel, and it is ended if it runs for longer than a copy needs to see that the
# keeper did not wake it, or has a child or a second thread.

AWAKE_NANOSECONDS = 10_000_000  # most CPU time of a copy that is continued but not woken


class InterpreterGone(Exception):
    """The interpreter is gone, for the reason in the message."""


class CheckpointImpossible(Exception):
    """No checkpoint can be made; the session continues. full: there are too many or too large ones."""

    def __init__(self, why: str, *, full: bool = False) -> None:
        super().__init__(why)
        self.full = full


class Child:
    """A child of this process, held by pidfd. number: in the worker's /proc."""

    def __init__(self, pid: int, number: int) -> None:
        """Open the pidfd. Raises OSError."""
        self.pid = pid
        self.number = number
        self.ended = os.pidfd_open(pid)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.ended, number)

    @property
    def is_over(self) -> bool:
        found = self._found()
        return found is not None and found.si_code != os.CLD_STOPPED

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL ended it."""
        found = self._found()
        return found is not None and (found.si_code, found.si_status) == (os.CLD_KILLED, signal.SIGKILL)

    @property
    def is_stopped(self) -> bool:
        """Whether a signal stopped all its threads, outside of system calls."""
        found = self._found()
        return found is not None and found.si_code == os.CLD_STOPPED

    def _found(self) -> os.waitid_result | None:
        options = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PIDFD, self.ended, options)

    def collect(self) -> tuple[int, int]:
        """Wait for its end and reap it; return (wait status, peak resident bytes)."""
        _, status, usage = os.wait4(self.pid, 0)
        os.close(self.ended)
        return status, usage.ru_maxrss << 10

    def await_end(self) -> tuple[int, int]:
        """Wait for its end without reaping it, which keeps its id taken; return (wait status, 0)."""
        found = os.waitid(os.P_PIDFD, self.ended, os.WEXITED | os.WNOWAIT)
        os.close(self.ended)
        if found is None:
            return 0, 0
        return (found.si_status << 8 if found.si_code == os.CLD_EXITED else found.si_status), 0


class Copy(Child):
    """A frozen copy. memory: bytes, most of them shared by fork. folders: snapshots of the writable ones at its time.

    Raises OSError for an unknown pid.
    """

    def __init__(self, pid: int, number: int, memory: int) -> None:
        super().__init__(pid, number)
        self.memory = memory
        self.folders: list[Snapshot] = []
        self._used = self._seen = cpu_nanoseconds(pid)

    @property
    def used(self) -> int:
        """Its CPU time in nanoseconds."""
        return cpu_nanoseconds(self.pid)

    @property
    def has_run(self) -> bool:
        """Whether it has run for longer than a sleeping copy does."""
        return self.used - self._used > AWAKE_NANOSECONDS

    def is_fit(self, tree: Tree) -> bool:
        """Whether it still is a frozen copy: without CPU use, threads or children."""
        used = self.used
        if used == self._seen:
            return True
        self._seen = used
        return not self.has_run and len(tree.threads(self.number)) == 1 and not tree.children_of(self.number)

    def end(self) -> None:
        self.signal(signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self.ended, os.WEXITED)
        os.close(self.ended)


def find_new_copy(tree: Tree, known: Iterable[int]) -> int:
    """Return the number of the one new child, a frozen copy.

    Call it when nothing runs. Raises OSError if there is no or more than one child outside of `known`, or it is unfit.
    """
    new = set(tree.children()).difference(known)
    if len(new) != 1:
        raise OSError(f"{len(new)} copies of the interpreter were made")
    number = new.pop()
    if len(tree.threads(number)) != 1 or tree.children_of(number):
        raise OSError("more than a copy of the interpreter was made")
    return number


def cpu_times_of_stopped(copies: Mapping[str, Copy]) -> dict[str, int | None]:
    """Return each copy's CPU time, None if it is running."""
    return {name: copy.used if copy.is_stopped else None for name, copy in copies.items() if not copy.is_over}


def checkpoint_bytes(copies: Collection[Copy]) -> int:
    """Return the most bytes of checkpoints: memory shared by fork counts for each, equal files once."""
    contents = {
        id(entry.content): len(entry.content)
        for copy in copies
        for snapshot in copy.folders
        for entry in snapshot.entries.values()
        if entry.content is not None
    }
    return sum(copy.memory for copy in copies) + sum(contents.values())
