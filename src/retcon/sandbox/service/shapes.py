"""What the body of a refusal looks like, in each of the formats that are spoken here."""

from __future__ import annotations

from typing import Any

from retcon.http.refusal import RequestRefused


def as_own(refused: RequestRefused) -> dict[str, Any]:
    """The body in this service's own API."""
    return {"error": {"type": refused.kind, "field": refused.field, "message": refused.message}, **refused.extra}


def as_fastapi(refused: RequestRefused) -> dict[str, Any]:
    """The body as code-judge and SandboxFusion give it: both are built on FastAPI."""
    where: list[str | int] = ["body"]
    for part in (refused.field or "").replace("[", ".").replace("]", "").split("."):
        if part:
            where.append(int(part) if part.isdigit() else part)
    return {"detail": [{"type": refused.kind, "loc": where, "msg": refused.message}]}
