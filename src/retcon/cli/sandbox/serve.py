"""`retcon sandbox serve`: the sandbox over HTTP."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Annotated

import typer

from retcon.cli.common.arguments import TierName, number
from retcon.cli.common.serving import Host, Port, TokenFile, need_serving, token_of, token_option
from retcon.core.texts import counted

if TYPE_CHECKING:
    from retcon.http.server import StopSignals
    from retcon.sandbox.pool import SandboxPool
    from retcon.sandbox.service.settings import Settings


def serve(
    *,
    host: Host = "127.0.0.1",
    port: Port = 8088,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            min=1,
            help="Calls at a time; by default several per core, as memory allows.",
            show_default=False,
        ),
    ] = None,
    tier: TierName = None,
    sessions: Annotated[int, typer.Option("--sessions", min=1, help="Sessions that may be open at a time.")] = 64,
    packages: Annotated[
        list[str] | None,
        typer.Option(
            "--package",
            help="A package to preload besides numpy, sympy and scipy; may be repeated.",
            show_default=False,
        ),
    ] = None,
    warm: Annotated[
        list[str] | None,
        typer.Option(
            "--warm",
            metavar="PROFILE",
            help="A profile to preload at the start rather than at first use; may be repeated.",
            show_default=False,
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            "--python",
            metavar="PATH",
            help="The interpreter that runs programs; this one by default.",
            show_default=False,
        ),
    ] = None,
    token: Annotated[str | None, token_option("RETCON_SANDBOX_TOKEN")] = None,
    token_file: TokenFile = None,
    timeout: Annotated[
        float, typer.Option("--timeout", callback=number, help="Seconds that a call gets unless it asks for others.")
    ] = 10.0,
    memory: Annotated[int, typer.Option("--memory", help="MiB that a call gets unless it asks for others.")] = 512,
    max_timeout: Annotated[
        float, typer.Option("--max-timeout", callback=number, help="The most seconds that a call may ask for.")
    ] = 600.0,
    max_memory: Annotated[int, typer.Option("--max-memory", help="The most MiB that a call may ask for.")] = 16384,
    queue: Annotated[int, typer.Option("--queue", help="Calls that may wait; more are refused.")] = 20000,
    max_calls: Annotated[int, typer.Option("--max-calls", help="The most calls of one batch.")] = 4096,
    max_body: Annotated[int, typer.Option("--max-body", help="The most MiB of a request.")] = 64,
    judge_chars: Annotated[
        int, typer.Option("--judge-chars", help="Characters of stdout and of stderr that code-judge's API returns.")
    ] = 1000,
    fusion_output: Annotated[
        int, typer.Option("--fusion-output", help="KiB of stdout and of stderr that SandboxFusion's API returns.")
    ] = 1024,
    fusion_wait: Annotated[
        float,
        typer.Option(
            "--fusion-wait", callback=number, help="Seconds that a call of SandboxFusion's API waits for a worker."
        ),
    ] = 8.0,
    drain: Annotated[
        int,
        typer.Option(
            "--drain",
            min=0,
            help="Seconds that calls and open sessions get after Ctrl-C or SIGTERM, while nothing new is taken in.",
        ),
    ] = 0,
) -> None:
    """Serve the sandbox over HTTP: its own API, code-judge's and SandboxFusion's."""
    need_serving()
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
            max_calls=max_calls,
            max_body=max_body * MIB,
            judge_chars=judge_chars,
            fusion_bytes=fusion_output << 10,
            fusion_wait=fusion_wait,
            token=token_of(token, token_file),
            drain=drain,
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
    from retcon.http.server import LAST_SECONDS, StopSignals, listen

    opened = listen(host, port)
    asyncio.run(_serve(opened, settings, sandbox, StopSignals(drain + LAST_SECONDS)))
    typer.echo("stopped", err=True)


async def _serve(opened: socket.socket, settings: Settings, sandbox: SandboxPool, signals: StopSignals) -> None:
    from retcon.http import server
    from retcon.sandbox.service.app import create_app

    files = server.allow_many_connections()
    async with sandbox:
        url = server.address_of(opened)
        typer.echo(
            f"listening on {url} · tier {sandbox.tier} · {counted(settings.workers, 'worker')} · "
            f"{'a token is asked for' if settings.token else 'no token'} · up to {files} open files"
        )
        for line in sandbox.worker.unprotected:
            typer.echo(f"tier {sandbox.tier} leaves open in {line}", err=True)
        if not server.is_local(opened) and settings.token is None:
            warning = (
                f"WARNING: {url} can be reached from other machines, and anyone who reaches it can run programs here. "
                "Give --token-file, or listen on 127.0.0.1."
            )
            typer.secho(warning, fg="red", bold=True, err=True)
        app = create_app(sandbox, sandbox.tier, settings, sandbox.fleet.folders)
        await server.serve(app, opened, signals, draining=app.draining)
