"""How many cores this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Those that it is bound to, where the system says so; else all of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
