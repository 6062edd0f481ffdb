"""How torch's threads wait for each other: asleep, not spinning.

Torch's operations are shared out by OpenMP, whose threads spin between two of them, by default for milliseconds. On
cores that others use too, the one that is waited for is not running meanwhile: decoding then takes ten times the CPU
time. `OMP_WAIT_POLICY=PASSIVE` ends that, as the command sets it, but is read once, when torch is loaded, which in
other people's programs has happened by the time that anyone asks us.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from retcon.core.cores import usable_cores

DECIDED = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables with which a user says how threads are to wait."""


def calm_threads() -> None:
    """From here on, OpenMP's threads in this process spin for microseconds at most before they sleep. Nothing happens
    where a user has decided otherwise (DECIDED), or where OpenMP is of no kind that can be told."""
    if any(name in os.environ for name in DECIDED):
        return
    for path in _loaded():
        name = Path(path).name
        if name.startswith("libgomp"):
            _crowd(path)
        elif hasattr(library := ctypes.CDLL(path), "kmp_set_blocktime"):
            library.kmp_set_blocktime(0)


@functools.cache
def _crowd(path: str) -> None:
    """GNU's cannot be told once it is loaded. But it spins 100 times, not 300,000, where there are more OpenMP threads
    than cores (its manual, on GOMP_SPINCOUNT): so a team of as many as there are cores is made, and put to sleep for
    good. Its work is `free(NULL)`, which is none."""
    library, work = ctypes.CDLL(path), ctypes.CDLL(None).free
    made = threading.Event()

    def sleep() -> None:
        library.GOMP_parallel(work, None, ctypes.c_uint(usable_cores()), ctypes.c_uint(0))
        made.set()
        threading.Event().wait()  # the team lives as long as the thread that made it

    threading.Thread(target=sleep, name="retcon-openmp", daemon=True).start()
    made.wait()


def _loaded() -> Iterator[str]:
    """Files of the OpenMP libraries that this process has loaded."""
    maps = Path("/proc/self/maps")
    lines = os.fsdecode(maps.read_bytes()).split("\n") if maps.is_file() else []
    paths = dict.fromkeys(line.split(maxsplit=5)[5] for line in lines if line.count("/") and len(line.split()) > 5)
    return (p for p in paths if Path(p).name.startswith(("libgomp", "libiomp5", "libomp")))
