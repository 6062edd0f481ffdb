#!/usr/bin/env python
"""Figures of `mini/rlm` runs: roots and calls of the model that are right in their evaluations.

python benchmarks/studies/recursive_runs.py runs/rlm/*/seed-?/{short,eval} >docs/results/rlm.json
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from retcon.core.types import Trajectory
from retcon.store import jsonl

SIZE = re.compile(r"lines\[i:i \+ (\d+)\]")


def share_right(nodes: Sequence[Trajectory]) -> float | None:
    return round(sum((node.reward or 0) > 0 for node in nodes) / len(nodes), 4) if nodes else None


def summarize(file: Path) -> dict[str, object]:
    """Return the figures of one evaluation's rollouts."""
    roots = list(jsonl.read(file))
    calls = [node for root in roots for node in root.tree if node is not root and node.reward is not None]
    sizes = Counter(found[1] for root in roots if (found := SIZE.search(root.text)))
    return {
        "rollouts": len(roots),
        "roots_right": share_right(roots),
        "calls": len(calls),
        "calls_right": share_right(calls),
        "calls_right_with_the_line": share_right([call for call in calls if call.expected != "none"]),
        "roots_with_a_failed_program": sum(root.failures > 0 for root in roots),
        "lines_of_a_part": dict(sorted(sizes.items())),
    }


if __name__ == "__main__":
    folders = [Path(name) for name in sys.argv[1:]]
    found = {"/".join(folder.parts[-3:]): summarize(folder / "trajectories-t1.jsonl") for folder in folders}
    print(json.dumps(found, indent=1))
