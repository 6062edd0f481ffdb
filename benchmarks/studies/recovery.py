#!/usr/bin/env python
"""What becomes of rollouts whose calls fail: of each arm of a comparison, purification off.

    retcon compare mini/dapo-baseline mini/cleaner mini/rstar2 --seeds 5 --out RUN
    python benchmarks/studies/recovery.py RUN [--json FILE]

By the number of failed turns of a rollout: the share of rollouts, over all seeds, and the share of these that is right;
how many run out of turns or tokens; and how likely the next call succeeds after a failed one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from retcon.core.types import Trajectory
from retcon.report.comparison import PLAIN
from retcon.report.runs import run_folder
from retcon.report.tables import number
from retcon.store import jsonl

sys.path.append(str(Path(__file__).parents[1]))  # where `parts` is
from parts.results import TRAINED, add_json, save

MOST = 3
"""Failed turns from which on rollouts are counted together."""


def counted(rollouts: Iterable[Trajectory]) -> dict[str, float]:
    made, right, after, ended = Counter[int](), Counter[int](), Counter[bool](), Counter[str]()
    for rollout in rollouts:
        if rollout.reward is None:
            continue
        calling = [turn for turn in rollout.turns if turn.observations]
        failed = min(MOST, sum(bool(turn.failures) for turn in calling))
        made[failed] += 1
        right[failed] += rollout.reward > 0
        ended[rollout.stop] += 1
        after.update(not second.failures for first, second in pairwise(calling) if first.failures)
    total = sum(made.values())
    return {
        "rollouts": total,
        **{f"share_{n}": made[n] / total for n in range(MOST + 1)},
        **{f"right_{n}": right[n] / made[n] if made[n] else 0.0 for n in range(MOST + 1)},
        "out_of_room": (ended["turns"] + ended["length"]) / total,
        "recovery": after[True] / sum(after.values()) if after else 0.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--commit", help="of the code that made the run, unless this one")
    add_json(parser)
    options = parser.parse_args()
    comparison = json.loads((options.run / "compare.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = {}
    for arm, about in comparison["cells"][0]["arms"].items():
        files = [run_folder(options.run, arm, seed) / PLAIN / "trajectories-t1.jsonl" for seed in about["seeds"]]
        found[arm] = counted(rollout for file in files for rollout in jsonl.read(file))
    found["table"] = table(found)
    print("\n".join(" | ".join(line) for line in (found["table"]["head"], *found["table"]["rows"])))
    if options.json:
        command = f"benchmarks/studies/recovery.py {options.run}"
        save(options.json, found, command=command, measures=TRAINED, commit=options.commit)


def table(found: dict[str, Any]) -> dict[str, Any]:
    failed = ["none", "one", "two", f"{MOST} or more"]
    rows = [
        [
            f"{name} failed: share of rollouts, right of them",
            *(f"{number(one[f'share_{n}'], 2)}, {number(one[f'right_{n}'], 2)}" for one in found.values()),
        ]
        for n, name in enumerate(failed)
    ]
    rows.append(["out of turns or tokens", *(number(one["out_of_room"], 2) for one in found.values())])
    rows.append(["calls after a failed one that succeed", *(number(one["recovery"], 2) for one in found.values())])
    return {"head": ["turns with a failed call", *found], "rows": rows}


if __name__ == "__main__":
    main()
