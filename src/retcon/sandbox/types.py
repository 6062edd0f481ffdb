"""Types of the sandbox: programs, results, limits and protocols."""

from __future__ import annotations

import keyword
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypedDict, Unpack, get_args

from retcon.core.types import Status

Tier = Literal["namespaces", "landlock", "rlimits"]
"""Protection around a call (docs/sandbox/sandbox.md)."""
TIERS: tuple[Tier, ...] = get_args(Tier)
"""The strongest first."""

SEEDS = 1 << 63
"""Number of valid seeds."""

TOO_LONG = "ProgramTooLong"
"""`Result.error_type` of a program that is too long for its server."""

MOST = 10**9
"""Largest value of a limit: the kernel takes neither infinity nor byte counts beyond 64 bits."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one call. Raises ValueError for a limit outside (0, MOST] or of the wrong type.

    Args:
        cpu_seconds: CPU time of each process, rounded up to whole seconds by the kernel.
        wall_seconds: wall time of the whole call.
        memory_mb: address space (MiB) that each process may add to the warm interpreter's.
        output_bytes: kept of stdout, of stderr and of the value; longer texts keep head and tail, with a note.
        file_mb: size (MiB) of any one file.
        processes: processes and threads at a time.
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
            if not isinstance(value, int if limit.type == "int" else int | float):  # which the jail could not read
                raise ValueError(
                    f"limit {limit.name} is {value!r}, a {type(value).__name__}: it must be of type {limit.type}"
                )
            if not value > 0:
                raise ValueError(f"limit {limit.name} is {value}: it must be above 0")
            if value > MOST:
                raise ValueError(f"limit {limit.name} is {value:g}: {MOST} is the most that can be set")

    def with_(self, timeout: float | None = None, memory: int | None = None) -> Limits:
        """Return these limits with another timeout or memory.

        timeout: seconds, for both clocks. memory: MiB. Raises ValueError as `Limits` does.
        """
        changes: dict[str, float] = {}
        if timeout is not None:
            changes |= {"cpu_seconds": timeout, "wall_seconds": timeout}
        if memory is not None:
            changes["memory_mb"] = memory
        return replace(self, **changes) if changes else self  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class SessionBounds:
    """Bounds on a pool's sessions. Raises ValueError for a bound that is not above 0.

    Args:
        open: sessions at a time; one more waits `wait_seconds` for a place.
        idle_seconds: after which an unused session is evicted.
        memory_mb: MiB of all sessions together, by default half of the machine's or container's memory; beyond it the
            sessions that have been idle the longest are evicted.
    """

    open: int = 64
    idle_seconds: float = 1800.0
    memory_mb: int | None = None
    wait_seconds: float = 60.0

    def __post_init__(self) -> None:
        for bound in fields(self):
            value = getattr(self, bound.name)
            if value is not None and not value > 0:
                raise ValueError(f"sessions: {bound.name} is {value}: it must be above 0")


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run as a call or as a session's cell.

    In the tier `namespaces`, fetch and a call's files may also name absolute paths below the folders
    `pool.paths.WRITABLE`, unless the Python that runs it lies there.

    Args:
        code: runs as `__main__`, in a scratch folder that holds `files` (relative path to content).
        limits: the sandbox's own if None.
        timeout: seconds, in place of both clocks of the limits. memory: MiB, in place of theirs.
        echo: whether the last expression's repr becomes the result's value.
        fetch: relative paths of files to return at the end. Left out: missing files, special files, files behind a
            symbolic link, and what exceeds 8 MiB for all.
        wait: of a call: seconds until it must start, which count nowhere else; None for no bound.
        seed: of a call: seed of `random` and of numpy's and sympy's global generators, in [0, 2**63); None for a new
            one in each call.

    Raises ValueError for limits as `Limits` does, a wait below 0, and code, stdin or files of the wrong type.
    """

    code: str
    stdin: str = ""
    timeout: float | None = None
    memory: int | None = None
    limits: Limits | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    fetch: Sequence[str] = ()
    echo: bool = True
    wait: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check types. Code may be any text; stdin may hold what `surrogateescape` makes of bytes."""
        for name, text in (("code", self.code), ("stdin", self.stdin)):
            if not isinstance(text, str):
                raise ValueError(f"{name} is a {type(text).__name__}: it must be a text")
        try:
            self.stdin.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise ValueError(f"stdin is not Unicode: {error.reason} at character {error.start}") from error
        for path, content in self.files.items():
            if not isinstance(path, str):
                raise ValueError(f"file {path!r} is named by a {type(path).__name__}: its path must be a text")
            if not isinstance(content, bytes | bytearray | memoryview):
                raise ValueError(f"the content of file {path!r} is a {type(content).__name__}: it must be bytes")
        check_seed(self.seed)
        if self.wait is not None and not self.wait >= 0:
            raise ValueError(f"wait is {self.wait}: it must be 0 or more")
        if self.timeout is not None or self.memory is not None:
            Limits().with_(self.timeout, self.memory)

    def limits_within(self, limits: Limits) -> Limits:
        """Return the limits it runs under, where `limits` are the sandbox's own."""
        return (self.limits or limits).with_(self.timeout, self.memory)


class ProgramOptions(TypedDict, total=False):
    """The fields of `Program` besides the code, as keywords of `run`."""

    stdin: str
    timeout: float | None
    memory: int | None
    limits: Limits | None
    files: Mapping[str, bytes] | None
    fetch: Sequence[str]
    echo: bool
    wait: float | None
    seed: int | None


def check_seed(seed: int | None) -> None:
    """Check that a seed is in [0, 2**63); else raise ValueError."""
    if seed is not None and (type(seed) is not int or not 0 <= seed < SEEDS):
        raise ValueError(f"seed is {seed!r}: it must be a whole number from 0 and below 2**63")


def as_program(asked: str | Program, options: ProgramOptions) -> Program:
    """Make a `Program` of the arguments of `run`; options replace its fields.

    Raises ValueError as `Program` does, TypeError for an unknown option.
    """
    if isinstance(asked, Program) and not options:
        return asked
    given: dict[str, Any] = {**options}
    if given.get("files", ()) is None:
        given["files"] = {}
    return replace(asked, **given) if isinstance(asked, Program) else Program(asked, **given)


def as_cell(asked: str | Program, options: ProgramOptions) -> Program:
    """Make a session's cell of the arguments of `run`. Raises ValueError for `wait` and `seed`, which cells lack."""
    program = as_program(asked, options)
    if program.wait is not None:
        raise ValueError("wait is for calls: a session has its worker already")
    if program.seed is not None:
        raise ValueError("seed is for calls: a session has one from its start, `session(seed=…)`")
    return program


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one call or cell.

    Args:
        status: from how the process ended, never from its text.
        error_type: name of the exception that ended it, `TimeoutError` for either clock, a signal's name (`SIGSEGV`),
            or TOO_LONG; None if status is ok.
        stderr: of a failure, ends with a line that names it.
        value: repr of the last expression; None without one, or for the value None.
        exit_code: negative for a signal, None if no process ended.
        seconds: wall time. peak_memory: bytes, resident.
        tier: the protection around it; None if nothing is known to have run.
        files: content of the files of `Program.fetch` that were found.
    """

    status: Status
    error_type: str | None = None
    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    exit_code: int | None = None
    seconds: float = 0.0
    peak_memory: int = 0
    tier: Tier | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


HostFunction = Callable[..., Awaitable[object]]
"""A host function that a session's cells can call; arguments and result are JSON values."""


def check_functions(functions: Mapping[str, HostFunction]) -> None:
    """Check that programs can call these names; else raise ValueError."""
    for name in functions:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"functions: {name!r} is not a name that Python takes")


class Session(Protocol):
    """An interpreter that keeps variables and scratch folder between cells.

    It runs one cell at a time. It is lost when its interpreter ends (`os._exit`, a signal, a limit), when the sandbox
    evicts it (idle for too long, too much memory), or when its worker dies. The cell in flight still gets a Result;
    every later operation raises `SessionLost` with the cause. id: unique among all sessions.
    """

    id: str

    async def run(self, program: str | Program, /, **options: Unpack[ProgramOptions]) -> Result:
        """Run a cell, as `Sandbox.run`, without `wait` and `seed`. Raises SessionLost."""
        ...

    async def checkpoint(self) -> str:
        """Freeze variables and scratch files; return the checkpoint's name.

        Raises SessionLost, CheckpointRefused for a state that cannot be kept (docs/sandbox/sandbox.md).
        """
        ...

    async def rollback(self, checkpoint: str) -> None:
        """Restore a checkpoint, also after the interpreter ended; all stay.

        Raises KeyError for an unknown name, SessionLost.
        """
        ...

    async def discard(self, checkpoint: str) -> None:
        """Free a checkpoint; an unknown one is no error."""
        ...

    async def close(self) -> None:
        """End the interpreter and its checkpoints. Closing twice is no error."""
        ...


class Sandbox(Protocol):
    """Runner of untrusted Python: every call has a fresh interpreter and an empty folder."""

    async def run(self, program: str | Program, /, **options: Unpack[ProgramOptions]) -> Result:
        """Run a program; `run("print(1)", timeout=5)` is `run(Program("print(1)", timeout=5))`.

        A fault of the sandbox itself is a result of status `infrastructure`. Raises ValueError as `Program` does and
        for a file path outside the scratch folder, SandboxUnavailable if the sandbox is not open, SandboxBusy if the
        call waited longer than `wait`.
        """
        ...

    async def session(
        self,
        *,
        limits: Limits | None = None,
        seed: int | None = None,
        functions: Mapping[str, HostFunction] | None = None,
        opening: Program | None = None,
    ) -> Session:
        """Open a fresh interpreter that keeps its state.

        A cell that calls a function waits for its result, with its wall clock stopped; calls from several
        threads run at the same time. An error of a function is a RuntimeError in the cell. A rollback does not undo
        a function's effects.

        Args:
            limits: of each cell; None: the sandbox's.
            seed: like `Program.seed`, once at the start.
            functions: of the host, by name. A remote sandbox supports none.
            opening: a cell that runs just before the first one, which is a fault of the sandbox where it fails. A
                remote sandbox supports none.

        Raises ValueError for an invalid function name or opening, SandboxUnavailable if there is no room for another
        session, or the sandbox is not open.
        """
        ...

    async def close(self) -> None:
        """End all calls and sessions. Running calls get status `infrastructure`."""
        ...


class StartedSandbox:
    """Base of sandboxes that `async with` starts and closes."""

    async def start(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
