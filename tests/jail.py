"""A sandbox to attack: one worker of one tier, from tests that are no coroutines.

Each attack names the tiers that contain it; docs/sandbox/sandbox.md lists what the others do not.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any, TypeVar

import pytest

from retcon.core.errors import CheckpointRefused, SandboxUnavailable, SessionLost
from retcon.sandbox.jail.confine import landlock
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Limits, Result

T = TypeVar("T")
NAMESPACES, LANDLOCK, RLIMITS = "namespaces", "landlock", "rlimits"
CONTAINED = (NAMESPACES, LANDLOCK)
ALL = (NAMESPACES, LANDLOCK, RLIMITS)


def landlock_abi() -> int:
    """What the kernel has of Landlock, 0 for nothing."""
    try:
        return landlock.abi()
    except OSError:
        return 0


PROC_IS_OPEN = os.getuid() != 0 and landlock_abi() < landlock.REFER_ABI
"""Whether a call in `rlimits` reaches the user's processes by their files in /proc (docs/sandbox/threats.md)."""

# for attacks by system call: `call(number, ...)` is "ok" or the name of the error
CALL = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return "ok" if result >= 0 else errno.errorcode[ctypes.get_errno()]
"""


def contained_by(*tiers: str) -> pytest.MarkDecorator:
    """Run the test in these tiers; those that the machine lacks are skipped, with the reason."""
    return pytest.mark.parametrize("jail", tiers, indirect=True, scope="module")


class Jail:
    """Open until `close`. Raises SandboxUnavailable."""

    def __init__(self, tier: str) -> None:
        self.tier = tier
        self._runner = asyncio.Runner()
        self._pool = SandboxPool(workers=1, tier=tier)  # type: ignore[arg-type]
        try:
            self._runner.run(self._pool.start())
        except SandboxUnavailable:
            self._runner.close()
            raise

    @property
    def pid(self) -> int:
        """Of the worker."""
        return self._pool.worker.pid

    @property
    def zygotes(self) -> list[int]:
        """Pids of those that its workers are forked from."""
        return list(self._pool.fleet.zygotes.values())

    @property
    def folders(self) -> tuple[str, ...]:
        """Where files may be put by an absolute path."""
        return self._pool.fleet.folders

    @property
    def can_signal_others(self) -> bool:
        """Whether its processes may signal each other: not where a filter alone keeps them from the user's others."""
        scoped = self.tier == LANDLOCK and landlock.abi() >= landlock.SCOPE_ABI
        return self.tier == NAMESPACES or os.getuid() == 0 or scoped

    def run(
        self,
        code: str,
        *,
        files: dict[str, bytes] | None = None,
        stdin: str = "",
        fetch: Sequence[str] = (),
        **limits: float,
    ) -> Result:
        given = Limits(**limits) if limits else None  # type: ignore[arg-type]
        return self._runner.run(self._pool.run(dedent(code), limits=given, files=files, stdin=stdin, fetch=fetch))

    def session(self, **limits: float) -> Attacked:
        """limits: over a memory of 128 MiB and 5 s of either clock."""
        given = Limits(**({"memory_mb": 128, "cpu_seconds": 5, "wall_seconds": 5} | limits))  # type: ignore[arg-type]
        return Attacked(self, given)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def attack(self, code: str, *, talks: bool = False, **options: object) -> Result:
        """Run it, then see that the same worker still serves, from a clean folder.

        talks: over a loopback of its own, where the tier has one, with which its worker is given up.
        """
        worker = self.pid
        result = self.run(code, **options)  # type: ignore[arg-type]
        after = self.run("import os\nprint('alive', os.listdir())")
        assert (after.status, after.stdout, after.stderr) == ("ok", "alive []\n", ""), (result, after)
        assert talks or self.pid == worker, result
        return result

    def close(self) -> None:
        self._runner.run(self._pool.close())
        self._runner.close()


class Attacked:
    """A session, and the machine's view of its processes."""

    def __init__(self, jail: Jail, limits: Limits) -> None:
        self.jail = self._jail = jail
        self.limits = limits
        self._session = jail.do(jail._pool.session(limits=limits))
        self.run("")  # which gives it its worker

    @property
    def worker(self) -> int:
        """Pid of its worker's first process."""
        return int(self._session.worker.pid)

    def run(self, code: str, **options: Any) -> Result:
        return self._jail.do(self._session.run(dedent(code), **options))

    def tries(self, *, rollback: str = "") -> str:
        """A checkpoint, or a rollback to one, that its own code may prevent; why it did, "" where it did not."""
        try:
            self.rollback(rollback) if rollback else self.checkpoint()
        except (SessionLost, CheckpointRefused) as error:
            return str(error) if getattr(error, "by_own_code", True) else f"a fault of the sandbox: {error}"
        return ""

    def checkpoint(self) -> str:
        return self._jail.do(self._session.checkpoint())

    def rollback(self, name: str) -> None:
        """Go back, and on with an empty cell: what comes of the copy that is made anew is told to what comes next."""
        self._jail.do(self._session.rollback(name))
        self.run("")

    def discard(self, name: str) -> None:
        self._jail.do(self._session.discard(name))

    def processes(self) -> list[int]:
        """What the session's code has: everything below its keeper that has not ended."""
        return [pid for pid in self.all_processes() if not _has_ended(pid)]

    def all_processes(self) -> list[int]:
        """Those too that have ended, and whose ids are kept."""
        return [pid for keeper in self.keepers() for pid in _below(keeper)]

    def keepers(self) -> list[int]:
        """The process that serves the session, which is the worker or its one child; none where it has ended."""
        return _children(self.worker)[:1] if self._jail.tier == NAMESPACES else [self.worker]

    def memory(self) -> int:
        """Bytes in memory of all of them, what they share once for each."""
        return sum(_number(pid, "VmRSS:") << 10 for pid in self.processes())

    def rests(self) -> None:
        """See that it stops, and that nothing of it runs, begins or ends from then on.

        The other worker's sleep is the time that passes.
        """
        while (before := self._stopped()) is None:
            assert self._jail.run("import time\ntime.sleep(.005)").status == "ok"
        assert self._jail.run("import time\ntime.sleep(.1)").status == "ok"
        assert self._stopped() == before

    def _stopped(self) -> dict[int, int] | None:
        """Clock ticks that each has used, None where one runs or has only just ended."""
        found = {}
        for pid in self.processes():
            try:
                threads = [(t / "stat").read_text().rpartition(")")[2].split() for t in _threads(pid)]
            except OSError:  # it ended meanwhile, and its parent has heard
                return None
            states = {fields[0] for fields in threads}
            if "T" not in states or not states <= {"T", "Z", "X"}:  # without one that is stopped, it ended meanwhile
                return None
            found[pid] = sum(int(fields[11]) + int(fields[12]) for fields in threads)
        return found

    def close(self) -> None:
        """Close it, see that nothing of it is left, and that the next session and the next call are clean."""
        worker, left = self.worker, self.processes()
        self._jail.do(self._session.close())
        while left:
            left = [pid for pid in left if Path(f"/proc/{pid}").exists() and _number(pid, "PPid:") != 0]
            assert self._jail.run("import os\nos.listdir()").value == "[]"
        assert self._jail.pid != worker
        after = self._jail.do(self._jail._pool.session())
        assert self._jail.do(after.run("import os\nos.listdir(), 'it' in globals()")).value == "([], False)"
        self._jail.do(after.close())


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for thread in _threads(pid) for child in (thread / "children").read_text().split()]
    except OSError:
        return []


def _below(pid: int) -> list[int]:
    found = _children(pid)
    for child in list(found):
        found += _below(child)
    return found


def _has_ended(pid: int) -> bool:
    try:
        states = [(thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in _threads(pid)]
    except OSError:
        return True
    return set(states) <= {"Z", "X"}


def _threads(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


def _number(pid: int, name: str) -> int:
    """A line of a process's status, 0 where it is gone."""
    try:
        return int((Path(f"/proc/{pid}/status").read_text().partition(name)[2].split() or ["0"])[0])
    except OSError:
        return 0
