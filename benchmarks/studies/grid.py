#!/usr/bin/env python
"""When does learning from purified trajectories help? The arms of docs/protocol.md in its cells.

    python benchmarks/studies/grid.py [--cells CELL ...] [--arms RECIPE ...] [--seeds 5] [--out runs/grid]
    python benchmarks/studies/grid.py --write [--cells CELL ...] [--out runs/grid]
    python benchmarks/studies/grid.py --calibrate [--cells CELL ...] [--arms RECIPE ...] [--out runs/grid]

The first runs `retcon compare` cell by cell; the same command goes on where it was stopped. The second writes what the
cells came to, of those that are finished: docs/results/grid.json, the table docs/results/grid.md and the picture
docs/img/grid.png. The third trains the baseline, or the arms that are named, on a seed and problems that the results
never use, and says where each ends: what a cell's chain length, and our arm, are chosen by.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retcon.report.compared.curves import HELD_OUT
from retcon.runs.metrics import read_metrics

sys.path.append(str(Path(__file__).parents[1]))  # where `parts` is
from parts.compared import differences, table
from parts.forest import draw_forest
from parts.results import ROOT, checked_out, machine

REGIMES = {
    "frequent": ("task.first_failure=0.9", "task.retry_failure=0.4"),
    "hard": ("task.first_failure=0.9", "task.retry_failure=0.8"),
    "rare": ("task.first_failure=0.3", "task.retry_failure=0.3"),
}
"""How often the teacher's first tries fail, and those after an error."""
TOKENS = {"loose": 560, "tight": 280}
PROBLEMS = ("task.steps=4", "rollout.max_turns=8", "sft.max_turns=8")
CELLS = {
    f"{regime}-{limit}": (*PROBLEMS, *keys, f"rollout.max_tokens={tokens}")
    for limit, tokens in TOKENS.items()
    for regime, keys in REGIMES.items()
}
BASELINE, OURS = "mini/dapo-baseline", "mini/ours/veto"  # ours: until docs/protocol.md has chosen
ARMS = (BASELINE, "mini/cleaner", "quickstart/saar", "mini/rstar2", OURS)
COMMON = ("run.threads=1", "evaluate.every=10")
CALIBRATION = ("run.threads=1", "run.seed=100", "evaluate.seed=2000", "evaluate.every=20", "evaluate.every_samples=8")
WANTED = (0.4, 0.7)
"""Where the baseline is to end."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS), metavar="CELL")
    parser.add_argument("--arms", nargs="+", default=None, metavar="RECIPE")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/grid"))
    parser.add_argument("--write", action="store_true", help="write what there is, and run nothing")
    parser.add_argument(
        "--calibrate", action="store_true", help="on a seed of its own, the baseline if no arms are named"
    )
    options = parser.parse_args()
    if options.write:
        write(options.out, options.cells)
        return
    for name in options.cells:
        print(f"== {name}", flush=True)
        if options.calibrate:
            for arm in options.arms or [BASELINE]:
                calibrate(options.out / "calibration" / name, arm, CELLS[name])
            continue
        seeds = ("--seeds", str(options.seeds), "--faults", "0")
        retcon("compare", *(options.arms or ARMS), *COMMON, *CELLS[name], *seeds, "--out", str(options.out / name))


def retcon(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "retcon", *words], check=True)


def calibrate(out: Path, arm: str, keys: Sequence[str]) -> None:
    """A cold start and an arm; what is there is not made again."""
    given, run = (*CALIBRATION, *keys), out / arm.rpartition("/")[2]
    if not (out / "cold" / "final").is_dir():
        retcon("sft", "quickstart/cold_start", "--out", str(out / "cold"), *given)
    if not (run / "final").is_dir():
        retcon("train", arm, "--from", str(out / "cold"), "--out", str(run), *given)
    metrics = [line for line in read_metrics(run / "metrics.jsonl") if line.get(HELD_OUT) is not None]
    curve = ", ".join(f"{line[HELD_OUT]:.3f} at step {line['step']:.0f}" for line in metrics)
    print(f"{out.name}, {arm}: pass@1 {curve}; {metrics[-1]['eval_failed_calls']:.2f} failed calls", flush=True)
    least, most = WANTED
    if arm == BASELINE and not least <= metrics[-1][HELD_OUT] <= most:
        print(f"wanted: {least} to {most}; change task.steps")


def write(out: Path, names: Sequence[str]) -> None:
    """Raises SystemExit where no cell is finished."""
    files = {name: out / name / "compare.json" for name in names}
    found = {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}
    if not found:
        raise SystemExit(f"no cell is finished in {out}")
    cells = [{"name": name, "arms": one["cells"][0]["arms"]} for name, one in found.items()]
    first = next(iter(found.values()))
    about = {"machine": machine(), "date": datetime.date.today().isoformat(), "commit": checked_out()}
    grid = {"ours": OURS.rpartition("/")[2], "matched": first["matched"], "about": about, "cells": cells}
    folder = ROOT / "docs" / "results"
    folder.mkdir(exist_ok=True)
    (folder / "grid.json").write_text(json.dumps(grid, indent=1) + "\n")
    where = f"*{about['date']}, {about['machine']}; commit {about['commit']}*\n"
    (folder / "grid.md").write_text("\n\n".join(["# The grid", *map(shown, cells), where]))
    draw_forest(
        {one["name"]: differences(one["arms"]) for one in cells}, "pass@1 at T = 1, less the baseline's",
        ROOT / "docs" / "img" / "grid.png",
    )  # fmt: skip
    print(f"{len(cells)} of {len(names)} cells: {folder / 'grid.json'}, grid.md, docs/img/grid.png")


def shown(one: Mapping[str, Any]) -> str:
    """A cell in Markdown."""
    made, seeds = table(one["arms"]), len(next(iter(one["arms"].values()))["seeds"])
    lines = (made["head"], ["---"] * len(made["head"]), *made["rows"])
    told = f"{seeds} seeds, 95 %; differences are paired by seed and problem, a star: the range leaves out 0."
    return "\n".join([f"## {one['name']}", "", *(f"| {' | '.join(line)} |" for line in lines), "", told])


if __name__ == "__main__":
    main()
