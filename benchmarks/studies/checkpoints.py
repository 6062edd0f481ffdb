#!/usr/bin/env python
"""Whether random programs end with checkpoints and rollbacks as they do without.

python benchmarks/studies/checkpoints.py [--programs N] [--tier namespaces|landlock|rlimits] [--seed N] [--first N]

A program is a few parts (a pipe, a socket pair, a child with pipes, a port, a pool of threads, sqlite, ...), whose
cells take turns at random. Each runs three times in a session of its own: plain; with a checkpoint before random
cells; and with those cells run twice, taken back after the first time as a lookahead does. Where a checkpoint is
refused, the cell runs once. What each cell prints, its value, its status and the last line of its error are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from retcon.core.errors import CheckpointRefused
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Limits, Result, Sandbox

LIMITS = Limits(memory_mb=256, cpu_seconds=10, wall_seconds=10, processes=32)
PARTS: dict[str, Sequence[str]] = {
    "pipe": (
        "import os\nr#, w# = os.pipe()",
        "os.write(w#, b'abc')",
        "os.read(r#, 2)",
        "os.close(w#); os.read(r#, 9), os.read(r#, 9)",
        "os.close(r#)",
    ),
    "pipe's end": ("import os\nr#, w# = os.pipe(); os.close(r#)", "os.write(w#, b'x')", "os.close(w#)"),
    "own stdout": (
        "import os\nr#, w# = os.pipe(); kept# = os.dup(1); os.dup2(w#, 1); os.close(w#)",
        "print('unseen', #)",
        "import sys\nsys.stdout.flush(); os.dup2(kept#, 1); os.close(kept#); os.read(r#, 99)",
    ),
    "socket pair": (
        "import socket\na#, b# = socket.socketpair()",
        "a#.send(b'ab')",
        "b#.recv(1)",
        "a#.close(); b#.recv(9), b#.recv(9)",
        "b#.close()",
    ),
    "child with pipes": (
        "import subprocess, sys\nturn = 'import sys; print(sys.stdin.read()[::-1])'\n"
        "p# = subprocess.Popen([sys.executable, '-c', turn], stdin=-1, stdout=-1, text=True)",
        "p#.stdin.write('abc')",
        "p#.communicate('d')",
        "p#.returncode",
    ),
    "child whose output is left open": (
        "import subprocess, sys\np# = subprocess.Popen([sys.executable, '-c', 'print(#)'], stdout=subprocess.PIPE)",
        "p#.wait(), p#.stdout.read()",
        "p#.stdout.read()",
    ),
    "child that is ended": (
        "import subprocess, sys\np# = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])",
        "p#.poll()",
        "p#.terminate(); p#.wait()",
    ),
    "child": ("import subprocess\nsubprocess.run(['echo', '#'], capture_output=True, text=True).stdout",),
    "fork": (
        "import os\nr#, w# = os.pipe()\npid# = os.fork()\nif pid# == 0:\n    os.write(w#, b'#'); os._exit(3)",
        "os.close(w#); os.read(r#, 9)",
        "os.waitpid(pid#, 0)[1] >> 8",
    ),
    "port": (
        "import socket\ns# = socket.socket(); s#.bind(('127.0.0.1', 5000 + #)); s#.listen()",
        "c# = socket.create_connection(('127.0.0.1', 5000 + #)); t#, _ = s#.accept(); c#.sendall(b'ab'); c#.close()",
        "t#.recv(9), t#.recv(9); t#.close()",
        "s#.close(); s# = socket.create_server(('127.0.0.1', 5000 + #)); s#.close()",
    ),
    "thread pool": (
        "from concurrent.futures import ThreadPoolExecutor\nt# = ThreadPoolExecutor(2)\nf# = t#.submit(pow, 2, #)",
        "f#.result(), t#.submit(abs, -#).result()",
        "t#.shutdown(); f#.done()",
    ),
    "thread": (
        "import queue, threading\nq# = queue.Queue(); o# = []\n"
        "def work#():\n    while (n := q#.get()) is not None: o#.append(n)\n"
        "t# = threading.Thread(target=work#); t#.start()",
        "q#.put(#)",
        "q#.put(None); t#.join(); o#",
    ),
    "sqlite": (
        "import sqlite3\nd# = sqlite3.connect('d#.db'); d#.execute('create table t(x)').fetchall()",
        "d#.execute('insert into t values(#)').rowcount",
        "d#.commit(); d#.execute('insert into t values(1)').rowcount",
        "d#.rollback(); d#.execute('select * from t').fetchall()",
        "d#.close()",
    ),
    "file": (
        "f# = open('f#', 'w+'); f#.write('one\\ntwo\\nthree\\n'); f#.seek(0)",
        "f#.readline()",
        "f#.readline()",
        "f#.seek(0, 2); f#.write('four'); f#.close(); open('f#').read()",
    ),
    "temporary file": (
        "import tempfile\nf# = tempfile.TemporaryFile('w+'); f#.write('a')",
        "f#.write('b')",
        "f#.seek(0); f#.read()",
        "f#.close()",
    ),
    "event loop": (
        "import asyncio\nl# = asyncio.new_event_loop()",
        "l#.run_until_complete(asyncio.sleep(0, #))",
        "l#.close()",
    ),
    "coroutine": ("import asyncio\nasyncio.run(asyncio.sleep(0, #))",),
    "epoll": (
        "import os, select\nr#, w# = os.pipe(); e# = select.epoll(); e#.register(r#, select.EPOLLIN)",
        "os.write(w#, b'x'); len(e#.poll(0))",
        "os.close(w#); os.read(r#, 9), len(e#.poll(0)); e#.close(); os.close(r#)",
    ),
    "pool of processes": (
        "import multiprocessing\nwith multiprocessing.Pool(2) as m#: print(m#.map(abs, [-1, -#]))",
        "with multiprocessing.Pool(2) as m#: print(m#.map(abs, [-2]))",
    ),
    "executor of processes": (
        "from concurrent.futures import ProcessPoolExecutor\nx# = ProcessPoolExecutor(2); x#.submit(abs, -1).result()",
        "list(x#.map(abs, [-1, -#]))",
        "x#.shutdown()",
    ),
    "queue of processes": (
        "import multiprocessing\nq# = multiprocessing.Queue(); v# = multiprocessing.Value('i', 0)\n"
        "def work#():\n    v#.value += #\n    q#.put(v#.value)\nm# = multiprocessing.Process(target=work#); m#.start()",
        "q#.get(timeout=5)",
        "m#.join(); m#.exitcode, v#.value",
        "v#.value += 1; v#.value",
    ),
    "hook": (
        "import os\nh# = []\nos.register_at_fork(before=lambda: h#.append(0), after_in_child=lambda: print('child'))",
        "len(h#) if os.getpid() else 0",
    ),
    "random": ("import random\nrandom.seed(#)", "random.random()", "random.random()"),
    "variable": ("x# = [#]", "x#.append(len(x#)); x#", "x#.pop()"),
    "error": ("y# = 1; y# += 1; y# / 0", "y#"),
}
APART = {"hook": ("fork", "pool of processes", "executor of processes", "queue of processes")}
"""What a part cannot be with: its count of forks is then whatever the other's timing makes it."""


class Program(NamedTuple):
    parts: tuple[str, ...]
    cells: tuple[str, ...]
    kept: frozenset[int]  # cells before which there is a checkpoint


def random_program(seed: int, number: int) -> Program:
    draw = random.Random(f"{seed} {number}")
    parts = draw.sample(sorted(PARTS), draw.randint(1, 4))
    parts = [one for one in parts if not any(one in APART.get(other, ()) for other in parts)]
    waiting = [[cell.replace("#", str(n)) for cell in PARTS[part]] for n, part in enumerate(parts, 1)]
    cells = []
    while waiting:
        cells.append(draw.choice(waiting).pop(0))
        waiting = [one for one in waiting if one]
    kept = frozenset(n for n in range(len(cells)) if draw.random() < 0.6)
    return Program(tuple(parts), tuple(cells), kept)


def shown(result: Result) -> tuple[str, str, str | None, str]:
    return result.status, result.stdout, result.value, (result.stderr.strip().splitlines() or [""])[-1]


class Run(NamedTuple):
    """cells: what each showed. refused: why checkpoints were refused."""

    cells: list[tuple[str, str, str | None, str]]
    refused: list[str]


async def run(sandbox: Sandbox, program: Program, kept: frozenset[int], *, twice: bool) -> Run:
    """kept: cells before which there is a checkpoint. twice: they run, are taken back, and run again."""
    session = await sandbox.session(limits=LIMITS, seed=1)
    found = Run([], [])
    for number, cell in enumerate(program.cells):
        if number in kept:
            try:
                state = await session.checkpoint()
                if twice:
                    await session.run(cell)
                    await session.rollback(state)
                if number % 2:
                    await session.discard(state)
            except CheckpointRefused as refused:
                found.refused.append(str(refused))
        found.cells.append(shown(await session.run(cell)))
    await session.close()
    return found


async def differences(sandbox: Sandbox, program: Program) -> tuple[list[str], list[str]]:
    """(what differs from the plain run, why checkpoints were refused)."""
    plain = await run(sandbox, program, frozenset(), twice=False)
    differ: list[str] = []
    refused: list[str] = []
    for twice in (False, True):
        other = await run(sandbox, program, program.kept, twice=twice)
        refused += other.refused
        differ += [
            f"{'rolled back' if twice else 'checkpointed'}, cell {n} {program.cells[n]!r}: {own}, not {plain.cells[n]}"
            for n, own in enumerate(other.cells)
            if own != plain.cells[n]
        ]
    return differ, refused


async def study(arguments: argparse.Namespace) -> None:
    started, wrong, refused, parts, kept = time.monotonic(), 0, Counter[str](), Counter[str](), 0
    async with SandboxPool(workers=2, tier=arguments.tier) as pool:
        for number in range(arguments.first, arguments.first + arguments.programs):
            program = random_program(arguments.seed, number)
            found, reasons = await differences(pool, program)
            parts.update(program.parts)
            kept += 2 * len(program.kept)
            refused.update(reasons)
            wrong += bool(found)
            for one in found:
                print(f"program {number} ({', '.join(program.parts)}): {one}", flush=True)
        print(f"tier {pool.tier}: {arguments.programs} programs, {wrong} differ, {time.monotonic() - started:.0f} s")
    print(f"{kept} checkpoints asked for, {sum(refused.values())} refused:")
    for why, count in refused.most_common():
        print(f"{count:6}  {why}")
    print("programs with", ", ".join(f"{name} {count}" for name, count in parts.most_common()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--tier", choices=("namespaces", "landlock", "rlimits"), default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    asyncio.run(study(parser.parse_args()))


if __name__ == "__main__":
    main()
