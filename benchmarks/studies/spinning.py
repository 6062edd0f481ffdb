#!/usr/bin/env python
"""Cost of spinning threads on a busy machine, engine as a library.

    python benchmarks/studies/spinning.py [--rounds 3] [--busy 2]

32 requests of 39 + 48 ids on the small model of `measure.py`, while other processes compute. Seconds of this process's
CPU time and of the wall, each way in a process of its own, in turns: *spinning*, as OpenMP does it by default (the
engine is kept from calming the threads by GOMP_SPINCOUNT at its default); *passive*, OMP_WAIT_POLICY as the command
sets it; *library*, nothing set: what the engine does by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # where `parts` is

WAYS = {"spinning": {"GOMP_SPINCOUNT": "300000"}, "passive": {"OMP_WAIT_POLICY": "PASSIVE"}, "library": {}}
REQUESTS, PROMPT, COUNT = 32, 39, 48


def compute_for_ever() -> None:
    while True:
        pass


def one_way(busy: int) -> None:
    import torch
    from parts.measure import small_model

    from retcon.engine.local.engine import LocalEngine
    from retcon.engine.types import SamplingParams

    torch.set_num_threads(2)
    engine = LocalEngine(small_model(), max_len=PROMPT + COUNT, max_requests=REQUESTS)

    async def main() -> None:
        async def one(number: int) -> None:
            ids = list(range(1, PROMPT + 1))
            await engine.generate(str(number), ids, SamplingParams(max_tokens=COUNT, seed=number))
            await engine.release(str(number))

        await asyncio.gather(*(one(number) for number in range(REQUESTS)))

    asyncio.run(main())
    others = [multiprocessing.get_context("spawn").Process(target=compute_for_ever) for _ in range(busy)]
    for other in others:
        other.start()
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        asyncio.run(main())
        print(time.process_time() - cpu, time.perf_counter() - wall)
    finally:
        for other in others:
            other.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", type=int, default=2, help="processes that compute beside it")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        one_way(options.busy)
        return
    outer = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")}
    took: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way, variables in WAYS.items():
            words = [sys.executable, __file__, "--here", "--busy", str(options.busy)]
            out = subprocess.run(words, env={**outer, **variables}, check=True, capture_output=True, text=True).stdout
            cpu, wall = map(float, out.split())
            took[way].append((cpu, wall))
    for way, values in took.items():
        cpu, wall = (statistics.median(column) for column in zip(*values, strict=True))
        print(f"{way:10} {cpu:7.2f} CPU-s {wall:7.2f} s on the wall")


if __name__ == "__main__":
    main()
