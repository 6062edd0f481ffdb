"""What a server answers to requests that it does not serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RequestRefused(Exception):
    """A request that is answered by an HTTP error.

    status: of HTTP. kind: a word that programs can rely on. field: path to what is wrong (`calls[3].timeout`), None
    where it is no field of the body. headers: of the answer. extra: further members of its body.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.field = field
        self.headers = headers or {}
        self.extra = extra or {}

    @classmethod
    def invalid(cls, field: str | None, message: str) -> RequestRefused:
        return cls(422, "invalid", message, field=field)
