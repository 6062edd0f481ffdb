#!/usr/bin/env python
"""How the local engine's cost grows: with the batch, the turns, the length of a sequence, the group, a short budget.

    python benchmarks/scaling.py [--rounds 3] [--only batch]

The model is Qwen3 with 2 layers of width 64 and random weights in fp32, one torch thread; lengths are forced. Every
line is a process of its own, forked from one that only made the model: medians of the rounds. Per line:

- CPU-s of the engine, and what one id costs, by the column's own count of ids;
- ids that were fed, that were found cached, that were copied from an equal prompt;
- MiB of keys and values at the peak, as the engine counts them, of the budget that it was given; beside it by how
  much the process grew at its peak, which has all that lies between in it;
- requests that were preempted, and that lost their keys and values while their tools ran.

Below each table: the exponent of CPU time that was measured, by least squares over logarithms, and what is expected.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from parts.measure import VOCAB, machine, small_model
from parts.results import add_json, save

from retcon.engine.local.engine import LocalEngine
from retcon.engine.local.scheduler import EngineStats
from retcon.engine.types import SamplingParams

BUDGET_MB = 32
torch.set_num_threads(1)
MODEL = small_model(layers=2, width=64)


@dataclass(frozen=True, slots=True)
class Job:
    """`rollouts` of `turns` turns in groups of `group`: a prompt, then per turn `sampled` ids and `shown` ones.

    ids: unit of cost. timed: turn from which the clock runs.
    """

    x: int
    ids: int
    rollouts: int
    prompt: int
    sampled: int
    turns: int = 1
    shown: int = 0
    group: int = 1
    budget_mb: int = BUDGET_MB
    timed: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    cpu: float
    growth: float
    stats: EngineStats


@dataclass(frozen=True, slots=True)
class Table:
    """fitted: which of its lines the exponent is of, as a slice."""

    name: str
    of: str
    expected: str
    jobs: Sequence[Job]
    fitted: tuple[int, int | None] = (3, None)


def tables() -> Iterator[Table]:
    yield Table(
        "batch",
        "rollouts at once; prompt 48, 64 ids each",
        "below 1 while a forward's fixed cost is shared, then 1",
        [Job(b, b * 64, b, 48, 64) for b in (1, 2, 4, 8, 16, 32, 64, 128, 256)],
        (6, None),
    )
    yield Table(
        "turns",
        "turns of each of 16 rollouts; prompt 48, a turn samples 32 ids and is shown 16",
        "1, and a little more for attention: nothing is fed twice",
        [Job(t, t * 16 * 32, 16, 48, 32, turns=t, shown=16) for t in (1, 2, 4, 8, 16, 32)],
    )
    yield Table(
        "prefill",
        "ids of one prompt; one id is sampled",
        "1 for the layers, 2 for attention, which wins with the length",
        [Job(n, n, 1, n, 1) for n in (312, 625, 1250, 2500, 5000, 10000, 20000)],
    )
    yield Table(
        "length",
        "ids before the 64 that are timed, of each of 4 rollouts",
        "0 for the layers, 1 for attention, which wins with the length",
        [Job(n, 4 * 64, 4, n, 64, turns=2, timed=1, budget_mb=64) for n in (312, 625, 1250, 2500, 5000, 10000, 20000)],
    )
    yield Table(
        "group",
        "rollouts that share a prompt of 384 ids, of 64 rollouts; 16 ids each",
        "-1 for the prompts, 0 for what is sampled",
        [Job(g, 64 * 16, 64, 384, 16, group=g) for g in (1, 2, 4, 8, 16, 32, 64)],
        (0, 4),
    )
    yield Table(
        "budget",
        "MiB for 48 rollouts of 4 turns, which want about 13; prompt 48, a turn samples 64 ids and is shown 32",
        "0 where all have room; below that, what gave way is computed again",
        [Job(b, 48 * 4 * 64, 48, 48, 64, turns=4, shown=32, budget_mb=b) for b in (1, 2, 4, 8, 16, 32)],
    )


async def run(job: Job) -> tuple[float, EngineStats]:
    """CPU-seconds, and what the engine counted."""
    draw = random.Random(0)

    def some(count: int) -> list[int]:
        return draw.choices(range(VOCAB), k=count)

    prompts = [some(job.prompt) for _ in range(-(-job.rollouts // job.group))]
    shown = [[some(job.shown) for _ in range(job.turns)] for _ in range(job.rollouts)]
    longest = job.prompt + job.turns * (job.sampled + job.shown) + 1
    turn_over = asyncio.Barrier(job.rollouts + 1)

    async def rollout(engine: LocalEngine, number: int) -> None:
        ids = list(prompts[number // job.group])
        for turn in range(job.turns):
            if turn == job.timed:
                await turn_over.wait()
            count = 1 if turn < job.timed else job.sampled
            params = SamplingParams(max_tokens=count, seed=number * job.turns + turn)
            ids += (await engine.generate(str(number), ids, params)).ids
            ids += shown[number][turn]
            await asyncio.sleep(0)
        await engine.release(str(number))

    async with LocalEngine(MODEL, max_len=longest, max_requests=256, kv_memory_mb=job.budget_mb) as engine:
        rollouts = asyncio.gather(*(rollout(engine, number) for number in range(job.rollouts)))
        await turn_over.wait()
        start = time.process_time()
        await rollouts
        return time.process_time() - start, engine.stats


def line(job: Job) -> Line:
    """In a process of its own."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts here
    before = resident("VmRSS")
    cpu, stats = asyncio.run(run(job))
    return Line(cpu, resident("VmHWM") - before, stats)


def resident(name: str) -> float:
    """MiB of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(text.split()[1]) / 1024 for text in lines if text.startswith(name))


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Slope of log y over log x."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    slope, _ = statistics.linear_regression([x for x, _ in logs], [y for _, y in logs])
    return slope


def show(table: Table, each: Callable[[Job], list[Line]]) -> dict[str, Any]:
    """Prints the table; its figures: by x, microseconds an id and ids fed and cached, and the exponent."""
    found: dict[str, Any] = {}
    print(f"\n{table.name}: {table.of}")
    print("          CPU-s   us/id      fed   cached   copied   KV MiB / budget   grew MiB  preempted  evicted")
    points = []
    for job in table.jobs:
        lines = each(job)
        cpu, stats = statistics.median(one.cpu for one in lines), lines[0].stats
        points.append((float(job.x), cpu))
        found[str(job.x)] = {"us": 1e6 * cpu / job.ids, "fed": stats.prefilled, "cached": stats.reused, "cpu": cpu}
        print(
            f"{job.x:7} {cpu:7.3f} {1e6 * cpu / job.ids:7.0f} {stats.prefilled:8} {stats.reused:8} {stats.copied:8} "
            f"{stats.kv_peak / 2**20:8.1f} / {stats.kv_budget / 2**20:<6.0f} "
            f"{max(one.growth for one in lines):10.1f} {stats.preempted:10} {stats.evicted:8}",
            flush=True,
        )
        if stats.kv_peak > stats.kv_budget:
            print("        BEYOND THE BUDGET")
    fitted = points[slice(*table.fitted)]
    found["exponent"] = exponent(fitted)
    print(f"exponent {found['exponent']:.2f} from {fitted[0][0]:.0f} to {fitted[-1][0]:.0f}; expected {table.expected}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=[table.name for table in tables()], action="append", help="may be repeated")
    add_json(parser)
    options = parser.parse_args()
    print(machine())
    asyncio.run(run(Job(1, 1, 8, 48, 8, turns=2, shown=8)))  # what happens once is over
    with get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        found = {
            table.name: show(table, lambda job: pool.map(line, [job] * options.rounds, chunksize=1))
            for table in tables()
            if table.name in (options.only or (table.name,))
        }
    if options.json:
        save(options.json, found, command="benchmarks/scaling.py", measures=["src/retcon/engine"])


if __name__ == "__main__":
    main()
