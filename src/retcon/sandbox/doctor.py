"""Checks and advice on this machine's sandbox tiers, for `retcon doctor`."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

from retcon.core.errors import SandboxUnavailable, SandboxWarning
from retcon.sandbox.jail.confine import cgroup
from retcon.sandbox.pool.pool import SandboxPool
from retcon.sandbox.types import TIERS, Tier


@dataclass(frozen=True, slots=True)
class Probe:
    """Result of a sandbox check. tier: None if the sandbox is unavailable, for the reason `problem`.

    network, files, own_user: whether calls are kept from the network, from writing outside their scratch folder, and
    from the rights of the user who started Retcon. unprotected: gaps of the tier, in words. no_cgroup: why no cgroup
    limits a call's memory over all its processes, "" with one. fork_ms: median wall milliseconds of an empty program,
    from fork to its end. calls_per_second: of `print(1 + 1)`, with one worker.
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


def probe(seconds: float = 0.5, tier: Tier | None = None) -> Probe:
    """Start one worker and measure it for `seconds` (wall). Do not call it from a running event loop.

    tier: None for the best available one.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SandboxWarning)  # the probe reports it
            return asyncio.run(_probe(seconds, tier))
    except SandboxUnavailable as error:
        return Probe(None, problem=str(error))


def probe_tiers(seconds: float = 0.5) -> dict[Tier, Probe]:
    """Probe each tier; each takes `seconds` if it is available."""
    return {tier: probe(seconds, tier) for tier in TIERS}


async def _probe(seconds: float, tier: Tier | None) -> Probe:
    async with SandboxPool(workers=1, tier=tier) as sandbox:
        empty = [(await sandbox.run("")).seconds for _ in range(20)]
        calls, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds or not calls:
            await sandbox.run("print(1 + 1)")
            calls += 1
        facts = sandbox.worker.facts
        return Probe(
            tier=sandbox.tier,
            network=facts.network,
            files=facts.files,
            own_user=facts.own_user,
            unprotected=tuple(facts.unprotected),
            no_cgroup=facts.no_cgroup,
            fork_ms=1000 * statistics.median(empty),
            calls_per_second=calls / elapsed,
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts about this machine; None if unknown.

    user_namespaces: maximum number (user.max_user_namespaces). unprivileged_namespaces: whether ordinary users may make
    them, by the two sysctls of distributions. landlock: whether it is among the active LSMs. root: whether this is
    root.
    """

    system: str
    user_namespaces: int | None
    unprivileged_namespaces: bool | None
    landlock: bool | None
    root: bool


def inspect_machine() -> Machine:
    return Machine(
        system=sys.platform,
        user_namespaces=_number("/proc/sys/user/max_user_namespaces"),
        unprivileged_namespaces=_unprivileged(),
        landlock=None if (lsm := _text("/sys/kernel/security/lsm")) is None else "landlock" in lsm.split(","),
        root=hasattr(os, "geteuid") and os.geteuid() == 0,
    )


def list_advice(machine: Machine, best: Probe) -> list[str]:
    """List what to install or enable, most useful first."""
    if machine.system != "linux":
        return [f"the sandbox needs Linux, and this is {machine.system}: run it in a container or a virtual machine"]
    if best.tier is None:
        return [f"the sandbox is unavailable: {best.problem}"]
    found = []
    if best.tier != "namespaces":
        if machine.user_namespaces == 0:
            found.append("allow user namespaces: sysctl user.max_user_namespaces=15000")
        elif machine.unprivileged_namespaces is False and not machine.root:
            found.append(
                "let ordinary users make namespaces: sysctl kernel.unprivileged_userns_clone=1 (Debian), "
                "kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu)"
            )
        else:
            found.append(
                "namespaces are refused though the kernel has them: in a container, start it with "
                "--security-opt seccomp=unconfined (or deploy/seccomp.json of the clone) and, on a host with AppArmor, "
                "--security-opt apparmor=unconfined"
            )
        if machine.landlock is False:
            version = "5.13" if machine.root else "6.2"
            found.append(f"start the kernel ({version} or later) with landlock in its list of LSMs: lsm=landlock,…")
    if best.no_cgroup:
        found.append(
            "a call's memory over all its processes is checked every 50 ms, not limited by the kernel "
            f"({best.no_cgroup}): prepare a cgroup v2 with its memory and pids controllers and name it in "
            f"{cgroup.VARIABLE} (docs/sandbox/sandbox.md)"
        )
    return found


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _number(path: str) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdigit() else None


def _unprivileged() -> bool | None:
    clone = _number("/proc/sys/kernel/unprivileged_userns_clone")
    restricted = _number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if clone is None and restricted is None:
        return None
    return clone != 0 and restricted != 1
