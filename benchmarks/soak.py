"""One step's worth of calls at once, with faults in the middle: is every one answered, and is anything left?

python benchmarks/soak.py [--calls 45000] [--workers N] [--tier namespaces|landlock|rlimits]

Of the calls 2 % loop for ever (until --timeout seconds), 10 % raise, 2 % import numpy, the rest print a number of
their own. A third on, a zygote is killed by SIGKILL; two thirds on, a worker that is running a call. Ends with exit
code 1 where a call was lost, got another's answer, or where a process, descriptor or file is left.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Result, Tier


def program(number: int) -> tuple[str, str]:
    """(kind, code) of a call."""
    if number % 50 == 7:
        return "endless", f"print({number}, flush=True)\nwhile True: pass"
    if number % 10 == 3:
        return "raises", f"raise ValueError({number})"
    if number % 50 == 9:
        return "numpy", f"import numpy\nprint(numpy.int64({number}))"
    return "prints", f"print({number})"


def right(number: int, result: Result) -> bool:
    """Whether the answer is this call's own."""
    kind, _ = program(number)
    if kind == "raises":
        return result.error_type == "ValueError" and f"ValueError: {number}\n" in result.stderr
    # an endless loop may be stopped before it has printed, where the machine has more to do than it can
    if kind == "endless":
        return result.status == "timeout" and result.stdout in (f"{number}\n", "")
    return result.status == "ok" and result.stdout == f"{number}\n"


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    except OSError:  # it ended meanwhile
        pass
    return found


def memory_mib(pid: int, kind: str) -> float:
    """kind: Pss (shared pages counted in shares) or Rss."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:")) / 1024
    except OSError:
        return 0.0


@dataclass
class Watch:
    """Peaks, sampled while the calls run. MiB."""

    own: float = 0.0
    theirs: float = 0.0
    processes: int = 0
    killed: list[str] = field(default_factory=list)

    async def run(self, pool: SandboxPool, done: Counter[str], calls: int) -> None:
        while True:
            pids = descendants(os.getpid())
            self.processes = max(self.processes, len(pids))
            self.own = max(self.own, memory_mib(os.getpid(), "Rss"))
            self.theirs = max(self.theirs, sum(memory_mib(pid, "Pss") for pid in pids))
            answered = done.total()
            if answered > calls / 3 and not self.killed:
                self._kill("zygote", pool.fleet.zygotes["bare"])
            elif answered > 2 * calls / 3 and len(self.killed) == 1 and pool.fleet.running:
                self._kill("worker", pool.worker.pid)
            await asyncio.sleep(0.5)

    def _kill(self, what: str, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.killed.append(what)


async def soak(calls: int, workers: int | None, timeout: float, tier: Tier | None) -> bool:
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    done: Counter[str] = Counter()
    watch = Watch()
    async with SandboxPool(workers, tier=tier) as pool:
        folder = pool.fleet.folder

        async def call(number: int) -> bool:
            kind, code = program(number)
            result = await pool.run(code, timeout=timeout if kind == "endless" else None)
            done[result.status] += 1
            fine = right(number, result)
            if not fine:
                print(f"call {number} ({program(number)[0]}): {result}", file=sys.stderr)
            return fine

        watching = asyncio.create_task(watch.run(pool, done, calls))
        started = time.perf_counter()
        cpu = time.process_time()
        answers = await asyncio.gather(*(call(number) for number in range(calls)))
        seconds = time.perf_counter() - started
        cpu = time.process_time() - cpu
        watching.cancel()
        held, size = pool.tier, pool.fleet.size
        pids = descendants(os.getpid())
    left = {
        "processes": sum(Path(f"/proc/{pid}").exists() for pid in pids) + len(descendants(os.getpid())),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())) - descriptors,
        "scratch folders": int(folder.exists()),
    }
    endless = sum(program(number)[0] == "endless" for number in range(calls))
    print(
        f"tier {held}, {size} workers, limit {timeout:g} s: {calls} calls at once in {seconds:.1f} s "
        f"({calls / seconds:.0f}/s; {endless} endless ones alone take {endless * timeout / size:.1f} s of that)\n"
        f"answers: {dict(done)}; right: {sum(answers)} of {calls}; killed: {', '.join(watch.killed) or 'nobody'}\n"
        f"caller: {1000 * cpu / calls:.2f} ms of CPU a call, {watch.own:.0f} MiB at most; "
        f"sandbox: {watch.theirs:.0f} MiB (shared pages counted once), {watch.processes} processes\nleft: {left}"
    )
    return all(answers) and not any(left.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=45_000)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--timeout", type=float, default=1.0)
    parser.add_argument("--tier", choices=("namespaces", "landlock", "rlimits"))
    arguments = parser.parse_args()
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(": ")[2] if models else platform.machine()
    print(f"{date.today()}  {model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Linux {platform.release()}")
    fine = asyncio.run(soak(arguments.calls, arguments.workers, arguments.timeout, arguments.tier))
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
