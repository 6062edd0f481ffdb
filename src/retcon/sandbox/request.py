"""What is sent to a worker for one call or one cell: checked before it is sent."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Any

from retcon.sandbox.types import Limits


def check(code: str, files: Mapping[str, bytes]) -> None:
    """Raises ValueError for code that is no text, or a file path that leaves the scratch folder."""
    if not isinstance(code, str):
        raise ValueError(f"code is a {type(code).__name__}: it must be a text")
    for name in files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
            raise ValueError(f"file {name!r} is not a path inside the scratch folder: give a relative one without '..'")


def request(code: str, stdin: str, limits: Limits, files: Mapping[str, bytes], echo: bool) -> dict[str, Any]:
    return {
        "code": code,
        "stdin": stdin,
        "limits": asdict(limits),
        "files": {name: base64.b64encode(content).decode() for name, content in files.items()},
        "echo": echo,
    }
