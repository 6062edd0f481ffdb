"""What the service answers to requests that it does not serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RequestRefused(Exception):
    """A request that is answered by an HTTP error.

    status: of HTTP. kind: a word that programs can rely on. field: path to what is wrong (`calls[3].timeout`), None
    where it is no field of the body. extra: further members of the answer.
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
        self.headers = headers
        self.extra = extra or {}

    @classmethod
    def invalid(cls, field: str | None, message: str) -> RequestRefused:
        return cls(422, "invalid", message, field=field)

    def as_own(self) -> dict[str, Any]:
        """The body in this service's own API."""
        return {"error": {"type": self.kind, "field": self.field, "message": self.message}, **self.extra}

    def as_fastapi(self) -> dict[str, Any]:
        """The body as the services whose formats are spoken here give it: both are built on FastAPI."""
        where: list[str | int] = ["body"]
        for part in (self.field or "").replace("[", ".").replace("]", "").split("."):
            if part:
                where.append(int(part) if part.isdigit() else part)
        return {"detail": [{"type": self.kind, "loc": where, "msg": self.message}]}
