"""The `retcon sandbox` commands, which need no training."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retcon.cli.arguments import Host, Port, TierName, TokenFile, check_number, need_serving, read_token, token_option
from retcon.core.errors import SandboxUnavailable
from retcon.core.texts import counted

if TYPE_CHECKING:
    from rich.console import Console

    from retcon.http.server import StopSignals
    from retcon.sandbox.doctor import Probe
    from retcon.sandbox.pool import SandboxPool
    from retcon.sandbox.service.calls import Settings
    from retcon.sandbox.types import Limits, Result, Sandbox, Tier

TIMEOUT, LIMIT, INFRASTRUCTURE = 124, 125, 126
"""Exit codes for what is no exit code of the program; 124 is what timeout(1) has."""


def execute(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="A Python program; - is standard input.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
    tier: TierName = None,
    timeout: Annotated[
        float, typer.Option("--timeout", callback=check_number, help="Seconds, of CPU time and of wall time.")
    ] = 10.0,
    memory: Annotated[int, typer.Option("--memory", help="MiB that the program may use.")] = 512,
    stdin: Annotated[
        str | None, typer.Option("--stdin", metavar="FILE|-", help="The program's standard input; empty by default.")
    ] = None,
    packages: Annotated[
        list[str] | None,
        typer.Option("--package", help="A package to preload, outside the program's limits; may be repeated."),
    ] = None,
    python: Annotated[
        str | None, typer.Option("--python", metavar="PATH", help="The interpreter to run it with, and its packages.")
    ] = None,
    url: Annotated[str | None, typer.Option("--url", help="Run it on this server instead of here.")] = None,
) -> None:
    """Run a program in the sandbox.

    Prints what the program prints, then the value of its last expression. The exit code is the program's (128 + n
    where signal n ended it); 124: out of time, 125: over another limit, such as memory, 126: the sandbox failed, 2:
    nothing was run, for the reason printed.
    """
    from retcon.sandbox.types import Limits

    try:
        limits = Limits(memory_mb=memory).with_(timeout)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if file == stdin == "-":
        raise typer.BadParameter(
            "standard input is the program already: give one of them as a file", param_hint="--stdin"
        )
    code = _read(file, "FILE").removeprefix("\ufeff")  # of an editor that marks UTF-8, which Python passes over
    given = _read(stdin, "--stdin") if stdin is not None else ""
    if url is None:
        result = asyncio.run(_run_here(code, given, _pool(tier, packages or [], python), limits))
    else:
        if packages or python is not None:
            why = "--package and --python are options of the server: give them to `retcon sandbox serve` there"
            raise typer.BadParameter(why, param_hint="--url")
        result = asyncio.run(_run_there(code, given, limits, tier, url))
    if as_json:
        import msgspec

        typer.echo(msgspec.json.format(msgspec.json.encode(asdict(result)), indent=1).decode())
    else:
        _show(result)
    raise typer.Exit(exit_code(result))


def exit_code(result: Result) -> int:
    """Return the exit code documented in the command's help."""
    if result.status == "timeout":
        return TIMEOUT
    if result.status == "limit":
        return LIMIT
    if result.status == "infrastructure" or result.exit_code is None:
        return INFRASTRUCTURE
    if result.exit_code == 0 and result.status == "error":
        return 1  # it ended itself while its error was shown
    return result.exit_code if result.exit_code >= 0 else 128 - result.exit_code


def _read(file: str, what: str) -> str:
    """The file's text with its line ends; `-` is standard input. Raises typer.BadParameter where it cannot be read."""
    try:
        return (sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()).decode()
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint=what) from error
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{file}: not UTF-8: {error.reason} at byte {error.start}", param_hint=what) from error


def _pool(tier: Tier | None, packages: list[str], python: str | None) -> SandboxPool:
    from retcon.sandbox.pool import SandboxPool

    try:
        return SandboxPool(workers=1, tier=tier, packages=packages, python=python)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--package") from error


async def _run_here(code: str, stdin: str, pool: SandboxPool, limits: Limits) -> Result:
    async with pool:
        return await _taken(pool, code, stdin, limits)


async def _run_there(code: str, stdin: str, limits: Limits, tier: Tier | None, url: str) -> Result:
    from retcon.sandbox.client import SandboxClient, token_from_environment

    try:
        remote = SandboxClient(url, token=token_from_environment(), tries=2)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--url") from error
    async with remote as client:
        if tier is not None and client.tier != tier:
            raise SandboxUnavailable(f"{url}: its tier is '{client.tier}', not '{tier}'")
        return await _taken(client, code, stdin, limits)


async def _taken(sandbox: Sandbox, code: str, stdin: str, limits: Limits) -> Result:
    """Run the program. Raises typer.BadParameter where the sandbox refuses it as too large or over its limits."""
    try:
        return await sandbox.run(code, stdin=stdin, limits=limits)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _show(result: Result) -> None:
    sys.stdout.write(result.stdout)
    if result.value is not None:
        sys.stdout.write(("" if not result.stdout or result.stdout.endswith("\n") else "\n") + result.value + "\n")
    sys.stdout.flush()
    sys.stderr.write(result.stderr)


def serve(
    *,
    host: Host = "127.0.0.1",
    port: Port = 8088,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Calls at a time; by default several per core, as memory allows."),
    ] = None,
    tier: TierName = None,
    sessions: Annotated[int, typer.Option("--sessions", min=1, help="Sessions that may be open at a time.")] = 64,
    packages: Annotated[
        list[str] | None,
        typer.Option("--package", help="A package to preload besides numpy, sympy and scipy; may be repeated."),
    ] = None,
    warm: Annotated[
        list[str] | None,
        typer.Option(
            "--warm",
            metavar="PROFILE",
            help="A profile to preload at the start rather than at first use; may be repeated.",
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PATH", help="The interpreter that runs programs; this one by default."),
    ] = None,
    token: Annotated[str | None, token_option("RETCON_SANDBOX_TOKEN")] = None,
    token_file: TokenFile = None,
    timeout: Annotated[
        float,
        typer.Option("--timeout", callback=check_number, help="Seconds that a call gets unless it asks for others."),
    ] = 10.0,
    memory: Annotated[int, typer.Option("--memory", help="MiB that a call gets unless it asks for others.")] = 512,
    max_timeout: Annotated[
        float, typer.Option("--max-timeout", callback=check_number, help="The most seconds that a call may ask for.")
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
            "--fusion-wait",
            callback=check_number,
            help="Seconds that a call of SandboxFusion's API waits for a worker.",
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
    from retcon.sandbox.service.calls import MIB, Settings
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
            token=read_token(token, token_file),
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
        url = server.url_of(opened)
        typer.echo(
            f"listening on {url} · tier {sandbox.tier} · {counted(settings.workers, 'worker')} · "
            f"{'a token is asked for' if settings.token else 'no token'} · up to {files} open files"
        )
        for line in sandbox.worker.facts.unprotected:
            typer.echo(f"tier {sandbox.tier} leaves open in {line}", err=True)
        if not server.is_local(opened) and settings.token is None:
            warning = (
                f"WARNING: {url} can be reached from other machines, and anyone who reaches it can run programs here. "
                "Give --token-file, or listen on 127.0.0.1."
            )
            typer.secho(warning, fg="red", bold=True, err=True)
        app = create_app(sandbox, sandbox.tier, settings, sandbox.fleet.folders)
        await server.serve(app, opened, signals, draining=app.draining)


def sandbox_doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show the available tiers, obstacles, measurements and advice."""
    from retcon.sandbox.doctor import Probe, inspect_machine, list_advice, probe_tiers

    machine = inspect_machine()
    tiers = probe_tiers()
    best = next((found for found in tiers.values() if found.tier), Probe(None, problem=tiers["rlimits"].problem))
    tips = list_advice(machine, best)
    if as_json:
        import json

        probes = {name: asdict(found) for name, found in tiers.items()}
        typer.echo(
            json.dumps({"machine": asdict(machine), "tiers": probes, "best": best.tier, "advice": tips}, indent=1)
        )
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, found in tiers.items():
        for label, text in sandbox_rows(name, found):
            table.add_row(label, text)
    bounded = best.tier is not None and not best.no_cgroup
    table.add_row("cgroup v2", mark(bounded, "the kernel bounds a call's memory over all its processes"))
    console = Console()
    console.print(table)
    print_advice(console, tips)


def sandbox_rows(label: str, found: Probe) -> list[tuple[str, str]]:
    """Return table rows with a probe's findings."""
    from rich.markup import escape

    if found.tier is None:
        return [(label, f"[red]✗[/] {escape(found.problem)}")]
    speed = f"{found.calls_per_second:.0f} calls/s with one worker, fork to end {found.fork_ms:.1f} ms"
    return [
        (label, f"[green]✓[/] tier {found.tier}: {speed}"),
        ("", mark(found.network, "no network for calls")),
        ("", mark(found.files, "no writing outside a call's scratch folder")),
        ("", mark(found.own_user, "calls run without your rights")),
        *(("", mark(False, escape(f"left open in {line}"))) for line in found.unprotected),
    ]


def mark(good: bool, text: str) -> str:
    return f"[green]✓[/] {text}" if good else f"[yellow]–[/] {text}"


def print_advice(console: Console, advice: Sequence[str]) -> None:
    console.print("\n[bold]to do[/]" if advice else "\n[green]all is well[/]")
    for line in advice:
        console.print(f"  {line}", markup=False, highlight=False)


sandbox = typer.Typer(
    name="sandbox",
    no_args_is_help=True,
    help="Run untrusted Python: as a service, or one file.",
    rich_markup_mode="rich",
)
sandbox.command("serve")(serve)
sandbox.command("exec")(execute)
sandbox.command("doctor")(sandbox_doctor)
