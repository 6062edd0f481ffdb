"""Calls per second and CPU per call of the sandbox, for `print(1 + 1)`.

python benchmarks/sandbox.py [--workers N] [--calls N] [--tier namespaces|landlock|rlimits]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import resource
import time
from datetime import date
from pathlib import Path

from retcon.sandbox.pool import SandboxPool


def cpu_ms(kind: int) -> float:
    usage = resource.getrusage(kind)
    return 1000 * (usage.ru_utime + usage.ru_stime)


def worker_cpu_ms(pid: int) -> float:
    """CPU of the worker and of the calls it has reaped; `pid` may be the worker or the process that waits for it."""
    pids = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    fields = [Path(f"/proc/{p}/stat").read_text().rpartition(")")[2].split() for p in pids]
    return sum(int(tick) for stat in fields for tick in stat[11:15]) * 1000 / os.sysconf("SC_CLK_TCK")


async def measure(workers: int, calls: int, tier: str | None) -> str:
    started = time.perf_counter()
    async with SandboxPool(workers=workers, tier=tier) as sandbox:
        ready = time.perf_counter() - started
        await asyncio.gather(*(sandbox.run("print(1 + 1)") for _ in range(50)))
        pid = sandbox.worker.pid
        before = worker_cpu_ms(pid)
        begun, own = time.perf_counter(), cpu_ms(resource.RUSAGE_SELF)
        results = await asyncio.gather(*(sandbox.run("print(1 + 1)") for _ in range(calls)))
        seconds, own = time.perf_counter() - begun, cpu_ms(resource.RUSAGE_SELF) - own
        worker = (worker_cpu_ms(pid) - before) * workers  # of the first, for all: they share the calls
        held = sandbox.tier
    if any(result.stdout != "2\n" for result in results):
        raise SystemExit("a call gave a wrong answer")
    child = sum(result.seconds for result in results) / calls * 1000
    return (
        f"tier {held}, {workers} workers: {calls / seconds:.0f} calls/s; "
        f"{1000 * seconds * workers / calls:.2f} ms of a worker's wall time a call, {child:.2f} ms of it from fork to "
        f"end; CPU a call: {own / calls:.2f} ms in the caller, {worker / calls:.2f} ms in the sandbox; "
        f"pool ready in {1000 * ready:.0f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--tier", choices=("namespaces", "landlock", "rlimits"))
    arguments = parser.parse_args()
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(": ")[2] if models else platform.machine()
    print(f"{date.today()}  {model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Linux {platform.release()}")
    print(asyncio.run(measure(arguments.workers, arguments.calls, arguments.tier)))


if __name__ == "__main__":
    main()
