"""From a program to what a worker is told."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from retcon.sandbox.jail.messages import Bounds, RunCall
from retcon.sandbox.pool.paths import check_room, inside_scratch, to_write
from retcon.sandbox.types import Limits, Program


def call(program: Program, limits: Limits, tier: str, folders: Sequence[str]) -> RunCall:
    """limits: that it runs under. tier, folders: the worker's. Raises ValueError for a path that is not the program's
    own."""
    files = _encoded(program, tier, folders)
    fetch = inside_scratch(program.fetch, tier, folders)
    return RunCall(program.code, program.stdin, bounds(limits), files, program.echo, fetch, program.seed)


def cell(program: Program, limits: Limits, file_mb: int, tier: str, folders: Sequence[str]) -> RunCall:
    """Make the message of a session's cell, which gets files in the scratch folder alone.

    tier, folders: the worker's, from which it hands files back. file_mb: the session's limit. Its interpreter, which
    nothing frees from that, writes what a cell is given. Raises ValueError for more.
    """
    sizes = {f"file {name!r}": len(content) for name, content in program.files.items()}
    sizes["stdin"] = len(program.stdin.encode("utf-8", "surrogateescape"))
    for what, size in sizes.items():
        if size > file_mb << 20:
            raise ValueError(
                f"{what} takes {size / (1 << 20):.1f} MiB, above the session's limit file_mb of {file_mb}: open the "
                "session with more"
            )
    fetch = inside_scratch(program.fetch, tier, folders)
    return RunCall(program.code, program.stdin, bounds(limits), _encoded(program, "", ()), program.echo, fetch)


def bounds(limits: Limits) -> Bounds:
    return Bounds._make(getattr(limits, name) for name in Bounds._fields)


def _encoded(program: Program, tier: str, folders: Sequence[str]) -> dict[str, str]:
    files = program.files
    check_room(files, program.stdin)
    return {name: base64.b64encode(files[name]).decode() for name in to_write(files, tier, folders)}
