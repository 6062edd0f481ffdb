"""SandboxFusion's `/run_code`, as verl's client speaks it.

Kept of its meaning: `Success` for exit code 0, `Failed` for any other and for a time limit, `SandboxError` for the
sandbox's own faults; a run that hit its time limit has no return code; files travel in base64; of output the first MiB
is kept, of stdout and of stderr each; fields that it does not know are let pass.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, Literal

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from retcon.http.body import parse
from retcon.http.handling import answer, read_body, unless_gone
from retcon.http.refusal import RequestRefused
from retcon.sandbox.service.apis.languages import Languages, Ran
from retcon.sandbox.service.calls import Calls, own_stderr
from retcon.sandbox.service.files import check_paths, check_text, decode_files
from retcon.sandbox.types import Limits, Program, Result

API = "sandbox_fusion"
POD = "MY_POD_NAME"
"""The environment variable whose value is answered as `executor_pod_name`."""
Whole = Literal["Success", "Failed", "SandboxError"]
Seconds = Annotated[float, Meta(gt=0)]
SECONDS = 10.0
"""SandboxFusion's own, for compiling and for running, where a request names none."""


class RunCode(Struct, kw_only=True):
    """A program to run. compile_timeout, run_timeout: SandboxFusion's 10 s, or the most that is allowed here, where
    absent. memory_limit_MB: MiB; 0 and below take the server's own. args: pytest's.

    files: path to content in base64. Paths are relative to the program's folder or, in the tier `namespaces`, below
    /tmp, /dev/shm, /mnt, /data or /workspace, of which the last three are one folder.
    """

    code: str
    language: str
    compile_timeout: Seconds | None = None
    run_timeout: Seconds | None = None
    memory_limit_MB: int = -1
    stdin: str | None = None
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []
    args: list[str] = []


class Command(Struct, kw_only=True):
    """How the compiler or the program ended. execution_time: seconds."""

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class CodeRan(Struct, kw_only=True):
    """What `/run_code` answers. files: path to content in base64."""

    status: Whole
    message: str = ""
    compile_result: Command | None = None
    run_result: Command | None = None
    executor_pod_name: str | None = None
    files: dict[str, bytes] = {}


class FusionApi:
    """The handler of `/run_code`."""

    def __init__(self, calls: Calls, languages: Languages) -> None:
        self._calls = calls
        self._languages = languages

    async def run_code(self, request: Request) -> Response:
        asked = parse(await read_body(request, self._calls.settings.max_body), RunCode)
        return await answered(self._calls, unless_gone(request, self._run(asked)), CodeRan)

    async def _run(self, asked: RunCode) -> CodeRan:
        calls, settings = self._calls, self._calls.settings
        if (problem := calls.too_long(asked.code)) is not None:
            raise RequestRefused.invalid("code", problem)
        limits = bounded(calls, "run_timeout", asked.run_timeout, SECONDS, asked.memory_limit_MB)
        calls.check_bounds({"compile_timeout": asked.compile_timeout}, {})
        compile_seconds = asked.compile_timeout or min(SECONDS, settings.max_timeout)
        # Who names a time for compiling waits for that long too: it may go into waiting where nothing is compiled.
        spare = compile_seconds if asked.language != "cpp" else 0.0
        program = Program(
            asked.code,
            stdin=check_text(asked.stdin or "", "stdin"),
            files=decode_files(asked.files, "files", calls.tier, calls.folders),
            fetch=check_paths(asked.fetch_files, "fetch_files", calls.tier, calls.folders),
            limits=limits,
            wait=settings.fusion_wait + spare,
        )
        arguments = [check_text(argument, f"args[{index}]") for index, argument in enumerate(asked.args)]
        if (problem := await self._languages.problem(asked.language)) is not None:
            raise RequestRefused.invalid("language", problem)
        limits = limits.with_(compile_seconds)
        ran = await self._languages.run(API, asked.language, program, arguments=arguments, compile_limits=limits)
        return _from_steps(ran, settings.fusion_bytes)


def bounded(calls: Calls, field: str, seconds: float | None, usual: float, mib: int) -> Limits:
    """The limits of a program, whose output is kept as far as this API gives it.

    field: which says how long it may run, `seconds`, or `usual` where that is allowed and it says nothing. Raises
    RequestRefused for one above what the service allows.
    """
    memory = mib if mib > 0 else None
    calls.check_bounds({field: seconds}, {"memory_limit_MB": memory})
    # Twice as much as is given, since the sandbox keeps head and tail: the head is then as long as what is given.
    limits = replace(calls.settings.limits, output_bytes=2 * calls.settings.fusion_bytes)
    return limits.with_(seconds or min(usual, calls.settings.max_timeout), memory)


async def answered(calls: Calls, work: Awaitable[Struct], kind: Callable[..., Struct]) -> Response:
    """What `work` comes to, or `kind` with status `SandboxError` where there is no room for it.

    That goes out as 504, the one status after which verl's client asks again; SandboxFusion's own does after any.
    """
    try:
        return answer(await work)
    except RequestRefused as refused:
        if refused.status != HTTPStatus.SERVICE_UNAVAILABLE:
            raise
        calls.metrics.answered(API, refused.kind, 0.0)
        said = kind(status="SandboxError", message=refused.message, executor_pod_name=pod())
        return answer(said, HTTPStatus.GATEWAY_TIMEOUT, dict(refused.headers or {}))


def pod() -> str | None:
    return os.environ.get(POD)


def head(text: str, most: int) -> str:
    """The first `most` bytes of its UTF-8."""
    return text if len(text) * 4 <= most else text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


def _from_steps(ran: Ran, most: int) -> CodeRan:
    last = ran.last
    whole: Whole = "Success" if ran.started and last.status == "ok" else "Failed"
    message = ""
    if last.status == "infrastructure":
        whole, message = "SandboxError", last.stderr
    return CodeRan(
        status=whole,
        message=message,
        compile_result=None if ran.compiled is None else _command(ran.compiled, most),
        run_result=_command(last, most) if ran.started else None,
        executor_pod_name=pod(),
        files=dict(last.files) if ran.started else {},
    )


def _command(result: Result, most: int) -> Command:
    if result.status == "infrastructure":
        return Command(status="Error", stdout=head(result.stdout, most), stderr=head(result.stderr, most))
    late = result.status == "timeout"
    return Command(
        status="TimeLimitExceeded" if late else "Finished",
        execution_time=result.seconds,
        return_code=None if late else result.exit_code,
        stdout=head(result.stdout, most),
        stderr=head(own_stderr(result), most),
    )
