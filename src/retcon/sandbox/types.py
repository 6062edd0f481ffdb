"""The Sandbox protocol: a program in, a typed result out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, Protocol

from retcon.core.types import Status

Tier = Literal["namespaces", "rlimits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call may use. Raises ValueError where a limit is not above 0.

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
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"limit {field.name} is {getattr(self, field.name)}: it must be above 0")


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one call.

    status: from how the process ended, never from its text. error_type: name of the exception that ended it,
    `TimeoutError` for either clock, a signal's name (`SIGSEGV`), None where status is ok. stderr of a failure ends
    with a line that names it. value: repr of the last expression, None where there is none or it is None.
    exit_code: negative for a signal, None where no process ended. seconds: wall. peak_memory: bytes, resident.
    tier: what held around the call.
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


class Sandbox(Protocol):
    """Runs untrusted Python. Every call starts from the same fresh interpreter and an empty folder."""

    async def run(
        self,
        code: str,
        *,
        stdin: str = "",
        limits: Limits | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> Result:
        """Run `code` as `__main__`, in a scratch folder that holds `files` (relative path to content).

        A fault of the sandbox itself is a result of status `infrastructure`. Raises ValueError for a file path that
        leaves the scratch folder, SandboxUnavailable where the sandbox is not open.
        """
        ...

    async def close(self) -> None:
        """End all that runs. Calls in flight get status `infrastructure`."""
        ...
