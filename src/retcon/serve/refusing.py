"""Errors as OpenAI's API gives them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from retcon.core.errors import (
    CheckpointError,
    EngineError,
    InfrastructureFault,
    RecordError,
    SandboxUnavailable,
    StorageError,
)
from retcon.http.body import T, parse
from retcon.http.gate import RETRY_AFTER_SECONDS
from retcon.http.refusal import RequestRefused

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def as_openai(refused: RequestRefused) -> dict[str, Any]:
    """The body: `type` by the status, `code` a word that programs can rely on, `param` the field that is wrong."""
    kind = _TYPES.get(refused.status) or ("server_error" if refused.status >= 500 else "invalid_request_error")
    said = {"message": refused.message, "type": kind, "param": refused.field, "code": refused.kind}
    return {"error": said, **refused.extra}


def wrong(field: str | None, message: str, kind: str = "invalid") -> RequestRefused:
    """A request that is wrong in a field."""
    return RequestRefused(400, kind, message, field=field)


def parsed(body: bytes, kind: type[T]) -> T:
    """As `retcon.http.body.parse`; what is refused is, as by OpenAI's servers, with status 400."""
    try:
        return parse(body, kind)
    except RequestRefused as refused:
        raise wrong(refused.field, refused.message, refused.kind) from refused


def unavailable(why: object) -> RequestRefused:
    """What is nobody's fault who asked: ask again."""
    said = f"the model or a tool is not available: {why}"
    return RequestRefused(503, "unavailable", said, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


@contextmanager
def told() -> Iterator[None]:
    """What Retcon raises within, as RequestRefused: faults of the machinery 503, what a chat cannot render 400, an
    engine's or a disk's refusal 500."""
    try:
        yield
    except (InfrastructureFault, SandboxUnavailable) as fault:
        raise unavailable(fault) from fault
    except CheckpointError as error:  # of the chat: a template that refuses the conversation
        raise wrong("messages", str(error)) from error
    except EngineError as error:
        raise RequestRefused(500, "engine", str(error)) from error
    except (RecordError, StorageError) as error:
        raise RequestRefused(500, "record", str(error)) from error
