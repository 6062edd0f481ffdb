"""Measurements as files: what a benchmark writes with `--json`, for `make figures` to put into README and docs."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
ROLLED_OUT = tuple(f"src/retcon/{room}" for room in ("engine", "rollout", "purify", "tools", "sandbox"))
"""What `measures` names of rollouts with calls: the tools too, and the sandbox that they run in."""
TRAINED = (*ROLLED_OUT, "src/retcon/select", "src/retcon/train")
"""Of trainings with such rollouts, and of the models that come of them."""
SERVED = ("src/retcon/sandbox", "src/retcon/http")
"""Of sandbox servers."""


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option `--json`, for `save`."""
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the figures there too; benchmarks/results/NAME.json is where `make figures` looks for them",
    )


def save(
    file: Path, figures: dict[str, Any], *, command: str, measures: Sequence[str], commit: str | None = None
) -> None:
    """Save the figures with machine, date, commit and load. command: what prints them again.
    measures: files and folders of the repository whose code they are about, so that `make figures` can tell when they
    are older than it. commit: that of the code that they are of, unless the one that is checked out.

    A figure is a number, a text, [median, least, most], or {mean, low, high}.
    """
    about = {
        "command": command,
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
        "commit": commit or checked_out(),
        "load": round(os.getloadavg()[0], 1),
        "measures": list(measures),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"about": about, "figures": figures}, indent=1, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


def machine() -> str:
    """`2 cores of AMD EPYC 9B45, no GPU`."""
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    name = names[0].partition(": ")[2] if names else platform.machine()
    return f"{cores} cores of {name}, {'a GPU' if Path('/dev/nvidia0').exists() else 'no GPU'}"


def checked_out() -> str | None:
    """Return the current commit, with `+` if files differ, or None."""
    head = git("rev-parse", "--short", "HEAD")
    return None if head is None else head + ("+" if git("status", "--porcelain", "--", "src") else "")


def git(*words: str, root: Path = ROOT) -> str | None:
    """Return git's output in `root`, or None if it fails."""
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
