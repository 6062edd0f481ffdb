"""How a call gets from any of the APIs to the sandbox."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import Protocol

from retcon.core.errors import SandboxBusy, SandboxUnavailable
from retcon.http.gate import RETRY_AFTER_SECONDS, Gate
from retcon.http.refusal import RequestRefused
from retcon.sandbox.service.metrics import Metrics
from retcon.sandbox.service.settings import Settings
from retcon.sandbox.types import Limits, Result, Sandbox, Session, Tier


class Ending(Session, Protocol):
    """A session that knows whether it has ended, by whatever cause."""

    @property
    def ended(self) -> bool: ...


class Counting(Sandbox, Protocol):
    """A sandbox that can be served: it knows how many of its sessions have not ended."""

    @property
    def open_sessions(self) -> int: ...

    async def session(self, *, limits: Limits | None = None, seed: int | None = None) -> Ending: ...


class Calls:
    """The sandbox, and the count of what runs in it. tier, folders: of its calls, as `create_app` has them."""

    def __init__(self, sandbox: Counting, tier: Tier, settings: Settings, folders: Collection[str]) -> None:
        self.sandbox = sandbox
        self.tier = tier
        self.settings = settings
        self.folders = folders
        self.gate = Gate(settings.workers + settings.queue)
        self.metrics = Metrics()

    @property
    def queued(self) -> int:
        """Calls that wait for a worker or for room."""
        return max(self.gate.inside - self.settings.workers, 0) + self.gate.waiting

    async def run(self, api: str, call: Callable[[], Awaitable[Result]], *, patient: bool = False) -> Result:
        """Take a call in and count what became of it. patient: wait where there is no room.

        Raises RequestRefused: 503 where there is no room or the sandbox is closed, 422 where the sandbox finds the
        call itself wrong.
        """
        if patient:
            await self.gate.wait()
        else:
            self.gate.enter()
        started = time.perf_counter()
        try:
            result = await call()
        except SandboxBusy as error:
            raise unavailable(error, "busy") from error
        except SandboxUnavailable as error:
            raise unavailable(error) from error
        except ValueError as error:
            raise RequestRefused.invalid(None, str(error)) from error
        finally:
            self.gate.leave()
        self.metrics.answered(api, result.status, time.perf_counter() - started)
        return result

    def check_bounds(self, seconds: dict[str, float | None], mib: dict[str, int | None]) -> None:
        """Raises RequestRefused for a field above what the service allows."""
        bounds = ((seconds, self.settings.max_timeout, "s"), (mib, self.settings.max_memory, "MiB"))
        for asked, most, unit in bounds:
            for name, value in asked.items():
                if value is not None and value > most:
                    raise RequestRefused.invalid(name, f"{value:g} {unit}: this server allows {most:g} {unit} at most")

    def check_count(self, calls: Sequence[object], field: str) -> None:
        """Raises RequestRefused where a batch has more calls than the service takes in one."""
        most = self.settings.max_calls
        if len(calls) > most:
            said = f"{len(calls)} calls in one batch: this server takes {most} at most, send the others in another"
            raise RequestRefused.invalid(field, said)

    def too_long(self, code: str) -> str | None:
        """What is wrong with a program of that length, None where nothing is."""
        most = self.settings.max_code
        return f"a program of {len(code)} characters: this server takes {most} at most" if len(code) > most else None


def own_stderr(result: Result) -> str:
    """stderr without the line that the sandbox adds for an exit code: the other services add none."""
    line = f"SystemExit: {result.exit_code}\n"
    return result.stderr.removesuffix(line) if result.error_type == "SystemExit" else result.stderr


def unavailable(error: SandboxUnavailable, kind: str = "unavailable") -> RequestRefused:
    return RequestRefused(503, kind, str(error), headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


def room_for(limits: Limits, text: str) -> Limits:
    """Limits under which output that may equal `text`, but for white space around it, is not cut."""
    return replace(limits, output_bytes=max(limits.output_bytes, 2 * len(text.encode("utf-8", "replace")) + 1024))
