"""`retcon sandbox exec`: one program, from a file or standard input."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retcon.cli.common.arguments import TierName, number
from retcon.core.errors import SandboxUnavailable

if TYPE_CHECKING:
    from retcon.sandbox.pool import SandboxPool
    from retcon.sandbox.types import Limits, Result, Sandbox, Tier

TIMEOUT, LIMIT, INFRASTRUCTURE = 124, 125, 126
"""Exit codes for what is no exit code of the program; 124 is what timeout(1) has."""


def execute(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="A Python program; - is standard input.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
    tier: TierName = None,
    timeout: Annotated[
        float, typer.Option("--timeout", callback=number, help="Seconds, of CPU time and of wall time.")
    ] = 10.0,
    memory: Annotated[int, typer.Option("--memory", help="MiB that the program may use.")] = 512,
    stdin: Annotated[
        str | None,
        typer.Option(
            "--stdin", metavar="FILE|-", help="The program's standard input; empty by default.", show_default=False
        ),
    ] = None,
    packages: Annotated[
        list[str] | None,
        typer.Option(
            "--package", help="A package to preload, outside the program's limits; may be repeated.", show_default=False
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            "--python", metavar="PATH", help="The interpreter to run it with, and its packages.", show_default=False
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Run it on this server instead of here.", show_default=False)
    ] = None,
) -> None:
    """Run a program in the sandbox.

    Prints what the program prints, then the value of its last expression. The exit code is the program's (128 + n
    where signal n ended it); 124: out of time, 125: over another limit, such as memory, 126: the sandbox failed, 2:
    nothing was run, for a reason that is said.
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
            said = "--package and --python are the server's to choose: give them to `retcon sandbox serve` there"
            raise typer.BadParameter(said, param_hint="--url")
        result = asyncio.run(_run_there(code, given, limits, tier, url))
    if as_json:
        import msgspec

        typer.echo(msgspec.json.format(msgspec.json.encode(asdict(result)), indent=1).decode())
    else:
        _show(result)
    raise typer.Exit(exit_code(result))


def exit_code(result: Result) -> int:
    """As documented in the command's help."""
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
    """Its text, with the ends of its lines as they are; `-` is standard input. Raises typer.BadParameter where it
    cannot be read."""
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
    """Raises typer.BadParameter where the sandbox does not take the program: too large, or more than it allows."""
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
