#!/usr/bin/env python
"""Environments that are the same when they are built next year: for the Makefile.

    .venv-verl/bin/python tests/pinned.py merge constraints.txt tests/plugins/requirements-verl.txt > FILE
    .venv-verl/bin/python tests/pinned.py check FILE verl==0.9.1

merge: constraints for pip from what the files pin (`name==version`); where two pin the same name, the last one counts.
check: fails where the environment has a distribution that the files do not pin, or in another version.
A pin may stand in a file's place.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
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


def differences(pinned: dict[str, str]) -> Iterator[str]:
    for found in distributions():
        name, version = name_of(found.metadata["Name"]), found.version.partition("+")[0]  # torch's "+cpu" is the same
        if name == OURS or name in OF_THE_VENV or name.startswith(OF_TORCH):
            continue
        if name not in pinned:
            yield f"{name}=={version} is pinned nowhere"
        elif pinned[name] != version:
            yield f"{name}=={version} is installed, and {pinned[name]} pinned"


def main() -> None:
    what, *words = sys.argv[1:] or ["nothing"]
    if what not in ("merge", "check"):
        raise SystemExit(f"tests/pinned.py merge FILE…, or check FILE…; not {what}")
    pinned = pins(words)
    if what == "merge":
        print("\n".join(f"{name}=={version}" for name, version in sorted(pinned.items())))
    elif wrong := sorted(set(differences(pinned))):
        raise SystemExit(f"{sys.prefix} is not what {', '.join(words)} say:\n  " + "\n  ".join(wrong))


if __name__ == "__main__":
    main()
