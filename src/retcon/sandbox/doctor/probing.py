"""What the sandbox enforces on this machine, found by trying: for `retcon doctor`."""

from __future__ import annotations

import asyncio
import statistics
import time
import warnings
from dataclasses import dataclass

from retcon.core.errors import SandboxUnavailable, SandboxWarning
from retcon.sandbox.pool.pool import SandboxPool
from retcon.sandbox.types import Tier


@dataclass(frozen=True, slots=True)
class Probe:
    """tier: None where the sandbox is unavailable, and `problem` says why.

    network, files, own_user: whether calls are kept from the network, from writing outside their scratch folder, and
    from the rights of the user who started Retcon. unprotected: what the tier leaves open, in words. no_cgroup: why the
    kernel does not bound a call's memory over all its processes, "" where it does. fork_ms: median wall milliseconds of
    an empty program, from fork to its end.
    calls_per_second: of `print(1 + 1)`, with one worker.
    """

    tier: Tier | None
    problem: str = ""
    network: bool = False
    files: bool = False
    own_user: bool = False
    unprotected: tuple[str, ...] = ()
    no_cgroup: str = ""
    fork_ms: float = 0.0
    calls_per_second: float = 0.0


TIERS: tuple[Tier, ...] = ("namespaces", "landlock", "rlimits")
"""The strongest first."""


def probe(seconds: float = 0.5, tier: Tier | None = None) -> Probe:
    """Start one worker and measure it for `seconds` (wall). Not to be called from a running event loop.

    tier: the best that can be had where None.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SandboxWarning)  # the probe says it
            return asyncio.run(_probe(seconds, tier))
    except SandboxUnavailable as error:
        return Probe(None, problem=str(error))


def probe_tiers(seconds: float = 0.5) -> dict[Tier, Probe]:
    """What becomes of each tier when it is asked for; each takes `seconds` where it can be had."""
    return {tier: probe(seconds, tier) for tier in TIERS}


async def _probe(seconds: float, tier: Tier | None) -> Probe:
    async with SandboxPool(workers=1, tier=tier) as sandbox:
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
            unprotected=facts.unprotected,
            no_cgroup=facts.no_cgroup,
            fork_ms=1000 * statistics.median(empty),
            calls_per_second=calls / elapsed,
        )
