#!/usr/bin/env python
"""The floor of a sandbox: programs in plain forks of a process that has imported numpy, without limits or clean-up.

    python benchmarks/parts/forks.py AT_ONCE

Reads JSON lists of programs, one a line. For each it prints a JSON list with a pair for every program: seconds from the
start of all to the end of its output, and that output.
"""

from __future__ import annotations

import json
import os
import selectors
import sys
import time
import traceback
from typing import NoReturn

import numpy  # noqa: F401  programs that use it find it imported


def execute(program: str, output: int) -> NoReturn:
    """Run a program in this process, and end it."""
    status = 1
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
        status = 0
    except BaseException:  # noqa: BLE001  whatever the program raises is its output
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run_all(programs: list[str], at_once: int) -> list[tuple[float, str]]:
    """Seconds and output of each program."""
    found = [(0.0, "")] * len(programs)
    coming = iter(enumerate(programs))
    running = selectors.DefaultSelector()
    began = time.perf_counter()
    while True:
        while len(running.get_map()) < at_once and (one := next(coming, None)) is not None:
            number, program = one
            reader, writer = os.pipe()
            pid = os.fork()
            if not pid:
                execute(program, writer)
            os.close(writer)
            running.register(reader, selectors.EVENT_READ, (number, pid, []))
        if not running.get_map():
            return found
        for key, _ in running.select():
            number, pid, parts = key.data
            if part := os.read(key.fd, 1 << 16):
                parts.append(part)
                continue
            running.unregister(key.fd)
            os.close(key.fd)
            os.waitpid(pid, 0)
            found[number] = time.perf_counter() - began, b"".join(parts).decode()


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(run_all(json.loads(line), int(sys.argv[1]))), flush=True)
