"""What the body of a refusal looks like, in each of the formats that are spoken here."""

from __future__ import annotations

import re
from typing import Any

from retcon.http.refusal import RequestRefused

_FILES = "files."
_STEP = re.compile(r"\[([0-9]+)]|[^].[]+")


def as_own(refused: RequestRefused) -> dict[str, Any]:
    """The body in this service's own API."""
    return {"error": {"type": refused.kind, "field": refused.field, "message": refused.message}, **refused.extra}


def as_fastapi(refused: RequestRefused) -> dict[str, Any]:
    """The body as code-judge and SandboxFusion give it: both are built on FastAPI."""
    field = refused.field or ""
    where: list[str | int] = ["body"]
    if field.startswith(_FILES):  # what follows is a file's name, which may hold anything
        where += ["files", field.removeprefix(_FILES)]
    else:
        where += [step[0] if step[1] is None else int(step[1]) for step in _STEP.finditer(field)]
    return {"detail": [{"type": refused.kind, "loc": where, "msg": refused.message}]}
