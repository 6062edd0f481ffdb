"""SandboxFusion's `/run_code`, as verl's client speaks it.

Kept of its meaning: `Success` for exit code 0, `Failed` for any other and for a time limit, `SandboxError` for the
sandbox's own faults; a run that hit its time limit has no return code; files travel in base64; fields that it does not
know are let pass. There is no compilation, so `compile_result` is null.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from retcon.sandbox.service.body import check_paths, check_text, decode_files, parse
from retcon.sandbox.service.calls import Calls, own_stderr
from retcon.sandbox.service.http import answer, read_body, unless_gone
from retcon.sandbox.service.refusal import Refused
from retcon.sandbox.types import Result

SERVED = "python"
POD = "MY_POD_NAME"
"""The environment variable whose value is answered as `executor_pod_name`."""


class RunCode(Struct, kw_only=True):
    """memory_limit_MB: MiB; 0 and below take the server's own. compile_timeout, args: for languages not served here."""

    code: str
    language: str
    compile_timeout: float = 10.0
    run_timeout: Annotated[float, Meta(gt=0)] = 10.0
    memory_limit_MB: int = -1
    stdin: str | None = None
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []
    args: list[str] = []


class FusionApi:
    """The handler of `/run_code`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def run_code(self, request: Request) -> Response:
        asked = parse(await read_body(request, self._calls.settings.max_body), RunCode)
        if asked.language != SERVED:
            raise Refused.invalid("language", f"language '{asked.language}' is not served here: only '{SERVED}'")
        if (problem := self._calls.too_long(asked.code)) is not None:
            raise Refused.invalid("code", problem)
        memory = asked.memory_limit_MB if asked.memory_limit_MB > 0 else None
        self._calls.check_bounds({"run_timeout": asked.run_timeout}, {"memory_limit_MB": memory})
        options: dict[str, Any] = {
            "stdin": check_text(asked.stdin or "", "stdin"),
            "limits": self._calls.settings.limits.with_(asked.run_timeout, memory),
            "files": decode_files(asked.files, "files"),
            "fetch": check_paths(asked.fetch_files, "fetch_files"),
            "echo": False,
        }
        work = self._calls.run("sandbox_fusion", lambda: self._calls.sandbox.run(asked.code, **options))
        try:
            result = await unless_gone(request, work)
        except Refused as refused:
            if refused.status != 503:
                raise
            self._calls.metrics.answered("sandbox_fusion", refused.kind, 0.0)
            return answer(_said("SandboxError", refused.message))
        return answer(_from_result(result))


def _from_result(result: Result) -> dict[str, Any]:
    if result.status == "infrastructure":
        return _said("SandboxError", result.stderr, _command("Error", result))
    status = "TimeLimitExceeded" if result.status == "timeout" else "Finished"
    whole = "Success" if result.status == "ok" else "Failed"
    return _said(whole, "", _command(status, result), dict(result.files))


def _command(status: str, result: Result) -> dict[str, Any]:
    return {
        "status": status,
        "execution_time": result.seconds if status != "Error" else None,
        "return_code": result.exit_code if status == "Finished" else None,
        "stdout": result.stdout,
        "stderr": own_stderr(result),
    }


def _said(
    status: str, message: str, run: dict[str, Any] | None = None, files: dict[str, bytes] | None = None
) -> dict[str, Any]:
    return {
        "status": status,
        "message": message,
        "compile_result": None,
        "run_result": run,
        "executor_pod_name": os.environ.get(POD),
        "files": files or {},
    }
