"""The processes below this one: found, told apart, stopped, ended. Standard library only: the workers import it.

A process has a pid here and a number in the /proc that the worker has, which may be that of an outer namespace. What
runs below may be hostile: it forks, orphans and wakes its own while it is looked at. What is said of it holds only once
all of it is stopped, which `Tree.settle` finds out from the kernel.
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
PAUSE = 0.00002  # seconds between two looks: those that are looked at may need this processor to stop
STILL = frozenset(b"TtZXDx")
"""States of a thread that runs no code of its own. D (in the kernel: it waits for a disk, or for the child of its
vfork) is one of them once the signal to stop waits for it, too."""
CHILDREN_BYTES = 1 << 16


class Tree:
    """What descends from this process, which has one thread and is process 1 of a namespace or a subreaper.

    proc: descriptor of a /proc. reaches: whether a signal to -1 reaches all of it, and nothing else.
    """

    def __init__(self, proc: int, *, reaches: bool) -> None:
        self._proc = proc
        self._reaches = reaches
        own = os.readlink("self", dir_fd=proc)
        self._same = own == str(os.getpid())
        self._children = os.open(f"{own}/task/{own}/children", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)

    def children(self) -> list[int]:
        """The numbers of the children of this process, those that have ended and were not reaped among them."""
        return [int(number) for number in _whole(self._children).split()]

    def number(self, pid: int) -> int:
        """The number of a child, 0 where there is no such child."""
        if self._same:
            return pid if pid in self.children() else 0
        return number_of(self._proc, pid)

    def pid(self, number: int) -> int:
        """0 where it is gone."""
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
        """Every descendant but the children in `apart`; what is below those is not left out."""
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
        """Send all of it the signal to stop, which some may not have obeyed yet."""
        if self._reaches:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGSTOP)
        else:
            found = [self.pid(number) for number in self.below()]
            for pid in filter(None, found):  # one right after another: meanwhile those that run wake those that do not
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)

    def settle(self, still: Collection[int] = ()) -> list[int]:
        """Stop all of it; its numbers, once nothing runs.

        A stopped process is one that another can wake, as long as one runs. So all must be seen stopped, and seen
        once more without any of them having used the processor in between: then there was a moment at which none ran,
        and nobody is left to wake them. still: children that the caller answers for in the same way.
        Raises OSError where some would not stop.
        """
        deadline = time.monotonic() + SWEEP_SECONDS
        self.stop()
        before = self._looks(still)
        while True:
            self.stop()
            after = self._looks(still)
            if before == after and None not in after.values():
                return list(after)
            if time.monotonic() > deadline:
                raise OSError("processes of a session would not stop")
            time.sleep(PAUSE)
            before = after

    def _looks(self, still: Collection[int]) -> dict[int, int | None]:
        """Of each process the nanoseconds that it has run, None where it is not stopped."""
        return {number: self._look(number) for number in self.below(still)}

    def _look(self, number: int) -> int | None:
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
        """End and reap all but the children in `keep`; False where some would not end.

        Orphans become children of this process. Those in `keep` are not reaped, whatever became of them: as long as
        they are not, nobody else gets their numbers.
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
        """A child, if it has ended."""
        pid = self.pid(number)
        if pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def number_of(proc: int, pid: int) -> int:
    """The number of a child of this process, 0 where there is no such child."""
    return next((number for number in children(proc) if pid_of(proc, number) == pid), 0)


def pid_of(proc: int, number: int) -> int:
    """The pid of a process below this one, 0 where it is gone."""
    if os.readlink("self", dir_fd=proc) == str(os.getpid()):
        return number
    return int(_status(proc, number, b"NSpid:") or 0)


def cpu_nanoseconds(pid: int) -> int:
    """CPU time of all threads of a process, 0 where it has ended."""
    if not pid:
        return 0
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)  # the kernel's number for the CPU clock of a process
    except OSError:
        return 0


def cpu_seconds(pid: int) -> float:
    return cpu_nanoseconds(pid) / 1e9


def peak(proc: int, number: int) -> int:
    """Bytes of a process that were in memory at most, 0 where it has ended."""
    return int(_status(proc, number, b"VmHWM:") or 0) << 10


def _status(proc: int, number: int, name: bytes) -> bytes:
    """The last number of a line in a process's status."""
    try:
        text = read(proc, f"{number}/status")
    except OSError:
        return b""
    line = text.partition(name)[2].partition(b"\n")[0].removesuffix(b" kB")
    return line.split()[-1] if line else b""


def _whole(fd: int) -> bytes:
    """A file of /proc from its start, which gives a page of it at a time."""
    found = b""
    while part := os.pread(fd, CHILDREN_BYTES, len(found)):
        found += part
    return found


# The frozen copies of a session's interpreter, as the kernel has them.
#
# The session's code owns its interpreter, so that any process of its own can take a copy's place. Nothing rests on a
# copy being genuine: it is a child of this process that was made while only the interpreter ran, with one thread and no
# children, it is stopped by the kernel, and one that is found running for longer than it takes to see that it was not
# woken, or with a child or a thread, is ended.

AWAKE_NANOSECONDS = 10_000_000  # of CPU time that a copy which is continued, and not woken, takes at most


class InterpreterGone(Exception):
    """The interpreter is gone; says why."""


class CheckpointImpossible(Exception):
    """No checkpoint can be made; the session goes on. Says why. full: there are too many, or too large ones."""

    def __init__(self, why: str, *, full: bool = False) -> None:
        super().__init__(why)
        self.full = full


class Child:
    """A child of this process, held so that no other is taken for it. number: in the worker's /proc."""

    def __init__(self, pid: int, number: int) -> None:
        """Raises OSError."""
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
        """By SIGKILL."""
        found = self._found()
        return found is not None and (found.si_code, found.si_status) == (os.CLD_KILLED, signal.SIGKILL)

    @property
    def is_stopped(self) -> bool:
        """All of its threads, by a signal: none is within a system call."""
        found = self._found()
        return found is not None and found.si_code == os.CLD_STOPPED

    def _found(self) -> os.waitid_result | None:
        options = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PIDFD, self.ended, options)

    def collect(self) -> tuple[int, int]:
        """Wait for its end and reap it; (its wait status, the bytes it had in memory at most)."""
        _, status, usage = os.wait4(self.pid, 0)
        os.close(self.ended)
        return status, usage.ru_maxrss << 10

    def await_end(self) -> tuple[int, int]:
        """As `collect`, but it is not reaped: nobody else gets its id. Its memory is not known."""
        found = os.waitid(os.P_PIDFD, self.ended, os.WEXITED | os.WNOWAIT)
        os.close(self.ended)
        if found is None:
            return 0, 0
        return (found.si_status << 8 if found.si_code == os.CLD_EXITED else found.si_status), 0


class Copy(Child):
    """A frozen copy. memory: bytes, most of them shared by fork. folders: what the writable ones held when it was made.

    Raises OSError where there is none by that pid.
    """

    def __init__(self, pid: int, number: int, memory: int) -> None:
        super().__init__(pid, number)
        self.memory = memory
        self.folders: list[Snapshot] = []
        self._used = self._seen = cpu_nanoseconds(pid)

    @property
    def used(self) -> int:
        """Nanoseconds that it has run in all."""
        return cpu_nanoseconds(self.pid)

    @property
    def has_run(self) -> bool:
        """Longer than one that is not woken does."""
        return self.used - self._used > AWAKE_NANOSECONDS

    def is_fit(self, tree: Tree) -> bool:
        """Whether it still is what it has to be: nothing that used the processor, made a thread or a process."""
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


def only_new(tree: Tree, known: Iterable[int]) -> int:
    """The number of the one child that is not among `known` and fit to be a frozen copy.

    To be asked when nothing runs. Raises OSError where there is none, there are several, or the one is not fit.
    """
    new = set(tree.children()).difference(known)
    if len(new) != 1:
        raise OSError(f"{len(new)} copies of the interpreter were made")
    number = new.pop()
    if len(tree.threads(number)) != 1 or tree.children_of(number):
        raise OSError("more than a copy of the interpreter was made")
    return number


def still(copies: Mapping[str, Copy]) -> dict[str, int | None]:
    """How long each copy has run, None where it runs."""
    return {name: copy.used if copy.is_stopped else None for name, copy in copies.items() if not copy.is_over}


def held(copies: Collection[Copy]) -> int:
    """Bytes that checkpoints take at most: what copies share by fork counts for each of them, equal files once."""
    contents = {
        id(entry.content): len(entry.content)
        for copy in copies
        for snapshot in copy.folders
        for entry in snapshot.entries.values()
        if entry.content is not None
    }
    return sum(copy.memory for copy in copies) + sum(contents.values())
