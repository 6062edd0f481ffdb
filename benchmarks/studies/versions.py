#!/usr/bin/env python
"""The local engine of two versions of the source, in turns: CPU time, and whether the tokens are the same.

    git worktree add /tmp/before COMMIT
    python benchmarks/studies/versions.py /tmp/before [--rounds 9] [--rollouts 48] [--workload quickstart] [--size mini]

The first version is that of the folder given, the second this one's; each has a process of its own, all on the same
machine in the same minutes. The workload is one of `benchmarks/workloads`, as in `rollout.py`: lengths and the tools'
seconds are those recorded, ids are drawn. `--size mini` is about as large as the number tasks' model, `small` the 4 M
parameters of the other benchmarks; weights are random.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))  # where `parts` and `rollout` are
from parts.measure import machine, rates
from parts.results import ROOT

SIZES = {"mini": {"layers": 2, "width": 128}, "small": {"layers": 4, "width": 256}}


class Version:
    """Process with one tree's engine, which runs the workload on request."""

    def __init__(self, tree: Path, options: argparse.Namespace) -> None:
        self.tree = tree
        chosen = [f"--{name}={getattr(options, name)}" for name in ("rollouts", "workload", "size")]
        child = [sys.executable, __file__, str(tree), "--serve", *chosen]
        env = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(child, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.receive()

    def receive(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.tree}: the process ended; its error is above")
        return json.loads(line)

    def run(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.receive()


def serve(options: argparse.Namespace) -> None:
    """Of one version: a line when it is ready, then, for each line that comes, one that says what a run took."""
    from parts.measure import VOCAB, small_model
    from parts.workload import FOLDER, read
    from rollout import with_engine

    import retcon
    from retcon.engine.local.engine import LocalEngine

    if not Path(retcon.__file__).is_relative_to(options.before.resolve()):
        sys.exit(f"{retcon.__file__} was imported, which is not below {options.before}")
    plans = read(FOLDER / f"{options.workload}.jsonl", vocabulary=VOCAB, limit=options.rollouts)
    longest = max(plan.length for plan in plans) + 1
    engine = LocalEngine(small_model(**SIZES[options.size]), max_len=longest, max_requests=len(plans))
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        began = time.process_time()
        stats, turns = with_engine(engine, plans)
        cpu = time.process_time() - began
        bits = hashlib.sha256(repr([(turn.ids, turn.logprobs) for turn in turns]).encode()).hexdigest()
        print(json.dumps({"cpu": cpu, "tokens": stats.generated, "forwards": stats.steps, "bits": bits}), flush=True)


def compare(options: argparse.Namespace) -> None:
    """Rounds of both; the first one, in which each does what happens once, does not count."""
    print(machine())
    versions = [Version(tree, options) for tree in (options.before.resolve(), ROOT)]
    rounds = [[version.run() for version in versions] for _ in range(options.rounds + 1)][1:]
    for version, runs in zip(versions, zip(*rounds, strict=True), strict=True):
        cpu = [run["cpu"] for run in runs]
        print(
            f"{version.tree}: {rates(runs[0]['tokens'], cpu)} tokens per CPU-second, {runs[0]['forwards']:,} forwards, "
            f"{1e3 * statistics.median(cpu) / runs[0]['forwards']:.2f} ms each"
        )
    ratios = [after["cpu"] / before["cpu"] for before, after in rounds]
    print(f"CPU time: {statistics.median(ratios):.2f} ({min(ratios):.2f}…{max(ratios):.2f}) times the version before's")
    same = {run["bits"] for runs in rounds for run in runs}
    print("the same ids and log-probs" if len(same) == 1 else "other ids or log-probs: their last bits differ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, metavar="FOLDER", help="a working tree of the version to compare with")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rollouts", type=int, default=48, help="at once, 64 at most")
    parser.add_argument("--workload", choices=("agents", "quickstart"), default="quickstart")
    parser.add_argument("--size", choices=tuple(SIZES), default="mini")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    (serve if options.serve else compare)(options)


if __name__ == "__main__":
    main()
