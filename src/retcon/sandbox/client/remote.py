"""One exchange with a sandbox server: the request, the answer, and what its failure means. Used by `client`."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import httpx
import msgspec

from retcon.core.errors import CheckpointRefused, SandboxUnavailable, SessionLost
from retcon.sandbox.types import Limits, Program, Result

CONNECT_SECONDS = 10.0
RETRIED_STATUS = (502, 503, 504)


class ServerUnavailable(Exception):
    """A server did not answer, through no fault of the call. after: seconds that it asked to wait, 0 where it did not.

    down: it could not be reached or broke off, rather than being busy.
    """

    def __init__(self, message: str, *, after: float = 0.0, down: bool = True) -> None:
        super().__init__(message)
        self.after = after
        self.down = down


def _trusted() -> ssl.SSLContext | bool:
    """Whose certificates are believed: those that OpenSSL's own variables name, else the well-known ones."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    return ssl.create_default_context(cafile=file, capath=folder) if file or folder else True


class Remote:
    """The connections to one server. patience: seconds that an answer may take beyond the call's own wall limit."""

    def __init__(self, url: str, token: str | None, *, connections: int, patience: float) -> None:
        self.url = url.rstrip("/")
        self._patience = patience
        # httpx's own queue for connections takes the longer for each request the more of them wait.
        self._turns = asyncio.Semaphore(connections)
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=connections),
            trust_env=False,  # a proxy for the outside world has no business between a trainer and its sandbox
            verify=_trusted() if url.startswith("https:") else False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        seconds: float = 0.0,
        patience: float | None = None,
        key: str | None = None,
    ) -> httpx.Response:
        """The answer of a request that was served.

        seconds: how long the work itself may take. patience: in place of the client's. key: marks repetitions.

        Raises ServerUnavailable (no answer, 502, 503, 504), ValueError (the request is wrong, or too large),
        SessionLost (the session is gone), KeyError (no such checkpoint), SandboxUnavailable (the server is no sandbox,
        or wants another token).
        """
        headers = {} if key is None else {"Idempotency-Key": key}
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = json.dumps(body).encode()
        longest = seconds + (self._patience if patience is None else patience)
        timeout = httpx.Timeout(longest, connect=CONNECT_SECONDS, pool=None)
        async with self._turns:
            try:
                response = await self._http.request(method, path, content=content, headers=headers, timeout=timeout)
            except httpx.TimeoutException as error:
                raise ServerUnavailable(f"{self.url}: no answer in time ({type(error).__name__})") from error
            except httpx.TransportError as error:
                raise ServerUnavailable(f"{self.url}: {error or type(error).__name__}") from error
        if not response.is_success:
            self._raise(response)
        return response

    def _raise(self, response: httpx.Response) -> None:
        said = _error_in(response)
        message, kind = said.get("message", response.text[:200]), said.get("type")
        if response.status_code in RETRIED_STATUS:
            after = response.headers.get("Retry-After", "")
            raise ServerUnavailable(
                f"{self.url}: {response.status_code} {message}",
                after=float(after) if after.isdigit() else 0.0,
                down=kind != "busy",
            )
        if kind == "session_lost":
            raise SessionLost(message, by_own_code=bool(response.json().get("by_own_code")))
        if kind == "unknown_session":
            raise SessionForgotten(message)
        if kind == "refused":
            raise CheckpointRefused(message)
        if kind == "unknown_checkpoint":
            raise KeyError(message)
        if kind in ("invalid", "invalid_json", "too_long"):
            result = _result_in(response)
            if result is not None:
                raise RequestAnswered(result)
            raise ValueError(f"{said['field']}: {message}" if said.get("field") else message)
        if response.status_code == 401:
            raise SandboxUnavailable(f"{self.url} requires another token: {message}")
        if kind == "internal":
            raise ServerBroken(f"{self.url}: {message}")
        raise SandboxUnavailable(f"{self.url} answers {response.status_code}: is it a retcon sandbox server? {message}")


class SessionForgotten(SessionLost):
    """The server knows no such session: unlike one that is lost there, it cannot be rolled back."""


class ServerBroken(SandboxUnavailable):
    """The server met a fault of its own in this request: another try, or another server, would meet it again."""


class RequestAnswered(Exception):
    """A request was refused, but the program in it has a result all the same."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.error_type)
        self.result = result


def _error_in(response: httpx.Response) -> dict[str, Any]:
    try:
        error = response.json().get("error")
    except (ValueError, AttributeError):  # a proxy's page, say
        return {}
    return error if isinstance(error, dict) else {}


def _result_in(response: httpx.Response) -> Result | None:
    return msgspec.convert(found, Result) if (found := response.json().get("result")) is not None else None


def with_limits(program: Program, limits: Limits | None) -> Program:
    """The program, under `limits` where it gives none of its own."""
    return program if program.limits is not None or limits is None else replace(program, limits=limits)


def call_body(program: Program) -> dict[str, Any]:
    """A call as the server's API has it."""
    body = cell_body(program) | {"fetch": list(program.fetch)}
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
    return body


def wall_seconds(program: Program) -> float:
    """How long a call may run, 0 where only the server knows."""
    return program.timeout or (program.limits.wall_seconds if program.limits is not None else 0.0)
