"""`retcon sandbox serve`: the sandbox over HTTP."""

from __future__ import annotations

import asyncio
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retcon.cli.common.arguments import TierName
from retcon.core.errors import MissingExtra
from retcon.core.installing import how_to_install

if TYPE_CHECKING:
    from retcon.sandbox.pool import SandboxPool
    from retcon.sandbox.service.server import StopSignals
    from retcon.sandbox.service.settings import Settings

EXTRA = ("starlette", "uvicorn")


def serve(
    *,
    host: Annotated[str, typer.Option("--host", help="Where to listen; 0.0.0.0 is everywhere.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes any that is free.")] = 8088,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            min=1,
            help="Calls at a time; several to a core by default, if memory allows.",
            show_default=False,
        ),
    ] = None,
    tier: TierName = None,
    sessions: Annotated[int, typer.Option("--sessions", min=1, help="Sessions that may be open at a time.")] = 64,
    packages: Annotated[
        list[str] | None,
        typer.Option(
            "--package", help="To preload besides numpy, sympy and scipy; may be repeated.", show_default=False
        ),
    ] = None,
    warm: Annotated[
        list[str] | None,
        typer.Option(
            "--warm", metavar="PROFILE", help="What to preload at the start, not at its first use.", show_default=False
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            "--python", metavar="PATH", help="The interpreter that runs programs; this one's.", show_default=False
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="RETCON_SANDBOX_TOKEN",
            help="Bearer token to ask for. Other users of this machine can read a command line: prefer the file.",
            show_default=False,
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="A file that holds it.", show_default=False)
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds of a call that asks for no other.")] = 10.0,
    memory: Annotated[int, typer.Option("--memory", help="MiB of a call that asks for no other.")] = 512,
    max_timeout: Annotated[float, typer.Option("--max-timeout", help="Seconds that a call may ask for.")] = 600.0,
    max_memory: Annotated[int, typer.Option("--max-memory", help="MiB that a call may ask for.")] = 16384,
    queue: Annotated[int, typer.Option("--queue", help="Calls that may wait; more are refused.")] = 20000,
    max_body: Annotated[int, typer.Option("--max-body", help="MiB of a request.")] = 64,
    judge_chars: Annotated[
        int, typer.Option("--judge-chars", help="Characters of stdout and stderr in code-judge's API.")
    ] = 1000,
    fusion_output: Annotated[
        int, typer.Option("--fusion-output", help="KiB of stdout and stderr in SandboxFusion's API.")
    ] = 1024,
    fusion_wait: Annotated[
        float, typer.Option("--fusion-wait", help="Seconds that a call of SandboxFusion's API waits for a worker.")
    ] = 8.0,
) -> None:
    """Serve the sandbox over HTTP: its own API, code-judge's and SandboxFusion's."""
    if missing := [name for name in EXTRA if find_spec(name) is None]:
        raise MissingExtra(f"serving needs {', '.join(missing)}: {how_to_install('serve')}")
    from retcon.sandbox.pool import SandboxPool, default_workers
    from retcon.sandbox.service.settings import MIB, Settings
    from retcon.sandbox.types import Limits, SessionBounds

    try:
        limits = Limits(memory_mb=memory).with_(timeout)
        settings = Settings(
            limits=limits,
            max_timeout=max_timeout,
            max_memory=max_memory,
            workers=workers or default_workers(limits),
            queue=queue,
            max_body=max_body * MIB,
            judge_chars=judge_chars,
            fusion_bytes=fusion_output << 10,
            fusion_wait=fusion_wait,
            token=_token(token, token_file),
        )
        sandbox = SandboxPool(
            settings.workers,
            limits,
            tier=tier,
            python=python,
            packages=packages or (),
            warm=warm or (),
            sessions=SessionBounds(sessions),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    from retcon.sandbox.service.server import StopSignals, listen

    opened = listen(host, port)
    asyncio.run(_serve(opened, settings, sandbox, StopSignals()))
    typer.echo("stopped", err=True)


async def _serve(opened: socket.socket, settings: Settings, sandbox: SandboxPool, signals: StopSignals) -> None:
    from retcon.sandbox.service import server
    from retcon.sandbox.service.app import create_app

    files = server.allow_many_connections()
    async with sandbox:
        url = server.address_of(opened)
        typer.echo(
            f"listening on {url} · tier {sandbox.tier} · {settings.workers} workers · "
            f"{'a token is asked for' if settings.token else 'no token'} · up to {files} open files"
        )
        if not server.is_local(opened) and settings.token is None:
            warning = (
                f"WARNING: {url} can be reached from other machines, and anyone who reaches it can run programs here. "
                "Give --token-file, or listen on 127.0.0.1."
            )
            typer.secho(warning, fg="red", bold=True, err=True)
        await server.serve(create_app(sandbox, sandbox.tier, settings), opened, signals)


def _token(token: str | None, file: Path | None) -> str | None:
    """Raises ValueError where the file cannot be read or is empty."""
    if file is None:
        return token
    try:
        found = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(f"--token-file {file}: {error.strerror}") from error
    if not found:
        raise ValueError(f"--token-file {file}: it is empty")
    return found
