#!/usr/bin/env python
"""Soak test: a step's calls and session cells at once, under constant faults.

python benchmarks/soak.py [--calls 45000] [--cells 10000] [--workers N] [--tier namespaces|landlock|rlimits] [--http]
                          [--kill-seconds 1] [--servers 4 --kill-server 60]
python benchmarks/soak.py --latency 50,500,5000,45000 [--workers N] [--tier …]

Of the calls 2 % loop for ever (until --timeout seconds), 10 % raise, 2 % import numpy, the rest print a number of
their own. The cells come in sessions of ten: each sets variables and a file to numbers of its own, takes a checkpoint,
spoils all of it, goes back and asks what is there; one in five spoils by ending its interpreter. Every --kill-seconds
SIGKILL takes a worker that is running something, every tenth time a zygote. A call is run again by the sandbox itself;
what still comes back as `infrastructure`, and a session that was lost to a kill, is begun again here, some times at
most, as a rollout's client would. --http: the same against `retcon sandbox serve` in a process of its own. --servers:
against so many of them, behind the router; --kill-server: the first one is killed after so many seconds, for good.

The second form measures how long answers take where so many calls are submitted at once: in process, over HTTP, and in
plain forks of a process that has imported numpy (`parts/forks.py`), in turn. Bursts are repeated until `LEAST` calls
are answered. There are no faults then, no sessions and no endless calls.

Ends with exit code 1 where something was lost or got another's answer, or where something is left: a process, a
descriptor, a folder.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import itertools
import json
import os
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path

from parts.results import SERVED, add_json, save

from retcon.core.errors import SandboxUnavailable, SessionLost
from retcon.sandbox.client import SandboxClient, SandboxRouter
from retcon.sandbox.pool import SandboxPool, default_workers
from retcon.sandbox.types import Limits, Result, Sandbox, Session, Tier

TRIES = 20  # a session that takes long on a busy machine meets several kills
CELLS = 10  # of a session
SESSIONS = 32  # at a time
LEAST = 5000  # calls of which a latency is measured
FORKS = Path(__file__).parent / "parts" / "forks.py"


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


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):  # it ended meanwhile
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return []


def descendants(pid: int) -> list[int]:
    return [found for child in children(pid) for found in (child, *descendants(child))]


def memory_mib(pid: int, kind: str) -> float:
    """kind: Pss (shared pages counted in shares) or Rss."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:")) / 1024
    except OSError:
        return 0.0


@dataclass
class Watch:
    """What happens meanwhile. hosts: the processes that keep a pool. MiB: of the first of them that lasts."""

    hosts: list[int]
    own: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    processes: int = 0
    killed: Counter[str] = field(default_factory=Counter)

    async def look(self) -> None:
        while True:
            pids = [pid for host in self.hosts for pid in descendants(host)]
            self.processes = max(self.processes, len(pids))
            self.own.append(memory_mib(self.hosts[-1], "Rss"))
            self.theirs.append(sum(memory_mib(pid, "Pss") for pid in pids))
            await asyncio.sleep(0.5)

    async def kill(self, every: float) -> None:
        """A worker or, each tenth time, a zygote: workers are the zygotes' children, zygotes the host's."""
        draw = random.Random(0)
        for count in itertools.count(1):
            await asyncio.sleep(every)
            zygotes = [zygote for host in self.hosts for zygote in children(host)]
            pids = zygotes if count % 10 == 0 else [pid for zygote in zygotes for pid in children(zygote)]
            if pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(draw.choice(pids), signal.SIGKILL)
                    self.killed["zygotes" if count % 10 == 0 else "workers"] += 1

    async def kill_server(self, after: float) -> None:
        """The first one, which is not started again."""
        await asyncio.sleep(after)
        os.kill(self.hosts[0], signal.SIGKILL)
        self.killed["servers"] += 1


@dataclass
class Load:
    """What is asked of a sandbox. done: by status. again: times that a fault made the client begin anew."""

    sandbox: Sandbox
    timeout: float
    done: Counter[str] = field(default_factory=Counter)
    again: int = 0

    async def call(self, number: int) -> bool:
        kind, code = program(number)
        for _ in range(TRIES):
            result = await self.sandbox.run(code, timeout=self.timeout if kind == "endless" else None)
            if result.status != "infrastructure":
                break
            self.again += 1
        self.done[result.status] += 1
        fine = right(number, result)
        if not fine:
            print(f"call {number} ({kind}): {result}", file=sys.stderr)
        return fine

    async def session(self, number: int) -> bool:
        for _ in range(TRIES):
            try:
                session = await self.sandbox.session()
                try:
                    return await self._cells(session, number)
                finally:
                    await session.close()
            except (SessionLost, SandboxUnavailable, Killed):
                self.again += 1
        print(f"session {number}: lost {TRIES} times", file=sys.stderr)
        return False

    async def _cells(self, session: Session, number: int) -> bool:
        """Two cells for each of five rounds, with a checkpoint and a rollback between. Raises Killed, SessionLost."""
        for turn in range(CELLS // 2):
            mine = f"{number}.{turn}"
            await self._cell(session, f"import random\nx = {mine!r}\nopen('f', 'w').write(x)\nrandom.seed(x)")
            state = await session.checkpoint()
            spoil = "import os\nos._exit(3)" if turn == 3 else "x = 0\nopen('f', 'w').close()\nopen('g', 'w').close()"
            await session.run(spoil)
            await session.rollback(state)
            seen = await self._cell(session, "import os\nprint(x, open('f').read(), sorted(os.listdir()))")
            await session.discard(state)
            if seen.stdout != f"{mine} {mine} ['f']\n":
                print(f"session {number}, round {turn}: {seen}", file=sys.stderr)
                return False
        return True

    async def _cell(self, session: Session, code: str) -> Result:
        result = await session.run(code)
        if result.status == "infrastructure":
            raise Killed
        self.done[f"cell {result.status}"] += 1
        return result


class Killed(Exception):
    """A session's worker was killed under a cell."""


@asynccontextmanager
async def in_process(workers: int | None, tier: Tier | None) -> AsyncIterator[tuple[Sandbox, list[int]]]:
    async with SandboxPool(workers, tier=tier) as pool:
        yield pool, [os.getpid()]


@asynccontextmanager
async def over_http(workers: int | None, tier: Tier | None, servers: int) -> AsyncIterator[tuple[Sandbox, list[int]]]:
    async with AsyncExitStack() as stack:
        started = [await stack.enter_async_context(served(workers, tier)) for _ in range(servers)]
        urls, pids = [url for url, _ in started], [pid for _, pid in started]
        client = SandboxClient(urls[0]) if servers == 1 else SandboxRouter(urls)
        yield await stack.enter_async_context(client), pids


@asynccontextmanager
async def served(workers: int | None, tier: Tier | None) -> AsyncIterator[tuple[str, int]]:
    """A server of its own: its URL and process."""
    command = [sys.executable, "-m", "retcon", "sandbox", "serve", "--port", "0"]
    command += ["--workers", str(workers)] * (workers is not None) + ["--tier", tier or ""] * (tier is not None)
    server = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert server.stdout is not None
    output = ""
    while (found := re.search(r"http://[\w.:\[\]]+:\d+", output)) is None:
        line = await server.stdout.readline()
        if not line:
            raise SystemExit(f"the server did not start: {output}")
        output += line.decode()
    drain = asyncio.create_task(server.stdout.read())
    try:
        yield found.group(), server.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            server.terminate()
        await server.wait()
        await drain


async def soak(arguments: argparse.Namespace) -> bool:
    calls, sessions = arguments.calls, arguments.cells // CELLS
    before = descriptors()
    workers, tier = arguments.workers, arguments.tier
    opened = over_http(workers, tier, arguments.servers) if arguments.http else in_process(workers, tier)
    async with opened as (sandbox, hosts):
        load, watch = Load(sandbox, arguments.timeout), Watch(hosts)
        places = asyncio.Semaphore(SESSIONS)

        async def session(number: int) -> bool:
            async with places:
                return await load.session(number)

        beside = [asyncio.create_task(watch.look())]
        if arguments.kill_seconds:
            beside.append(asyncio.create_task(watch.kill(arguments.kill_seconds)))
        if arguments.kill_server:
            beside.append(asyncio.create_task(watch.kill_server(arguments.kill_server)))
        started, cpu = time.perf_counter(), time.process_time()
        answers = await asyncio.gather(*map(load.call, range(calls)), *map(session, range(sessions)))
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        for task in beside:
            task.cancel()
        held = sandbox.tier  # type: ignore[attr-defined]
        pids = [pid for host in hosts for pid in descendants(host)]
    left = {
        "processes": sum(Path(f"/proc/{pid}").exists() for pid in pids) + len(descendants(os.getpid())),
        "descriptors": descriptors() - before,
        "scratch folders": abandoned_folders(),
    }
    killed = ", ".join(f"{number} {what}" for what, number in watch.killed.items())
    early, late = (
        statistics.median(part) for part in (watch.own[: len(watch.own) // 4 + 1], watch.own[-len(watch.own) // 4 :])
    )
    where = f", {arguments.servers} servers" if arguments.servers > 1 else ", over HTTP" if arguments.http else ""
    print(
        f"tier {held}{where}: {calls} calls and {sessions} sessions of {CELLS} cells and "
        f"{CELLS // 2} rollbacks, all at once, in {seconds:.1f} s\n"
        f"answers: {dict(load.done)}; right: {sum(answers[:calls])} of {calls} calls, {sum(answers[calls:])} of "
        f"{sessions} sessions; killed: {killed or 'none'}; begun again by the client: {load.again}\n"
        f"client: {1000 * cpu / (calls + sessions * CELLS):.2f} ms of CPU each; process that keeps the pool, MiB: "
        f"{early:.0f} in the first quarter, {late:.0f} in the last (medians), {max(watch.own):.0f} at most; sandbox: "
        f"{max(watch.theirs):.0f} MiB (shared pages counted once), {watch.processes} processes\nleft: {left}"
    )
    if arguments.json:
        endless = sum(program(number)[0] == "endless" for number in range(calls))
        found = {"calls": calls, "cells": CELLS * sessions, "endless": endless, "seconds": round(seconds, 1)}
        found |= {"killed": watch.killed.total(), "early MiB": round(early), "late MiB": round(late)}
        several = f" --servers {arguments.servers} --kill-server {arguments.kill_server:g}"
        command = "benchmarks/soak.py" + several * (arguments.servers > 1)
        save(arguments.json, found, command=command, measures=SERVED)
    return all(answers) and not any(left.values())


Burst = Callable[[Sequence[int]], Awaitable[list[tuple[float, bool]]]]
"""Submits calls by number, all at once: seconds from then to each one's answer, and whether it is right."""


async def measure_latency(arguments: argparse.Namespace) -> bool:
    sizes = [int(size) for size in arguments.latency.split(",")]
    head = ["in flight", "", "mean, s", "p50", "p95", "p99", "calls/s"]
    lines, wrong = [], 0
    async with AsyncExitStack() as stack:
        pool, _ = await stack.enter_async_context(in_process(arguments.workers, arguments.tier))
        server, _ = await stack.enter_async_context(over_http(arguments.workers, arguments.tier, 1))
        workers = arguments.workers or default_workers(Limits())
        floor = await asyncio.create_subprocess_exec(
            *(sys.executable, FORKS, str(workers)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=2**26
        )
        stack.callback(floor.kill)
        bursts: dict[str, Burst] = {
            "in process": partial(burst_of, pool),
            "over HTTP": partial(burst_of, server),
            "plain forks": partial(forked, floor),
        }
        for burst in bursts.values():
            await burst(quick(100))  # the first call that needs a package waits for its import
        print(f"tier {pool.tier}, {workers} workers\n{' | '.join(head)}")  # type: ignore[attr-defined]
        for size in sizes:
            numbers = quick(size)
            took: dict[str, list[float]] = {name: [] for name in bursts}
            seconds = dict.fromkeys(bursts, 0.0)
            for _ in range(max(1, -(-LEAST // size))):
                for name, burst in bursts.items():
                    answers = await burst(numbers)
                    took[name] += [one for one, _ in answers]
                    seconds[name] += max(one for one, _ in answers)
                    wrong += sum(not fine for _, fine in answers)
            for name, all_ in took.items():
                cuts = statistics.quantiles(all_, n=100, method="inclusive")
                figures = (statistics.fmean(all_), cuts[49], cuts[94], cuts[98])
                cells = [f"{one:.3f}" if one < 10 else f"{one:.1f}" for one in figures]
                lines.append([f"{size:,}", name, *cells, f"{len(all_) / seconds[name]:,.0f}"])
                print(" | ".join(lines[-1]), flush=True)
    print(f"wrong answers: {wrong}")
    if arguments.json:
        found = {"table": {"head": head, "rows": lines}, "workers": workers, "wrong": wrong}
        save(arguments.json, found, command=f"benchmarks/soak.py --latency {arguments.latency}", measures=SERVED)
    return not wrong


def quick(count: int) -> list[int]:
    """The first so many calls that end by themselves."""
    ending = (number for number in itertools.count() if program(number)[0] != "endless")
    return list(itertools.islice(ending, count))


async def burst_of(sandbox: Sandbox, numbers: Sequence[int]) -> list[tuple[float, bool]]:
    began = time.perf_counter()

    async def call(number: int) -> tuple[float, bool]:
        result = await sandbox.run(program(number)[1])
        return time.perf_counter() - began, right(number, result)

    return await asyncio.gather(*map(call, numbers))


async def forked(floor: asyncio.subprocess.Process, numbers: Sequence[int]) -> list[tuple[float, bool]]:
    assert floor.stdin is not None
    assert floor.stdout is not None
    floor.stdin.write(json.dumps([program(number)[1] for number in numbers]).encode() + b"\n")
    return [
        (seconds, (f"ValueError: {number}\n" if program(number)[0] == "raises" else f"{number}\n") in output)
        for number, (seconds, output) in zip(numbers, json.loads(await floor.stdout.readline()), strict=True)
    ]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def abandoned_folders() -> int:
    """Scratch folders that no pool holds, ours or another's."""
    found = 0
    for lock in (
        lock for home in ("/dev/shm", tempfile.gettempdir()) for lock in Path(home).glob("retcon-sandbox-*/lock")
    ):
        with contextlib.suppress(OSError), lock.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found += 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=45_000)
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--latency", metavar="SIZES", help="of calls in flight: `50,500,5000,45000`")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--timeout", type=float, default=1.0)
    parser.add_argument("--tier", choices=("namespaces", "landlock", "rlimits"))
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--servers", type=int, default=1, help="several: over HTTP, behind the router")
    parser.add_argument("--kill-server", type=float, default=0.0, metavar="SECONDS", help="0: it is not killed")
    add_json(parser)
    parser.add_argument("--kill-seconds", type=float, default=1.0, help="0: none is killed")
    arguments = parser.parse_args()
    arguments.http |= arguments.servers > 1
    if arguments.kill_server and arguments.servers < 2:
        parser.error("--kill-server: with --servers 2 or more")
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(": ")[2] if models else platform.machine()
    print(f"{date.today()}  {model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Linux {platform.release()}")
    sys.exit(0 if asyncio.run(measure_latency(arguments) if arguments.latency else soak(arguments)) else 1)


if __name__ == "__main__":
    main()
