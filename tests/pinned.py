#!/usr/bin/env python
"""Environments that are the same when they are built next year: for the Makefile.

    .venv-verl/bin/python tests/pinned.py merge constraints.txt tests/plugins/requirements-verl.txt > FILE
    .venv-verl/bin/python tests/pinned.py check FILE verl==0.9.1
    python3 tests/pinned.py report REPORT recipes/verl/requirements.txt

merge: constraints for pip from what the files pin (`name==version`); where two pin the same name, the last one counts.
check: fails where the environment has a distribution that the files do not pin, or in another version.
report: the same of what `pip install --report REPORT` would install.
A pin may stand in a file's place.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import distributions
from pathlib import Path

OURS = "retcon-rl"
OF_THE_VENV = ("pip", "setuptools")
OF_TORCH = ("nvidia-", "cuda-", "triton")
"""What torch's wheel for GPUs brings along, and pins itself."""


def name_of(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def pins(words: list[str]) -> dict[str, str]:
    """Versions by normalised name."""
    lines = (line for word in words for line in ([word] if "==" in word else Path(word).read_text().splitlines()))
    found = (re.match(r"([\w.-]+)(?:\[[\w,-]+\])?==([\w.!+-]+)", line) for line in lines)
    return {name_of(match[1]): match[2] for match in found if match}


def installed() -> Iterator[tuple[str, str]]:
    """Names and versions in this environment."""
    for found in distributions():
        name = name_of(found.metadata["Name"])
        if name not in OF_THE_VENV and not name.startswith(OF_TORCH):
            yield name, found.version


def reported(file: str) -> Iterator[tuple[str, str]]:
    """Names and versions in a report of pip's."""
    for found in json.loads(Path(file).read_text())["install"]:
        yield found["metadata"]["name"], found["metadata"]["version"]


def differences(pinned: dict[str, str], there: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, version in ((name_of(n), v.partition("+")[0]) for n, v in there):  # torch's "+cpu" is the same
        if name == OURS:
            continue
        if name not in pinned:
            yield f"{name}=={version} is pinned nowhere"
        elif pinned[name] != version:
            yield f"{name}=={version} is installed, and {pinned[name]} pinned"


def main() -> None:
    what, *words = sys.argv[1:] or ["nothing"]
    if what not in ("merge", "check", "report"):
        raise SystemExit(f"tests/pinned.py merge FILE…, check FILE… or report REPORT FILE…; not {what}")
    report = words.pop(0) if what == "report" else None
    pinned = pins(words)
    if what == "merge":
        print("\n".join(f"{name}=={version}" for name, version in sorted(pinned.items())))
    elif wrong := sorted(set(differences(pinned, reported(report) if report else installed()))):
        raise SystemExit(f"{report or sys.prefix} is not what {', '.join(words)} say:\n  " + "\n  ".join(wrong))


if __name__ == "__main__":
    main()
