#!/usr/bin/env python
"""The sandbox over HTTP against `python3 -c` per call and code-judge.

python benchmarks/service.py [--workers N] [--rounds N] [--seconds S] [--code-judge URL] [--only NAME,…]

All through code-judge's `/run`, from one client on the same machine, in turns; medians of the rounds. The client writes
HTTP itself, as any client library takes CPU time from the servers beside it (`studies/client.py`). A session is a
session with ours; elsewhere each cell sends all earlier ones again, as rStar2-Agent's client does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from parts.results import SERVED, add_json, save

LIMIT = 4.0  # seconds of a call, in ours and in the floor; what rStar2-Agent sets for code-judge
CLIENTS = 4
PROGRAMS = {
    "print": "print(1 + 1)",
    "numpy": "import numpy as np\nprint(np.arange(5).sum())",
    "sympy": "from sympy import symbols, solve\nx = symbols('x')\nprint(solve(x**2 - 5*x + 6, x))",
    "raise": "raise ValueError('no')",
}
ANSWERS = {"print": "2\n", "numpy": "10\n", "sympy": "[2, 3]\n", "raise": ""}
CELLS = ["x = [0]\nprint(len(x))"] + [f"x.append({i})\nprint(len(x))" for i in range(1, 20)]


@dataclass(frozen=True)
class Service:
    """pid: of its first process, None where it is not ours to start."""

    name: str
    host: str
    port: int
    pid: int | None

    @property
    def cpu_ms(self) -> float:
        """CPU of its first process alone."""
        if self.pid is None:
            return float("nan")
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


class Connection:
    """One keep-alive connection; opened at the first request."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: dict[str, Any], method: str = "POST") -> dict[str, Any]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._service.host, self._service.port)
        reader, writer = self._streams
        data = json.dumps(body).encode()
        writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: {self._service.host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n".encode()
            + data
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(head.partition("content-length:")[2].split("\r\n")[0]) if "content-length:" in head else 0
        answer = await reader.readexactly(size)
        status = int(head.split()[1])
        if status >= 300:
            raise OSError(f"{status} {answer.decode()[:200]}")
        return json.loads(answer) if answer else {}

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def run(connection: Connection, code: str) -> dict[str, Any]:
    return await connection.post("/run", {"type": "python", "solution": code})


async def rate(service: Service, name: str, seconds: float) -> dict[str, float]:
    """Measure calls a second, and the service's CPU milliseconds per call."""
    until = time.perf_counter() + seconds
    count = 0

    async def client() -> None:
        nonlocal count
        connection = Connection(service)
        while time.perf_counter() < until or not count:
            answer = await run(connection, PROGRAMS[name])
            if answer["stdout"] != ANSWERS[name] or answer["run_success"] != (name != "raise"):
                raise OSError(f"wrong answer: {answer}")
            count += 1
        connection.close()

    started, cpu = time.perf_counter(), service.cpu_ms
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return {"calls/s": count / (time.perf_counter() - started), "server CPU ms": (service.cpu_ms - cpu) / count}


async def burst(service: Service, size: int, codes: list[str] | None = None) -> dict[str, float]:
    """That many requests at once, each on its own connection: the share that is answered rightly, and the wall time."""

    async def one(index: int) -> bool:
        connection = Connection(service)
        code = codes[index] if codes else f"print({index})"
        try:
            answer = await run(connection, code)
        except (OSError, EOFError):
            return False
        finally:
            connection.close()
        return "while" in code or bool(answer["stdout"] == f"{index}\n")

    started = time.perf_counter()
    answered = await asyncio.gather(*(one(i) for i in range(size)))
    return {"answered": sum(answered) / size, "wall s": time.perf_counter() - started}


async def mixed(service: Service) -> dict[str, float]:
    endless = set(range(5, 60, 10))
    return await burst(service, 60, ["while True: pass" if i in endless else f"print({i})" for i in range(60)])


async def session(service: Service) -> dict[str, float]:
    """Measure the milliseconds of cells 1 and 20, medians over ten sessions."""
    times: list[list[float]] = []
    connection = Connection(service)
    for _ in range(10):
        times.append([])
        path = ""
        if service.name == "ours":
            path = f"/v1/sessions/{(await connection.post('/v1/sessions', {}))['session']}"
        for count in range(len(CELLS)):
            started = time.perf_counter()
            if path:
                answer = await connection.post(f"{path}/run", {"code": CELLS[count]})
            else:
                answer = await run(connection, "\n".join(CELLS[: count + 1]))
            times[-1].append(1000 * (time.perf_counter() - started))
            if not answer["stdout"].endswith(f"{count + 1}\n"):
                raise OSError(f"wrong answer: {answer}")
        if path:
            await connection.post(path, {}, "DELETE")
    connection.close()
    first, last = (statistics.median(cells[place] for cells in times) for place in (0, -1))
    return {"first cell ms": first, "20th cell ms": last, "20th/first": last / first}


def workloads(seconds: float) -> dict[str, Callable[[Service], Coroutine[Any, Any, dict[str, float]]]]:
    return {
        **{name: (lambda service, name=name: rate(service, name, seconds)) for name in PROGRAMS},
        "mixed": mixed,
        **{f"burst {size}": (lambda service, size=size: burst(service, size)) for size in (64, 256, 1000)},
        "session": session,
    }


@contextmanager
def started(name: str, words: list[str]) -> Iterator[Service]:
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        parts = urlsplit(process.stdout.readline().split()[2])
        yield Service(name, str(parts.hostname), int(parts.port or 0), process.pid)
    finally:
        process.terminate()
        process.wait()


def measure(
    services: list[Service], rounds: int, seconds: float, only: list[str]
) -> dict[str, dict[str, dict[str, float]]]:
    """Prints what it finds; by workload and service the medians."""
    every: dict[str, dict[str, dict[str, float]]] = {}
    for name, work in workloads(seconds).items():
        if only and name not in only:
            continue
        found: dict[str, list[dict[str, float]]] = {service.name: [] for service in services}
        for _ in range(rounds):
            for service in services:
                try:
                    found[service.name].append(asyncio.run(work(service)))
                except (OSError, EOFError) as error:
                    print(f"{name:>10}  {service.name}: {error}")
        medians = {
            service: {key: statistics.median(one[key] for one in results) for key in results[0]}
            for service, results in found.items()
            if results
        }
        every[name] = medians
        if "ours" in medians and "fresh" in medians:
            key, down = ("calls/s", False) if "calls/s" in medians["ours"] else ("wall s", True)
            if key in medians["ours"]:
                ours, fresh = medians["ours"][key], medians["fresh"][key]
                medians["ours"]["times fresh"] = fresh / ours if down else ours / fresh
        for service, figures in medians.items():
            row = ", ".join(f"{key} {value:.3g}" for key, value in figures.items())
            against = ""
            if service != "ours" and "ours" in medians and "calls/s" in figures:
                against = f"   ours is {medians['ours']['calls/s'] / figures['calls/s']:.1f} times that"
            print(f"{name:>10}  {service:<10} {row}{against}", flush=True)
    return every


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--code-judge", metavar="URL")
    parser.add_argument("--only", default="")
    add_json(parser)
    arguments = parser.parse_args()
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(": ")[2] if models else platform.machine()
    print(f"{date.today()}  {model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Linux {platform.release()}")
    common = ["--workers", str(arguments.workers), "--timeout", str(LIMIT)]
    with ExitStack() as stack:
        services = [
            stack.enter_context(started("ours", ["-m", "retcon", "sandbox", "serve", "--port", "0", *common])),
            stack.enter_context(started("fresh", [str(Path(__file__).parent / "parts" / "service_floor.py"), *common])),
        ]
        if arguments.code_judge:
            parts = urlsplit(arguments.code_judge)
            services.append(Service("code-judge", str(parts.hostname), int(parts.port or 80), None))
        found = measure(
            services, arguments.rounds, arguments.seconds, [name for name in arguments.only.split(",") if name]
        )
    if arguments.json:
        save(arguments.json, found, command="benchmarks/service.py", measures=SERVED)


if __name__ == "__main__":
    main()
