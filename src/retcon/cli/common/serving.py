"""What commands that serve have in common."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from retcon.core.errors import MissingExtra
from retcon.core.installing import how_to_install

EXTRA = ("starlette", "uvicorn")
"""The packages of [serve]."""
Host = Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0 lets other machines connect.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes any free one.")]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="A file that contains the token.", show_default=False),
]


def token_option(variable: str) -> Any:
    """`--token`. variable: of the environment, which says it too."""
    said = "Bearer token (API key) to require. Other users of this machine can read a command line: prefer the file."
    return typer.Option("--token", envvar=variable, help=said, show_default=False)


def need_serving() -> None:
    """Raises MissingExtra, with what to install, where [serve] is not there."""
    if missing := [name for name in EXTRA if find_spec(name) is None]:
        raise MissingExtra(f"serving needs {', '.join(missing)}: {how_to_install('serve')}")


def token_of(token: str | None, file: Path | None) -> str | None:
    """The token, or that in a file. Raises ValueError where the file cannot be read or is empty."""
    if file is None:
        return token
    try:
        found = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(f"--token-file {file}: {error.strerror}") from error
    if not found:
        raise ValueError(f"--token-file {file}: it is empty")
    return found
