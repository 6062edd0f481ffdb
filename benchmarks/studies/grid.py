#!/usr/bin/env python
"""The arms of docs/protocol.md in its cells: when does purification help?

    python benchmarks/studies/grid.py [--cells CELL ...] [--arms RECIPE ...] [--seeds 5] [--out runs/grid]
    python benchmarks/studies/grid.py --write [--cells CELL ...] [--commit COMMIT] [--out runs/grid]
    python benchmarks/studies/grid.py --pairs NAME --cells CELL [--seeds 5] [--commit COMMIT] [--out runs/grid]
    python benchmarks/studies/grid.py --draw
    python benchmarks/studies/grid.py --calibrate [--cells CELL ...] [--arms RECIPE ...] [--out runs/grid]

The first runs `retcon compare` cell by cell; the same command goes on where it was stopped. The second writes the
figures of the finished cells: docs/results/grid.json, in which cells of earlier sessions stay unless they were made
again, the table docs/results/grid.md, and what `make figures` puts into docs/results. The third writes the figures of
a cell's arms as benchmarks/results/compared/NAME.json, where each arm is compared with the first one alone, so that an
arm with few tokens does not decide at how many the others are compared. The fourth makes the figure and the table of
docs/results.md from all these. The last trains the baseline, or the arms that are named, on a seed and problems that
the results never use, and prints where each ends: a cell's problems and our arm are chosen by that.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from retcon.cli.arguments import READS, overrides_of
from retcon.evaluate.statistics import Interval
from retcon.report.comparison import HELD_OUT, ArmRun, figures, read_arm_run
from retcon.runs.metrics import read_metrics

sys.path.append(str(Path(__file__).parents[1]))  # where `parts` is
from parts.compared import FIGURES, difference, differences, interval, parse_difference, table
from parts.forest import draw_forest
from parts.results import RESULTS, ROOT, TRAINED, checked_out, machine, save

from retcon.report.tables import cell

REGIMES = {
    "frequent": ("task.steps=3", "task.first_failure=0.7", "task.retry_failure=0.3"),
    "hard": ("task.steps=3", "task.wrong_method=0", "task.first_failure=0.7", "task.retry_failure=0.7"),
    "rare": ("task.steps=3", "task.wrong_method=0.35", "task.first_failure=0.3", "task.retry_failure=0.3"),
}
"""How long problems are, and how often the teacher's first tries fail, and those after an error."""
TOKENS = {"tight": 260, "loose": 420}
PROBLEMS = ("task.wrong_method=0.15", "rollout.max_turns=7", "sft.max_turns=7")
CELLS = {
    f"{regime}-{limit}": (*PROBLEMS, *keys, f"rollout.max_tokens={tokens}")
    for limit, tokens in TOKENS.items()
    for regime, keys in REGIMES.items()
}
BASELINE, OURS = "mini/dapo-baseline", "mini/ours/blame"
ARMS = (BASELINE, "quickstart/saar", "mini/rstar2", OURS)
TRAINING = ("run.threads=1", "rl.steps=24", "evaluate.every=6", "evaluate.every_samples=8")
COMMON = (*TRAINING, "evaluate.samples=8", "evaluate.top_p=1.0", "sandbox.cpu_seconds=2")
CALIBRATION = (*TRAINING, "run.seed=100", "evaluate.seed=2000")
AGAINST = {"pass1_t1": 3, "pass1_equal_tokens": 3, "curve_area": 3, "failed_calls_t1": 2, "tokens_t1": 1}
"""Figures in which ours is set against every other arm, and their digits."""
OVERVIEW = {"pass1_t1": max, "pass1_equal_tokens": max, "pass8_t1": max, "failed_calls_t1": min, "sampled_tokens": min}
"""Figures of which a table shows all cells, and which of its arms is the best."""
WANTED = (0.4, 0.7)
"""Where the baseline is to end."""
EFFECTS = {
    "saar": "SAAR, half purified", "saar-70": "SAAR, 7 of 10", "cleaner": "SAAR, all", "rstar2": "RoC",
    "masked-failures": "failures masked", "simpletir": "void turns masked", "blame": "blame (ours)",
}  # fmt: skip
"""Arms of the figure of docs/results.md, and their labels there."""
LATER = {"credit-frequent-loose": "frequent-loose, other rules", "known-frequent-loose": "frequent-loose, clean known"}
"""Result files of `--pairs` in that figure, and its panels of them."""
LABELS = EFFECTS | {
    "agree": "SAAR, two fixes agree", "fission": "Fission", "branpo": "BranPO", "rtmc": "RTMC", "echo-003": "ECHO",
    "sdpo-01": "SDPO",
}  # fmt: skip
PAIRED = {
    "pass1_t1": "pass@1", "pass1_equal_tokens": "at equal tokens", "failed_calls_t1": "failed calls",
    "sampled_tokens": "tokens sampled",
}  # fmt: skip
"""Figures that `--pairs` writes, and their heads."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS), metavar="CELL")
    parser.add_argument("--arms", nargs="+", default=None, metavar="RECIPE")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/grid"))
    parser.add_argument("--write", action="store_true", help="write what there is, and run nothing")
    parser.add_argument("--pairs", metavar="NAME", help="write a cell's arms, each beside the first one alone")
    parser.add_argument("--draw", action="store_true", help="make the figure and the table of docs/results.md")
    parser.add_argument(
        "--calibrate", action="store_true", help="on a seed of its own, the baseline if no arms are named"
    )
    parser.add_argument("--commit", help="of the code that made the runs that are written, unless this one")
    options = parser.parse_args()
    if options.write:
        write(options.out, options.cells, options.commit or checked_out())
        return
    if options.pairs:
        for name in options.cells:
            write_pairs(options.out / name, options.pairs, options.seeds, options.commit)
        return
    if options.draw:
        draw_effects()
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
        retcon("sft", BASELINE, "--out", str(out / "cold"), *overrides_of(given, READS["sft"]))
    if not (run / "final").is_dir():
        retcon("train", arm, "--from", str(out / "cold"), "--out", str(run), *overrides_of(given, READS["train"]))
    metrics = [line for line in read_metrics(run / "metrics.jsonl") if line.get(HELD_OUT) is not None]
    curve = ", ".join(f"{line[HELD_OUT]:.3f} at step {line['step']:.0f}" for line in metrics)
    print(f"{out.name}, {arm}: pass@1 {curve}; {metrics[-1]['eval_failed_calls']:.2f} failed calls", flush=True)
    least, most = WANTED
    if arm == BASELINE and not least <= metrics[-1][HELD_OUT] <= most:
        print(f"wanted: {least} to {most}; change the problems")


def write(out: Path, names: Sequence[str], commit: str) -> None:
    """Raises SystemExit where no cell is finished."""
    files = {name: out / name / "compare.json" for name in names}
    found = {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}
    if not found:
        raise SystemExit(f"no cell is finished in {out}")
    folder = ROOT / "docs" / "results"
    folder.mkdir(exist_ok=True)
    about = {"machine": machine(), "date": datetime.date.today().isoformat(), "commit": commit}
    made = {name: cell_of(out / name, one["cells"][0]["arms"]) | {"about": about} for name, one in found.items()}
    cells = earlier(folder / "grid.json") | made
    finished = [cells[name] for name in CELLS if name in cells]
    grid = {"ours": OURS.rpartition("/")[2], "matched": next(iter(found.values()))["matched"], "cells": finished}
    (folder / "grid.json").write_text(json.dumps(grid, indent=1) + "\n")
    (folder / "grid.md").write_text("\n\n".join(["# The grid", *map(shown, finished)]) + "\n")
    save(
        RESULTS / "compared" / "grid.json",
        {name: overview(finished, name) for name in OVERVIEW},
        command="python benchmarks/studies/grid.py --write",
        measures=TRAINED,
        commit=commit,
    )
    print(f"{len(finished)} of {len(CELLS)} cells: {folder / 'grid.json'}, grid.md")


def write_pairs(folder: Path, name: str, seeds: int, commit: str | None) -> None:
    """Write each arm's figures and differences from the first arm alone."""
    settings = json.loads((folder / "comparison.json").read_text())
    first, *others = settings["arms"]
    runs = {arm: [read_arm_run(folder, arm, seed) for seed in range(seeds)] for arm in (first, *others)}
    rows, differ = [], {}
    for arm in (first, *others):
        found = {one.name: one for one in figures({first: runs[first], arm: runs[arm]})}
        own = {one: cell(found[one].arms[arm], FIGURES[one][1]) for one in PAIRED}
        less = {one: found[one].differences[arm].difference for one in PAIRED if arm != first}
        differ[arm] = {one: asdict(value) for one, value in less.items()}
        apart = [difference({"difference": differ[arm]}, one, 3) if arm != first else "" for one in list(PAIRED)[:2]]
        values = list(own.values())
        rows.append([LABELS.get(arm, arm), by_seed(runs[arm]), values[0], *apart, *values[2:]])
    head = ["", "pass@1 by seed", "pass@1", "less the baseline's", "at equal tokens", *list(PAIRED.values())[2:]]
    save(
        RESULTS / "compared" / f"{name}.json",
        {"table": {"head": head, "rows": rows}, "differences": differ, "right of 8": outcomes(folder, runs)},
        command=f"python benchmarks/studies/grid.py --pairs {name}",
        measures=TRAINED,
        commit=commit,
    )


def outcomes(folder: Path, runs: Mapping[str, Sequence[ArmRun]]) -> dict[str, list[str]]:
    """Return each problem's right rollouts at T = 1, a digit each."""
    found: dict[str, list[str]] = {}
    for arm, own in runs.items():
        files = [folder / arm / f"seed-{seed}" / "eval" / "result.json" for seed in range(len(own))]
        problems = [json.loads(file.read_text())["settings"]["t1"]["problems"] for file in files]
        found[arm] = ["".join(str(one["passed"]) for one in sorted(p, key=lambda one: one["task"])) for p in problems]
    return found


def by_seed(runs: Sequence[ArmRun]) -> str:
    """Return pass@1 of each run."""
    alone = [{one.name: one for one in figures({"": [run]})}["pass1_t1"].arms[""] for run in runs]
    return ", ".join(f"{one.mean:.3f}".removeprefix("0") for one in alone if one is not None)


def draw_effects() -> None:
    """Draw each arm's pass@1 at equal tokens less the baseline's; save its table."""
    grid = earlier(ROOT / "docs" / "results" / "grid.json")
    panels, made = {}, {}
    for name in CELLS:
        made[name] = added_later(name) | differences(grid[name]["arms"], "pass1_equal_tokens")
        panels[name] = {label: made[name][arm] for arm, label in EFFECTS.items()}
    for name, title in LATER.items():
        file = RESULTS / "compared" / f"{name}.json"
        differ = json.loads(file.read_text(encoding="utf-8"))["figures"]["differences"]
        panels[title] = {
            LABELS[arm]: Interval(**one["pass1_equal_tokens"]) for arm, one in differ.items() if arm in LABELS
        }
    draw_forest(panels, "pass@1 at equal tokens, less the baseline's", ROOT / "docs" / "img" / "effects.png")
    rows = [
        [label, *(difference({"difference": {"": asdict(made[name][arm])}}, "", 3) for name in CELLS)]
        for arm, label in EFFECTS.items()
    ]
    save(
        RESULTS / "compared" / "effects.json",
        {"table": {"head": ["", *(f"`{name}`" for name in CELLS)], "rows": rows}},
        command="python benchmarks/studies/grid.py --draw",
        measures=TRAINED,
    )


def added_later(name: str) -> dict[str, Interval]:
    """Read a cell's differences from the baseline of later arms."""
    file = RESULTS / "compared" / f"compare-{name}.json"
    table = json.loads(file.read_text(encoding="utf-8"))["figures"]["table"]
    row = next(row for row in table["rows"] if row[0] == FIGURES["pass1_equal_tokens"][0])
    less = dict(zip(table["head"], row, strict=True))
    return {arm.partition(" − ")[0]: parse_difference(text) for arm, text in less.items() if " − " in arm}


def cell_of(folder: Path, arms: Mapping[str, Any]) -> dict[str, Any]:
    """The cell as it goes to grid.json. ours_less: each other arm to how much more ours has of a figure, paired by seed
    and, where it is a figure of problems, by problem."""
    ours = OURS.rpartition("/")[2]
    runs = {arm: [read_arm_run(folder, arm, seed) for seed in arms[arm]["seeds"]] for arm in (ours, *arms)}
    more: dict[str, dict[str, Any]] = {arm: {} for arm in runs if arm != ours}
    for figure in figures(runs):  # in which ours comes first, so that differences are from it
        for arm, less in figure.differences.items():
            if figure.name in AGAINST:
                one = less.difference
                more[arm][figure.name] = {"mean": -one.mean, "low": -one.high, "high": -one.low}
    return {"name": folder.name, "arms": arms, "ours_less": more}


def overview(cells: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Tabulate one figure of all cells, best arms in bold."""
    digits, rows = FIGURES[name][1], []
    for one in cells:
        found = {arm: about[name] for arm, about in one["arms"].items()}
        best = OVERVIEW[name](figure["mean"] for figure in found.values())
        texts = [cell(interval(figure), digits) for figure in found.values()]
        bold = [figure["mean"] == best for figure in found.values()]
        rows.append([f"`{one['name']}`", *(f"**{text}**" if b else text for text, b in zip(texts, bold, strict=True))])
    return {"head": ["", *cells[0]["arms"]], "rows": rows}


def earlier(file: Path) -> dict[str, Any]:
    """The cells of a grid that was written before, by name."""
    return {one["name"]: one for one in json.loads(file.read_text())["cells"]} if file.is_file() else {}


def shown(one: Mapping[str, Any]) -> str:
    """A cell in Markdown."""
    made, seeds = table(one["arms"]), len(next(iter(one["arms"].values()))["seeds"])
    lines = (made["head"], ["---"] * len(made["head"]), *made["rows"])
    note = f"{seeds} seeds, 95 %; differences are paired by seed and problem, a star: the range leaves out 0."
    where = f"*{one['about']['date']}, {one['about']['machine']}; commit {one['about']['commit']}*"
    tables = ("\n".join(f"| {' | '.join(line)} |" for line in rows) for rows in (lines, against(one["ours_less"])))
    return "\n\n".join([f"## {one['name']}", *tables, note, where])


def against(more: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Ours less each other arm, as lines of a table."""
    head = ["ours, less", *more]
    rows = [
        [FIGURES[name][0], *(difference({"difference": less}, name, digits) for less in more.values())]
        for name, digits in AGAINST.items()
    ]
    return [head, ["---"] * len(head), *rows]


if __name__ == "__main__":
    main()
