"""What is sent to a worker for one call or one cell."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from retcon.sandbox.paths import to_write
from retcon.sandbox.types import Limits


def request(code: str, stdin: str, limits: Limits, files: Mapping[str, bytes] | None, echo: bool) -> dict[str, Any]:
    """Raises ValueError for code that is no text, or a file path that leaves the scratch folder."""
    if not isinstance(code, str):
        raise ValueError(f"code is a {type(code).__name__}: it must be a text")
    files = files or {}
    return {
        "code": code,
        "stdin": stdin,
        "limits": asdict(limits),
        "files": {name: base64.b64encode(files[name]).decode() for name in to_write(files)},
        "echo": echo,
    }
