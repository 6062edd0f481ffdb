"""One exchange with a sandbox server: the request, the answer, and what its failure means. Used by `client`."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import msgspec

from retcon.core.errors import CheckpointRefused, SandboxUnavailable, SessionLost
from retcon.http.asking import Answer, Connections, NoAnswer
from retcon.sandbox.types import Limits, Program, Result

SERVERS_FAULT = 500
"""From this status of HTTP on not the request is at fault, but a server, or what stands before it."""
LATER = (408, 425, 429)
"""Statuses below it by which what stands before a server, as a proxy that limits the rate does, asks to be asked again.
"""
NOT_OURS = (401, 403, 404)
"""Statuses of HTTP that say of whom they come from, and not of what was asked, that it is no server of ours."""


class ServerUnavailable(Exception):
    """A server did not answer, through no fault of the call. after: seconds that it asked to wait, 0 where it did not.

    down: it could not be reached or broke off, rather than being busy.
    """

    def __init__(self, message: str, *, after: float = 0.0, down: bool = True) -> None:
        super().__init__(message)
        self.after = after
        self.down = down


class Remote:
    """One server. connections: requests at a time, the others wait here. patience: seconds that an answer may take
    beyond the call's own wall limit."""

    def __init__(self, url: str, token: str | None, *, connections: int, patience: float) -> None:
        self.url = url.rstrip("/")
        self._patience = patience
        self._turns = asyncio.Semaphore(connections)
        # A proxy for the outside world has no business between a trainer and its sandbox.
        self._connections = Connections(token or "", proxies=False)

    async def close(self) -> None:
        await self._connections.close()

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        seconds: float = 0.0,
        patience: float | None = None,
        key: str | None = None,
    ) -> Answer:
        """The answer of a request that was served.

        seconds: how long the work itself may take. patience: in place of the client's. key: marks repetitions.

        Raises ServerUnavailable (no answer, `LATER`, any 5xx but the server's own `internal`), ServerBroken (that one),
        CallRefused (the request is wrong, or too large), SessionLost (the session is gone), KeyError (no such
        checkpoint), SandboxUnavailable (the server is no sandbox, or wants another token).
        """
        headers = {} if key is None else {"Idempotency-Key": key}
        longest = seconds + (self._patience if patience is None else patience)
        async with self._turns:
            try:
                response = await self._connections.ask(
                    method, f"{self.url}{path}", body, seconds=longest, headers=headers
                )
            except NoAnswer as error:
                raise ServerUnavailable(f"{self.url}: {error}") from error
        if not response.ok:
            self._raise(response)
        return response

    def _raise(self, response: Answer) -> None:
        said = _error_in(response)
        message, kind = said.get("message", response.text[:200]), said.get("type")
        later = response.status in LATER
        if later or (response.status >= SERVERS_FAULT and kind != "internal"):
            after = response.headers.get("Retry-After", "")
            raise ServerUnavailable(
                f"{self.url}: {response.status} {message}",
                after=float(after) if after.isdecimal() else 0.0,
                down=not later and kind != "busy",
            )
        if kind == "session_lost":
            raise SessionLost(message, by_own_code=bool(response.json().get("by_own_code")))
        if kind == "unknown_session":
            raise SessionForgotten(message)
        if kind == "refused":
            raise CheckpointRefused(message, full=bool(response.json().get("full")))
        if kind == "unknown_checkpoint":
            raise KeyError(message)
        if kind in ("invalid", "invalid_json", "too_long"):
            result = _result_in(response)
            if result is not None:
                raise RequestAnswered(result)
            raise CallRefused(message, said.get("field"))
        if response.status == 401:
            raise NotOurs(
                f"{self.url} requires another token: put the server's into RETCON_SANDBOX_TOKEN, or give it as `token`"
            )
        if kind == "internal":
            raise ServerBroken(f"{self.url}: {message}")
        fault = NotOurs if response.status in NOT_OURS else SandboxUnavailable
        raise fault(f"{self.url} answers {response.status}: is it a retcon sandbox server? {message}")


class CallRefused(ValueError):
    """The server takes no such request. field: at which it stopped, None where it names none."""

    def __init__(self, message: str, field: str | None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


class SessionForgotten(SessionLost):
    """The server knows no such session: unlike one that is lost there, it cannot be rolled back."""


class ServerBroken(SandboxUnavailable):
    """The server met a fault of its own in this request: another try, or another server, would meet it again."""


class NotOurs(SandboxUnavailable):
    """What answers is no sandbox server, as a proxy is whose server is away, or it is one that wants another token."""


class LimitsRefused(SandboxUnavailable):
    """The server allows calls less than the limits that all of them would ask for: it would refuse each."""


class RequestAnswered(Exception):
    """A request was refused, but the program in it has a result all the same."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.error_type)
        self.result = result


def _error_in(response: Answer) -> dict[str, Any]:
    try:
        error = response.json().get("error")
    except (ValueError, AttributeError):  # a proxy's page, say
        return {}
    return error if isinstance(error, dict) else {}


def _result_in(response: Answer) -> Result | None:
    return msgspec.convert(found, Result) if (found := response.json().get("result")) is not None else None


def with_limits(program: Program, limits: Limits | None) -> Program:
    """The program, under `limits` where it gives none of its own."""
    return program if program.limits is not None or limits is None else replace(program, limits=limits)


def call_body(program: Program) -> dict[str, Any]:
    """A call as the server's API has it."""
    body = cell_body(program)
    if program.wait is not None:
        body["wait"] = program.wait
    if program.seed is not None:
        body["seed"] = program.seed
    return body


def cell_body(program: Program) -> dict[str, Any]:
    """A session's cell as the server's API has it."""
    # The API takes an empty program for a mistake; here it is a program like others, that does nothing.
    body: dict[str, Any] = {"code": program.code or "pass", "stdin": program.stdin, "echo": program.echo}
    if program.timeout is not None:
        body["timeout"] = program.timeout
    if program.memory is not None:
        body["memory"] = program.memory
    if program.limits is not None:
        body["limits"] = asdict(program.limits)
    if program.files:
        body["files"] = {name: base64.b64encode(content).decode() for name, content in program.files.items()}
    if program.fetch:
        body["fetch"] = list(program.fetch)
    return body


def wall_seconds(program: Program) -> float:
    """How long a call may run, 0 where only the server knows."""
    return program.timeout or (program.limits.wall_seconds if program.limits is not None else 0.0)
