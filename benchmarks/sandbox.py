#!/usr/bin/env python
"""The sandbox against a fresh `python -c` for every call: the same work, interleaved, medians and ratios.

python benchmarks/sandbox.py [--calls N] [--rounds N] [--workers N] [--tier namespaces|landlock|rlimits] [--only CASE …]
                             [--json FILE]
python benchmarks/sandbox.py --packages NAME [NAME …] [--python PATH] [--rounds N] [--tier …]

The second form measures calls that use these packages, preloaded and not: start of the pool, first and later calls, and
the least memory, CPU and stderr of them.

A runner answers calls (`Runner`); a case is a list of calls and what to say about how they went (`CASES`). Every case
runs once per round with every runner in turn, so that a machine that is busy for a while is so for all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from parts.results import add_json, save

from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.pool.profiles import PACKAGES
from retcon.sandbox.types import Limits, Tier

NUMPY = "import numpy as np\nprint(np.arange(10).sum())"
SYMPY = "from sympy import symbols, solve\nx = symbols('x')\nprint(solve(x**2 - 5*x + 6, x))"
ROOMY = Limits(cpu_seconds=60, wall_seconds=120, memory_mb=4096)
CPU = "\nimport resource\nused = resource.getrusage(resource.RUSAGE_SELF)\nprint(used.ru_utime + used.ru_stime)"
SIZES = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)
ENDLESS = "while True: pass"


class Runner(Protocol):
    """name: for the table."""

    name: str

    async def run(self, code: str, timeout: float) -> str:
        """Status of the call: `ok`, `error`, `timeout`, or another where the runner itself failed."""
        ...


@dataclass(frozen=True)
class Ours:
    pool: SandboxPool
    name: str = "retcon"

    async def run(self, code: str, timeout: float) -> str:
        return (await self.pool.run(code, timeout=timeout, memory=1024)).status


@dataclass(frozen=True)
class FreshProcess:
    """A fresh `python -c` per call, protected only by a timeout. As many at a time as the pool has workers."""

    room: asyncio.Semaphore
    name: str = "python -c"

    async def run(self, code: str, timeout: float) -> str:
        async with self.room:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", code),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                async with asyncio.timeout(timeout):
                    await process.communicate()
            except TimeoutError:
                process.kill()
                await process.wait()
                return "timeout"
            return "ok" if process.returncode == 0 else "error"


@dataclass(frozen=True)
class Case:
    """calls: code of each. wanted: the status of each. timeout: seconds. at_once: all in flight, else two."""

    name: str
    calls: Sequence[str]
    wanted: Sequence[str]
    timeout: float = 30.0
    at_once: bool = False


@dataclass
class Took:
    """seconds: of the whole case. cpu: of every process in it, seconds. answered: share with the wanted status."""

    seconds: float
    cpu: float
    answered: float


def cases(calls: int) -> list[Case]:
    def same(name: str, code: str, status: str, count: int, **options: bool) -> Case:
        return Case(name, [code] * count, [status] * count, **options)  # type: ignore[arg-type]

    mixed = ([ENDLESS] + ["print(1 + 1)"] * 9) * 6
    return [
        same("print", "print(1 + 1)", "ok", calls),
        same("numpy", NUMPY, "ok", max(calls // 4, 2)),
        same("sympy", SYMPY, "ok", max(calls // 10, 2)),
        same("raise", "raise ValueError('no')", "error", calls),
        Case(
            "54 fast + 6 endless (2 s)", mixed, ["timeout" if c == ENDLESS else "ok" for c in mixed], 2.0, at_once=True
        ),
        *(same(f"burst of {n:,}", "print(1 + 1)", "ok", n, at_once=True) for n in (64, 256, 1000)),
    ]


async def take(case: Case, runner: Runner, tree_cpu: Callable[[], float]) -> Took:
    """Run a case with two calls in flight, or all if `at_once`."""
    room = asyncio.Semaphore(len(case.calls) if case.at_once else 2)

    async def call(code: str) -> str:
        async with room:
            return await runner.run(code, case.timeout)

    started, cpu = time.perf_counter(), tree_cpu()
    statuses = await asyncio.gather(*(call(code) for code in case.calls))
    seconds, cpu = time.perf_counter() - started, tree_cpu() - cpu
    right = sum(status == wanted for status, wanted in zip(statuses, case.wanted, strict=True))
    return Took(seconds, cpu, right / len(statuses))


def cpu_of_tree() -> float:
    """Return the CPU seconds of this process and its descendants.

    The time of an exited process is missing until its parent reaps it.
    """
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    ticks = 0
    todo = [str(os.getpid())]
    while todo:
        for task in Path(f"/proc/{todo.pop()}/task").iterdir():
            try:
                children = (task / "children").read_text().split()
                todo += children
                for child in children:
                    ticks += sum(map(int, Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11:15]))
            except OSError:  # it ended meanwhile
                continue
    return sum(u.ru_utime + u.ru_stime for u in usage) + ticks / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def runners(workers: int | None, tier: Tier | None) -> AsyncIterator[list[Runner]]:
    async with SandboxPool(workers, tier=tier, warm=("numpy", "sympy")) as pool:
        for code in ("print(1)", NUMPY, SYMPY):
            await asyncio.gather(*(pool.run(code) for _ in range(4)))
        print(f"tier {pool.tier}, {pool.fleet.size} workers; `python -c` as many at a time, unprotected")
        yield [Ours(pool), FreshProcess(asyncio.Semaphore(pool.fleet.size))]


async def compare(chosen: list[Case], rounds: int, workers: int | None, tier: Tier | None) -> dict[str, dict[str, Any]]:
    """Prints what it finds; by case the medians: of each runner, and how many times our seconds the other's are."""
    found: dict[str, dict[str, Any]] = {}
    async with runners(workers, tier) as every:
        if isinstance(every[0], Ours):
            found["pool"] = {"tier": every[0].pool.tier, "workers": every[0].pool.fleet.size}
        print(f"{'case':28}" + "".join(f"{runner.name:>42}" for runner in every) + f"{'ratio (wall, CPU)':>22}")
        for case in chosen:
            took: dict[str, list[Took]] = {runner.name: [] for runner in every}
            for _ in range(rounds):
                for runner in every:
                    took[runner.name].append(await take(case, runner, cpu_of_tree))
            own = {name: summary(case, results) for name, results in took.items()}
            against = times(took)
            row = "".join(f"{say(case, of):>42}" for of in own.values())
            print(f"{case.name:28}{row}" + "".join(f"{value:>10.1f}x" for value in against.values()), flush=True)
            found[case.name] = own | against
    return found


def summary(case: Case, took: list[Took]) -> dict[str, float]:
    seconds = statistics.median(t.seconds for t in took)
    cpu_ms = 1000 * statistics.median(t.cpu for t in took) / len(case.calls)
    answered = min(t.answered for t in took)
    return {"calls/s": len(case.calls) / seconds, "wall s": seconds, "CPU ms": cpu_ms, "right": answered}


def say(case: Case, of: dict[str, float]) -> str:
    speed = f"{of['wall s']:.2f} s" if case.at_once else f"{of['calls/s']:.0f}/s"
    return f"{speed}, {of['CPU ms']:.1f} ms CPU a call, {100 * of['right']:.0f} % right"


def times(took: dict[str, list[Took]]) -> dict[str, float]:
    """Return the median over rounds of second to first runner's times."""
    first, other = took.values()
    return {
        "times, wall": statistics.median(o.seconds / f.seconds for f, o in zip(first, other, strict=True)),
        "times, CPU": statistics.median(o.cpu / max(f.cpu, 1e-9) for f, o in zip(first, other, strict=True)),
    }


async def measure_packages(names: list[str], python: str | None, rounds: int, tier: Tier | None) -> None:
    """Print a line for each package and way; medians over the rounds, each with a pool of its own."""
    print(f"{'package':12}{'preloaded':>10}{'start s':>9}{'first s':>9}{'later s':>9}{'CPU s':>7}{'MiB':>6}  stderr")
    for name in names:
        code = PACKAGES[name].exercise if name in PACKAGES else f"import {name}"
        for packages in ((), (name,)):
            took: list[list[float]] = []
            for _ in range(rounds):
                clock = [time.perf_counter()]
                options: dict[str, Any] = {"python": python, "tier": tier, "packages": packages, "warm": packages}
                async with SandboxPool(1, ROOMY, **options) as pool:
                    clock.append(time.perf_counter())
                    for _ in range(2):
                        result = await pool.run(code)
                        clock.append(time.perf_counter())
                    cpu = float((await pool.run(code + CPU)).stdout.split()[-1])
                    sizes = iter(SIZES)
                    while (await pool.run(code, memory=(least := next(sizes)))).status != "ok":
                        pass
                took.append([*(after - before for before, after in pairwise(clock)), cpu, least])
            start, first, later, cpu, least = (statistics.median(values) for values in zip(*took, strict=True))
            last = result.stderr.strip().splitlines()[-1:] or ["none"]
            figures = f"{start:9.2f}{first:9.3f}{later:9.3f}{cpu:7.2f}{least:6.0f}"
            print(f"{name:12}{'yes' if packages else 'no':>10}{figures}  {last[0]}", flush=True)


def main() -> None:
    every = cases(200)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--tier", choices=("namespaces", "landlock", "rlimits"))
    parser.add_argument("--only", nargs="+", choices=[case.name for case in every])
    parser.add_argument("--packages", nargs="+")
    parser.add_argument("--python")
    add_json(parser)
    arguments = parser.parse_args()
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(": ")[2] if models else platform.machine()
    print(f"{date.today()}  {model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Linux {platform.release()}")
    if arguments.packages:
        asyncio.run(measure_packages(arguments.packages, arguments.python, arguments.rounds, arguments.tier))
        return
    chosen = [case for case in cases(arguments.calls) if not arguments.only or case.name in arguments.only]
    found = asyncio.run(compare(chosen, arguments.rounds, arguments.workers, arguments.tier))
    if arguments.json:
        save(arguments.json, found, command="benchmarks/sandbox.py", measures=["src/retcon/sandbox"])


if __name__ == "__main__":
    main()
