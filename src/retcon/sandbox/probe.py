"""What the sandbox enforces on this machine, found by trying: for `retcon doctor`."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass

from retcon.core.errors import SandboxUnavailable
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Tier


@dataclass(frozen=True, slots=True)
class Probe:
    """tier: None where the sandbox cannot be had, and `problem` says why.

    network, files, own_user: whether calls are kept from the network, from writing outside their scratch folder, and
    from the rights of the user who started Retcon. fork_ms: median wall milliseconds of an empty program, from fork to
    its end. calls_per_second: of `print(1 + 1)`, with one worker.
    """

    tier: Tier | None
    problem: str = ""
    network: bool = False
    files: bool = False
    own_user: bool = False
    fork_ms: float = 0.0
    calls_per_second: float = 0.0


def probe(seconds: float = 0.5) -> Probe:
    """Start one worker and measure it for `seconds` (wall). Not to be called from a running event loop."""
    try:
        return asyncio.run(_probe(seconds))
    except SandboxUnavailable as error:
        return Probe(None, problem=str(error))


async def _probe(seconds: float) -> Probe:
    async with SandboxPool(workers=1) as sandbox:
        empty = [(await sandbox.run("")).seconds for _ in range(20)]
        calls, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds or not calls:
            await sandbox.run("print(1 + 1)")
            calls += 1
        facts = sandbox.worker
        return Probe(
            tier=sandbox.tier,
            network=facts.network,
            files=facts.files,
            own_user=facts.own_user,
            fork_ms=1000 * statistics.median(empty),
            calls_per_second=calls / elapsed,
        )
