"""Errors in OpenAI's format, and the endpoint's settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from retcon.core.errors import (
    CheckpointError,
    EngineError,
    InfrastructureFault,
    RecipeError,
    RecordError,
    SandboxUnavailable,
    StorageError,
)
from retcon.http.endpoints import RETRY_AFTER_SECONDS, Body, RequestRefused, parse_body

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def openai_error_body(refused: RequestRefused) -> dict[str, Any]:
    """Render an error: `type` by status, `code` a stable identifier, `param` the invalid field."""
    kind = _TYPES.get(refused.status) or ("server_error" if refused.status >= 500 else "invalid_request_error")
    error = {"message": refused.message, "type": kind, "param": refused.field, "code": refused.kind}
    return {"error": error, **refused.extra}


def invalid_request(field: str | None, message: str, kind: str = "invalid") -> RequestRefused:
    """Return the refusal of an invalid field."""
    return RequestRefused(400, kind, message, field=field)


def parse_request(body: bytes, kind: type[Body]) -> Body:
    """Parse a body (`parse_body`), with status 400 for errors, as OpenAI does."""
    try:
        return parse_body(body, kind)
    except RequestRefused as refused:
        raise invalid_request(refused.field, refused.message, refused.kind) from refused


def unavailable(why: object) -> RequestRefused:
    """Return the refusal for a server fault, after which to try again."""
    message = f"the model or a tool is not available: {why}"
    return RequestRefused(503, "unavailable", message, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


@contextmanager
def reraise_as_refusal() -> Iterator[None]:
    """Reraise Retcon's errors as RequestRefused: 503 for infrastructure faults, 400 for messages that a template cannot
    render, 500 for refusals of engine or disk."""
    try:
        yield
    except (InfrastructureFault, SandboxUnavailable) as fault:
        raise unavailable(fault) from fault
    except CheckpointError as error:  # of the chat: a template that refuses the conversation
        raise invalid_request("messages", str(error)) from error
    except EngineError as error:
        raise RequestRefused(500, "engine", str(error)) from error
    except (RecordError, StorageError) as error:
        raise RequestRefused(500, "record", str(error)) from error


MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Settings of the endpoint. Raises RecipeError if a bound is below 1 (session_tokens: below 0).

    name: of the model, for clients. seed: for requests without one. answer_tokens: maximum and default of each message
    of the model. session_tokens: most tokens that the model writes in a session; 0: unlimited. at_once: concurrent
    requests; more are refused. sessions: open at a time; idle: seconds after which an unused one may be ended when
    another opens. max_body: bytes of a request. token: bearer token that requests must carry, if not None.
    """

    name: str
    seed: int = 0
    answer_tokens: int = 1024
    session_tokens: int = 0
    at_once: int = 256
    sessions: int = 4096
    idle: float = 3600.0
    max_body: int = 16 * MIB
    token: str | None = None

    def __post_init__(self) -> None:
        for name in ("answer_tokens", "at_once", "sessions", "idle", "max_body"):
            if getattr(self, name) < 1:
                raise RecipeError(f"--{name.replace('_', '-')} is {getattr(self, name)}: it must be 1 or more")
        if self.session_tokens < 0:
            raise RecipeError(f"--session-tokens is {self.session_tokens}: it must be 0 (no bound) or more")
        if self.token is not None and not (self.token and self.token.isascii() and self.token.isprintable()):
            raise RecipeError("the token must be of printable ASCII characters, and not empty")
