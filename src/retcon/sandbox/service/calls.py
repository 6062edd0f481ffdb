"""Calls of all APIs: settings, metrics, limits and checks."""

from __future__ import annotations

import base64
import binascii
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

from retcon.core.errors import SandboxBusy, SandboxUnavailable
from retcon.http.endpoints import RETRY_AFTER_SECONDS, Gate, RequestRefused
from retcon.sandbox.pool.paths import inside_scratch, to_write
from retcon.sandbox.types import HostFunction, Limits, Program, Result, Sandbox, Session, Tier

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the service.

    limits: of calls without their own. max_timeout, max_memory: most seconds and MiB of a call. workers: concurrent
    calls of the sandbox, for the metrics. queue: calls that may wait besides them; more are refused. max_calls: calls
    of one batch. max_body: bytes of a request. max_code: characters of a program. judge_chars: characters of stdout and
    of stderr in code-judge's API (that service's default). fusion_bytes: bytes of each in SandboxFusion's (likewise).
    fusion_wait: most seconds that a call of SandboxFusion's API waits for a worker, besides its client's time for
    compiling (verl's gives up after 10). token: bearer token that requests must carry, if not None. session_idle:
    seconds after which an unused session is closed when another opens. drain: seconds for open calls and sessions at
    shutdown. Raises ValueError if a bound is not above 0 (drain: below 0), or limits exceed max_timeout or max_memory.
    """

    limits: Limits = field(default_factory=lambda: Limits(cpu_seconds=10.0, wall_seconds=10.0))
    max_timeout: float = 600.0
    max_memory: int = 16384
    workers: int = 2
    queue: int = 20000
    max_calls: int = 4096
    max_body: int = 64 * MIB
    max_code: int = 2 * MIB
    judge_chars: int = 1000
    fusion_bytes: int = MIB
    fusion_wait: float = 8.0
    token: str | None = None
    session_idle: float = 3600.0
    drain: float = 0.0

    def __post_init__(self) -> None:
        for bound in fields(self):
            value = getattr(self, bound.name)
            if isinstance(value, int | float) and not (value > 0 or (bound.name == "drain" and value == 0)):
                raise ValueError(f"{bound.name} is {value}: it must be above 0")
        for flag, own, most in (
            ("timeout", max(self.limits.cpu_seconds, self.limits.wall_seconds), self.max_timeout),
            ("memory", self.limits.memory_mb, self.max_memory),
        ):
            if own > most:
                raise ValueError(
                    f"--{flag} is {own:g}, above --max-{flag} {most:g}: a call that asks for none would get more than "
                    "any may ask for; lower the one or raise the other"
                )
        if self.token is not None and not (self.token and self.token.isascii() and self.token.isprintable()):
            raise ValueError("the token must be of printable ASCII characters, and not empty")


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "retcon_sandbox_"
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds in seconds."""


class Metrics:
    """Counters since the service started, in Prometheus' format."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.requests: Counter[int] = Counter()
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def answered(self, api: str, status: str, seconds: float) -> None:
        """Count an ended call of `api`. seconds: wall time since its arrival."""
        self.calls[api, status] += 1
        self._sum += seconds
        place = next((i for i, bound in enumerate(BUCKETS) if seconds <= bound), len(BUCKETS))
        self._buckets[place] += 1

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Render all metrics. gauges: name to (help text, value)."""
        lines = _head("calls_total", "counter", "Calls answered, by API and by how they ended.")
        lines += [_line("calls_total", n, api=api, status=status) for (api, status), n in sorted(self.calls.items())]
        lines += _head("http_requests_total", "counter", "Requests answered, by HTTP status.")
        lines += [_line("http_requests_total", n, code=str(code)) for code, n in sorted(self.requests.items())]
        lines += _head("call_seconds", "histogram", "Wall time of a call, from when it was taken in to its result.")
        below = 0
        for bound, count in zip([*map(repr, BUCKETS), "+Inf"], self._buckets, strict=True):
            below += count
            lines.append(_line("call_seconds_bucket", below, le=bound))
        lines += [_line("call_seconds_sum", self._sum), _line("call_seconds_count", below)]
        for name, (says, value) in gauges.items():
            lines += [*_head(name, "gauge", says), _line(name, value)]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, says: str) -> list[str]:
    return [f"# HELP {PREFIX}{name} {says}", f"# TYPE {PREFIX}{name} {kind}"]


def _line(name: str, value: float, **labels: str) -> str:
    inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{PREFIX}{name}{{{inner}}} {value!r}" if inner else f"{PREFIX}{name} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class ServedSession(Session, Protocol):
    """A session that knows whether it has ended."""

    @property
    def ended(self) -> bool: ...


class ServedSandbox(Sandbox, Protocol):
    """A sandbox that counts its open sessions."""

    @property
    def open_sessions(self) -> int: ...

    async def session(
        self,
        *,
        limits: Limits | None = None,
        seed: int | None = None,
        functions: Mapping[str, HostFunction] | None = None,
        opening: Program | None = None,
    ) -> ServedSession: ...


class Calls:
    """Runner of calls in the sandbox, with their number and metrics. tier, folders: see `create_app`."""

    def __init__(self, sandbox: ServedSandbox, tier: Tier, settings: Settings, folders: Collection[str]) -> None:
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
        """Run a call and count its result. patient: wait for room.

        Raises RequestRefused: 503 without room or if the sandbox is closed, 422 if the sandbox refuses the call itself.
        """
        await self.gate.enter(patient=patient)
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
        """Check fields against the service's maxima. Raises RequestRefused."""
        bounds = ((seconds, self.settings.max_timeout, "s"), (mib, self.settings.max_memory, "MiB"))
        for asked, most, unit in bounds:
            for name, value in asked.items():
                if value is not None and value > most:
                    raise RequestRefused.invalid(name, f"{value:g} {unit}: this server allows {most:g} {unit} at most")

    def check_count(self, calls: Sequence[object], field: str) -> None:
        """Check the number of calls of a batch. Raises RequestRefused."""
        most = self.settings.max_calls
        if len(calls) > most:
            message = f"{len(calls)} calls in one batch: this server takes {most} at most, send the others in another"
            raise RequestRefused.invalid(field, message)

    def too_long(self, code: str) -> str | None:
        """Describe the error of a program that is too long, else None."""
        most = self.settings.max_code
        return f"a program of {len(code)} characters: this server takes {most} at most" if len(code) > most else None


def strip_exit(result: Result) -> str:
    """Remove the exit code's line from stderr, which other services lack."""
    line = f"SystemExit: {result.exit_code}\n"
    return result.stderr.removesuffix(line) if result.error_type == "SystemExit" else result.stderr


def unavailable(error: SandboxUnavailable, kind: str = "unavailable") -> RequestRefused:
    return RequestRefused(503, kind, str(error), headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


def fit_text(limits: Limits, text: str) -> Limits:
    """Raise the output limit so that output like `text` is not cut."""
    return replace(limits, output_bytes=max(limits.output_bytes, 2 * len(text.encode("utf-8", "replace")) + 1024))


def decode_files(files: Mapping[str, str | None], field: str, tier: str, folders: Collection[str]) -> dict[str, bytes]:
    """Decode files from base64, without contents of None. tier, folders: the server's. Raises RequestRefused, which
    names the file."""
    decoded = {}
    try:
        to_write(files, tier, folders)
    except ValueError as error:
        raise RequestRefused.invalid(field, str(error)) from error
    for name, content in files.items():
        if content is None:
            continue
        try:
            decoded[name] = base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError) as error:
            raise RequestRefused.invalid(
                f"{field}.{name}", f"the content of file '{name}' is not base64: {error}"
            ) from error
    return decoded


def check_paths(paths: Iterable[str], field: str, tier: str, folders: Collection[str]) -> list[str]:
    """Check paths. tier, folders: the server's. Raises RequestRefused for one outside of the program's folders."""
    try:
        return inside_scratch(paths, tier, folders)
    except ValueError as error:
        raise RequestRefused.invalid(field, str(error)) from error


def check_text(text: str, field: str, errors: str = "strict") -> str:
    """Check that a text is valid UTF-8; else raise RequestRefused. errors: of `str.encode`."""
    try:
        text.encode("utf-8", errors)
    except UnicodeEncodeError as error:
        raise RequestRefused.invalid(field, f"not Unicode: {error.reason} at character {error.start}") from error
    return text


_FILES = "files."
_STEP = re.compile(r"\[([0-9]+)]|[^].[]+")


def own_error_body(refused: RequestRefused) -> dict[str, Any]:
    """Render an error in this service's own API."""
    return {"error": {"type": refused.kind, "field": refused.field, "message": refused.message}, **refused.extra}


def fastapi_error_body(refused: RequestRefused) -> dict[str, Any]:
    """Render an error like FastAPI, which code-judge and SandboxFusion use."""
    field = refused.field or ""
    where: list[str | int] = ["body"]
    if field.startswith(_FILES):  # the rest is a file's name with any characters
        where += ["files", field.removeprefix(_FILES)]
    else:
        where += [step[0] if step[1] is None else int(step[1]) for step in _STEP.finditer(field)]
    return {"detail": [{"type": refused.kind, "loc": where, "msg": refused.message}]}
