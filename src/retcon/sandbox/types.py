"""The Sandbox protocol: a program in, a typed result out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal, Protocol

from retcon.core.types import Status

Tier = Literal["namespaces", "landlock", "rlimits"]
"""What holds around a call, the strongest first (docs/sandbox.md)."""


MOST = 10**9
"""Of any limit: the kernel takes no infinity, nor numbers beyond 64 bits when they become bytes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call may use. Raises ValueError where a limit is not above 0, or above a thousand million.

    cpu_seconds: CPU time of each process of the call, rounded up to whole seconds by the kernel. wall_seconds: of the
    whole call. memory_mb: address space (MiB) that each process may add to the warm interpreter's. output_bytes: kept
    of stdout, of stderr and of the value, each; of a longer text head and tail are kept and the cut is said.
    file_mb: size (MiB) of any one file. processes: processes and threads at a time.
    """

    cpu_seconds: float = 2.0
    wall_seconds: float = 30.0
    memory_mb: int = 512
    output_bytes: int = 65536
    file_mb: int = 16
    open_files: int = 64
    processes: int = 32

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not value > 0:
                raise ValueError(f"limit {limit.name} is {value}: it must be above 0")
            if value > MOST:
                raise ValueError(f"limit {limit.name} is {value:g}: {MOST} is the most that can be set")

    def with_(self, timeout: float | None = None, memory: int | None = None) -> Limits:
        """These limits with `timeout` (seconds) in place of both clocks and `memory` (MiB) in place of the memory's.

        Raises ValueError where one is not above 0.
        """
        changes: dict[str, float] = {}
        if timeout is not None:
            changes |= {"cpu_seconds": timeout, "wall_seconds": timeout}
        if memory is not None:
            changes["memory_mb"] = memory
        return replace(self, **changes) if changes else self  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one call.

    status: from how the process ended, never from its text. error_type: name of the exception that ended it,
    `TimeoutError` for either clock, a signal's name (`SIGSEGV`), None where status is ok. stderr of a failure ends
    with a line that names it. value: repr of the last expression, None where there is none or it is None.
    exit_code: negative for a signal, None where no process ended. seconds: wall. peak_memory: bytes, resident.
    tier: what held around the call. files: content of the files that were asked for and found (`Sandbox.run`, `fetch`).
    """

    status: Status
    error_type: str | None = None
    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    exit_code: int | None = None
    seconds: float = 0.0
    peak_memory: int = 0
    tier: Tier = "rlimits"
    files: Mapping[str, bytes] = field(default_factory=dict)


class Session(Protocol):
    """One interpreter that keeps its variables and its scratch folder between cells; one cell at a time.

    id: unique among all sessions. A session is lost when its interpreter ends (`os._exit`, a signal, a limit), when the
    sandbox evicts it (idle for too long, too much memory), or when its worker dies. Whatever the cause, the cell in
    flight is answered by a Result, and `SessionLost` names the cause from then on.
    """

    id: str

    async def run(
        self,
        code: str,
        *,
        stdin: str = "",
        timeout: float | None = None,
        memory: int | None = None,
        limits: Limits | None = None,
        files: Mapping[str, bytes] | None = None,
        echo: bool = True,
    ) -> Result:
        """Run a cell; parameters as `Sandbox.run`. Raises SessionLost."""
        ...

    async def checkpoint(self) -> str:
        """Freeze the state as it is now, variables and scratch files; its name.

        Raises SessionLost, CheckpointRefused where this state cannot be kept.
        """
        ...

    async def rollback(self, checkpoint: str) -> None:
        """Go to the state of a checkpoint, from an earlier or a later one, as often as one likes: also after the
        interpreter ended.

        All other checkpoints stay. Raises KeyError for a name that is not one, SessionLost.
        """
        ...

    async def discard(self, checkpoint: str) -> None:
        """Free a checkpoint that will not be gone back to; an unknown one is no error."""
        ...

    async def close(self) -> None:
        """End the interpreter and its checkpoints. Closing twice is no error."""
        ...


class Sandbox(Protocol):
    """Runs untrusted Python. Every call starts from the same fresh interpreter and an empty folder."""

    async def run(
        self,
        code: str,
        *,
        stdin: str = "",
        timeout: float | None = None,
        memory: int | None = None,
        limits: Limits | None = None,
        files: Mapping[str, bytes] | None = None,
        fetch: Sequence[str] = (),
        echo: bool = True,
        wait: float | None = None,
    ) -> Result:
        """Run `code` as `__main__`, in a scratch folder that holds `files` (relative path to content).

        limits: the sandbox's own where None. timeout: seconds, in place of both clocks of the limits. memory: MiB, in
        place of theirs. echo: whether the last expression's repr becomes the result's value.
        fetch: relative paths of files to hand back as they are when the call has ended. One that is not there, is no
        ordinary file, lies behind a symbolic link or is longer than what is left of 8 MiB for all is left out.
        In the tier `namespaces` either may name absolute paths too, below the folders `paths.WRITABLE`.
        wait: seconds that it may wait until it starts, which count nowhere else; as long as it takes where None.

        A fault of the sandbox itself is a result of status `infrastructure`. Raises ValueError for a limit that is not
        above 0, a file path that leaves the scratch folder, or code that is no text; SandboxUnavailable where the
        sandbox is not open, SandboxBusy where the call had to wait for too long.
        """
        ...

    async def session(self, *, limits: Limits | None = None) -> Session:
        """A fresh interpreter that keeps its state. limits: of each of its cells, the sandbox's own where None.

        Raises SandboxUnavailable where there is no room for one more, or the sandbox is not open.
        """
        ...

    async def close(self) -> None:
        """End all that runs, sessions too. Calls in flight get status `infrastructure`."""
        ...
