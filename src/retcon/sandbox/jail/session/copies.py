"""The frozen copies of a session's interpreter, as the kernel has them. Standard library only: the workers import it.

The session's code owns its interpreter, so that any process of its own can take a copy's place. Nothing rests on a copy
being genuine: it is a child of this process that was made while only the interpreter ran, with one thread and no
children, it is stopped by the kernel, and one that is found running for longer than it takes to see that it was not
woken, or with a child or a thread, is ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Iterable, Mapping

from retcon.sandbox.jail.session import processes
from retcon.sandbox.jail.session.processes import Tree
from retcon.sandbox.jail.session.snapshot import Snapshot

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
        self._used = self._seen = processes.cpu_nanoseconds(pid)

    @property
    def used(self) -> int:
        """Nanoseconds that it has run in all."""
        return processes.cpu_nanoseconds(self.pid)

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
