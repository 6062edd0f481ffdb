"""What is sent to a worker for one call or one cell."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from retcon.sandbox.paths import to_write
from retcon.sandbox.types import Limits


def request(
    code: str, stdin: str, limits: Limits, files: Mapping[str, bytes] | None, echo: bool, *, tier: str = ""
) -> dict[str, Any]:
    """tier: the worker's. Raises ValueError as `check` does, and for a file path that is not the program's own."""
    files = files or {}
    check(code, stdin, files)
    return {
        "code": code,
        "stdin": stdin,
        "limits": asdict(limits),
        "files": {name: base64.b64encode(files[name]).decode() for name in to_write(files, tier)},
        "echo": echo,
    }


def check(code: str, stdin: str, files: Mapping[str, bytes]) -> None:
    """Raises ValueError, by name, for code or stdin that is no text, and a file's content that is no bytes.

    Code may be any text: Python refuses what is none of its own. stdin may hold what `surrogateescape` makes of bytes.
    """
    for name, text in (("code", code), ("stdin", stdin)):
        if not isinstance(text, str):
            raise ValueError(f"{name} is a {type(text).__name__}: it must be a text")
    try:
        stdin.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError(f"stdin is not Unicode: {error.reason} at character {error.start}") from error
    for path, content in files.items():
        if not isinstance(path, str):
            raise ValueError(f"file {path!r} is named by a {type(path).__name__}: its path must be a text")
        if not isinstance(content, bytes | bytearray | memoryview):
            raise ValueError(f"the content of file {path!r} is a {type(content).__name__}: it must be bytes")
