"""What is sent to a worker for one call or one cell: checked before it is sent."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Any

from retcon.sandbox.types import Limits


def request(code: str, stdin: str, limits: Limits, files: Mapping[str, bytes] | None, echo: bool) -> dict[str, Any]:
    """Raises ValueError for a file path that leaves the scratch folder, or code that is no text."""
    if not isinstance(code, str):
        raise ValueError(f"code is a {type(code).__name__}: it must be a text")
    files = files or {}
    for name in files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
            raise ValueError(f"file {name!r} is not a path inside the scratch folder: give a relative one without '..'")
    return {
        "code": code,
        "stdin": stdin,
        "limits": asdict(limits),
        "files": {name: base64.b64encode(content).decode() for name, content in files.items()},
        "echo": echo,
    }
