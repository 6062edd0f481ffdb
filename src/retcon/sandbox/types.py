"""The sandbox in words: a program in, a typed result out, and the protocols of what runs it."""

from __future__ import annotations

import keyword
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypedDict, Unpack, get_args

from retcon.core.types import Status

Tier = Literal["namespaces", "landlock", "rlimits"]
"""What holds around a call (docs/sandbox/sandbox.md)."""
TIERS: tuple[Tier, ...] = get_args(Tier)
"""The strongest first."""

SEEDS = 1 << 63
"""How many seeds there are."""

TOO_LONG = "ProgramTooLong"
"""What the result of a program is called that is longer than its server takes, as if it were an exception's class."""

MOST = 10**9
"""Of any limit: the kernel takes no infinity, nor numbers beyond 64 bits when they become bytes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call may use. Raises ValueError where a limit is not above 0, above a thousand million, or no number of
    its kind.

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
            if not isinstance(value, int if limit.type == "int" else int | float):  # which the jail could not read
                raise ValueError(
                    f"limit {limit.name} is {value!r}, a {type(value).__name__}: it must be of type {limit.type}"
                )
            if not value > 0:
                raise ValueError(f"limit {limit.name} is {value}: it must be above 0")
            if value > MOST:
                raise ValueError(f"limit {limit.name} is {value:g}: {MOST} is the most that can be set")

    def with_(self, timeout: float | None = None, memory: int | None = None) -> Limits:
        """These limits with `timeout` (seconds) in place of both clocks and `memory` (MiB) in place of the memory's.

        Raises ValueError as `Limits` does.
        """
        changes: dict[str, float] = {}
        if timeout is not None:
            changes |= {"cpu_seconds": timeout, "wall_seconds": timeout}
        if memory is not None:
            changes["memory_mb"] = memory
        return replace(self, **changes) if changes else self  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class SessionBounds:
    """How many sessions a pool keeps, and for how long. Raises ValueError where a bound is not above 0.

    open: at a time; one more waits `wait_seconds` for a place. idle_seconds: after which one that nobody uses is
    evicted. memory_mb: MiB that all may take together, half of what the machine or its container has where None; where
    they take more, those that have been idle for the longest time are evicted.
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
    """What one call or one cell is asked to run.

    code: runs as `__main__`, in a scratch folder that holds `files` (relative path to content). limits: the sandbox's
    own where None. timeout: seconds, in place of both clocks of the limits. memory: MiB, in place of theirs.
    echo: whether the last expression's repr becomes the result's value.

    fetch: relative paths of files to hand back as they are when the call or cell has ended. One that is not there, is
    no ordinary file, lies behind a symbolic link or is longer than what is left of 8 MiB for all is left out.

    Of calls alone: wait: seconds that it may wait until it starts, which count nowhere else; as long as it takes where
    None. seed: of the generators of random numbers (`random`, numpy's and sympy's global ones), from 0 and below 2**63;
    another one in each call where None.

    In the tier `namespaces`, fetch and a call's files may name absolute paths too, below those of the folders
    `pool.paths.WRITABLE` in which the Python that runs it does not lie.

    Raises ValueError, by name, for a limit as `Limits` does, a wait below 0, and code, stdin or files that are no text
    or no bytes.
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
        """Code may be any text: Python refuses what is none of its own. stdin may hold what `surrogateescape` makes of
        bytes."""
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
        """What it runs under where `limits` hold for programs that give none of their own."""
        return (self.limits or limits).with_(self.timeout, self.memory)


class ProgramOptions(TypedDict, total=False):
    """The fields of `Program` beside the code, as keywords of `run`. files: none where None."""

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
    """Raises ValueError for one that is no whole number from 0 and below 2**63."""
    if seed is not None and (type(seed) is not int or not 0 <= seed < SEEDS):
        raise ValueError(f"seed is {seed!r}: it must be a whole number from 0 and below 2**63")


def as_program(asked: str | Program, options: ProgramOptions) -> Program:
    """The program that `run` was asked for, be it given whole or as code; options take the place of its fields.

    Raises ValueError as `Program` does, TypeError for an option that is none.
    """
    if isinstance(asked, Program) and not options:
        return asked
    given: dict[str, Any] = {**options}
    if given.get("files", ()) is None:
        given["files"] = {}
    return replace(asked, **given) if isinstance(asked, Program) else Program(asked, **given)


def as_cell(asked: str | Program, options: ProgramOptions) -> Program:
    """As `as_program`, for a session. Raises ValueError too for what its cells do not have."""
    program = as_program(asked, options)
    if program.wait is not None:
        raise ValueError("wait is for calls: a session has its worker already")
    if program.seed is not None:
        raise ValueError("seed is for calls: a session has one from its start, `session(seed=…)`")
    return program


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one call.

    status: from how the process ended, never from its text. error_type: name of the exception that ended it,
    `TimeoutError` for either clock, a signal's name (`SIGSEGV`), `TOO_LONG`, None where status is ok. stderr of a
    failure ends with a line that names it. value: repr of the last expression, None where there is none or it is None.
    exit_code: negative for a signal, None where no process ended. seconds: wall. peak_memory: bytes, resident.
    tier: what held around it, None where nothing ran as far as is known. files: content of the files that were asked
    for and found (`Program.fetch`).
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
"""A function of the host that a session's cells can call: arguments and result are JSON values."""


def check_functions(functions: Mapping[str, HostFunction]) -> None:
    """Raises ValueError for a name that a program cannot call."""
    for name in functions:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"functions: {name!r} is not a name that Python takes")


class Session(Protocol):
    """One interpreter that keeps its variables and its scratch folder between cells; one cell at a time.

    id: unique among all sessions. A session is lost when its interpreter ends (`os._exit`, a signal, a limit), when the
    sandbox evicts it (idle for too long, too much memory), or when its worker dies. Whatever the cause, the cell in
    flight is answered by a Result, and `SessionLost` names the cause from then on.
    """

    id: str

    async def run(self, program: str | Program, /, **options: Unpack[ProgramOptions]) -> Result:
        """Run a cell, as `Sandbox.run`, without `wait` and `seed`. Raises SessionLost."""
        ...

    async def checkpoint(self) -> str:
        """Freeze the state as it is now, variables and scratch files; its name.

        Raises SessionLost, CheckpointRefused where this state cannot be kept (docs/sandbox/sandbox.md).
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

    async def run(self, program: str | Program, /, **options: Unpack[ProgramOptions]) -> Result:
        """Run a program, or a text as one: `run("print(1)", timeout=5)` is `run(Program("print(1)", timeout=5))`.

        A fault of the sandbox itself is a result of status `infrastructure`. Raises ValueError as `Program` does, and
        for a file path that leaves the scratch folder; SandboxUnavailable where the sandbox is not open, SandboxBusy
        where the call had to wait for too long.
        """
        ...

    async def session(
        self,
        *,
        limits: Limits | None = None,
        seed: int | None = None,
        functions: Mapping[str, HostFunction] | None = None,
    ) -> Session:
        """Open a fresh interpreter that keeps its state.

        A cell that calls one of the functions waits for its result, with its wall clock stopped; calls from several
        threads run at the same time. What a function raises is a RuntimeError in the cell. A rollback does not undo
        what a function did.

        Args:
            limits: of each cell, the sandbox's own where None.
            seed: as `Program.seed`, once at the start.
            functions: of the host, by the names under which cells call them. A sandbox elsewhere takes none.

        Raises ValueError for a function's name, SandboxUnavailable where there is no room for one more, or the sandbox
        is not open.
        """
        ...

    async def close(self) -> None:
        """End all that runs, sessions too. Calls in flight get status `infrastructure`."""
        ...


class StartedSandbox:
    """Base of the sandboxes that `async with` starts and closes."""

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
