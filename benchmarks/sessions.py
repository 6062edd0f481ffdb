#!/usr/bin/env python
"""Costs of cells, checkpoints and rollbacks of a sandbox session.

python benchmarks/sessions.py [--tier namespaces|landlock|rlimits] [--sessions N]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import date
from pathlib import Path
from typing import Any

from parts.results import add_json, save

from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Session

CELLS = 20
REPEATS = 10


async def milliseconds(work: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await work()
    return 1000 * (time.perf_counter() - started)


async def cells(pool: SandboxPool, sessions: int) -> tuple[float, list[float]]:
    """Measure median milliseconds of (an empty first cell, each later one). The first includes the worker's start."""
    starts: list[float] = []
    costs: list[list[float]] = [[] for _ in range(CELLS)]
    for _ in range(sessions):
        session = await pool.session()
        starts.append(await milliseconds(lambda session=session: session.run("")))  # type: ignore[misc]
        for number in range(CELLS):
            code = f"x{number} = [{number}] * 1000\nprint(sum(x{number}))"
            costs[number].append(await milliseconds(lambda session=session, code=code: session.run(code)))  # type: ignore[misc]
        await session.close()
    return statistics.median(starts), [statistics.median(cost) for cost in costs]


async def states(session: Session) -> tuple[float, float]:
    """Median milliseconds of (a checkpoint, a rollback)."""
    taken, undone = [], []
    for _ in range(REPEATS):
        started = time.perf_counter()
        state = await session.checkpoint()
        taken.append(1000 * (time.perf_counter() - started))
        await session.run("open('new', 'w').write('x'); y = 1")
        undone.append(await milliseconds(lambda state=state: session.rollback(state)))  # type: ignore[misc]
        await session.discard(state)
    return statistics.median(taken), statistics.median(undone)


async def measure(tier: str | None, sessions: int) -> dict[str, Any]:
    async with SandboxPool(workers=1, tier=tier) as pool:  # type: ignore[arg-type]
        print(f"tier {pool.tier}, medians")
        start, medians = await cells(pool, sessions)
        print(
            f"start with an empty cell {start:.1f} ms; cell 1: {medians[0]:.2f} ms, cell {CELLS // 2}: "
            f"{medians[CELLS // 2 - 1]:.2f}, cell {CELLS}: {medians[-1]:.2f}; last five over first five "
            f"{statistics.mean(medians[-5:]) / statistics.mean(medians[:5]):.2f}"
        )
        found: dict[str, Any] = {
            "tier": pool.tier,
            "start": start,
            "first cell": medians[0],
            "10th cell": medians[CELLS // 2 - 1],
            "20th cell": medians[-1],
        }
        for scratch, heap in ((0, 0), (1, 0), (16, 0), (0, 10), (0, 100)):
            session = await pool.session()
            await session.run(
                f"import os\nheap = [os.urandom(1 << 20) for _ in range({heap})]\n"
                f"for n in range({scratch}): open(f'f{{n}}', 'wb').write(os.urandom(1 << 20))"
            )
            taken, undone = await states(session)
            of = f" of {scratch} MB of files" * bool(scratch) + f" of {heap} MB of variables" * bool(heap)
            found |= {f"checkpoint{of}": taken, f"rollback{of}": undone}
            print(f"scratch {scratch} MB, heap {heap} MB: checkpoint {taken:.1f} ms, rollback {undone:.1f} ms")
            await session.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tier", choices=("namespaces", "landlock", "rlimits"))
    parser.add_argument("--sessions", type=int, default=30)
    add_json(parser)
    arguments = parser.parse_args()
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(": ")[2] if models else platform.machine()
    print(f"{date.today()}  {model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Linux {platform.release()}")
    found = asyncio.run(measure(arguments.tier, arguments.sessions))
    if arguments.json:
        save(arguments.json, {"ms": found}, command="benchmarks/sessions.py", measures=["src/retcon/sandbox"])


if __name__ == "__main__":
    main()
