#!/usr/bin/env python
"""One RL step against TRL's GRPOTrainer: CPU seconds by phase, in turns, at one thread.

    python benchmarks/step.py --trl-python TRL-ENVIRONMENT/bin/python [--rounds 5] [--minibatches 1] [--calls] [--paged]

TRL lives in an environment of its own, made once with

    python3.11 -m venv TRL-ENVIRONMENT
    TRL-ENVIRONMENT/bin/pip install torch==2.13.0 'trl==1.16.*' transformers datasets peft accelerate

(on a machine without a GPU, torch's CPU wheel serves); without --trl-python only our side is measured.

A step: 16 prompts of 48 ids, 8 completions of 64 ids each, one optimiser step in micro-batches of 32 sequences, for a
Qwen3 of 4 layers, 256 wide (`step_shape.py`); what each side does is in `our_step.py` and `trl_step.py`. Every side is
a process of its own, and all wait while one computes. A first step of each is not counted. CPU seconds are the
process's, those of the sandbox's processes among them; medians, and the ratios' medians, are over the rounds.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parts.results import add_json, save

PARTS = Path(__file__).parent / "parts"
PHASES = ("generate", "tool", "score", "prepare", "train", "sync")


@dataclass
class Side:
    """A process that takes steps. rivals: names of the sides that this one is compared to. steps: what it answered."""

    name: str
    command: Sequence[str]
    rivals: Sequence[str] = ()
    steps: list[dict[str, Any]] = field(default_factory=list)

    def start(self, stack: ExitStack) -> None:
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = stack.enter_context(
            subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=one_thread)
        )

    def hear(self) -> dict[str, Any]:
        """The next line of the process. Raises SystemExit where it has ended instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self._process.wait()}: {' '.join(self.command)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def step(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.hear()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def cpu(self) -> list[float]:
        """CPU seconds of every step."""
        return [sum(step["phases"].values()) for step in self.steps]


def sides(options: argparse.Namespace) -> list[Side]:
    def ours(*arguments: str) -> list[str]:
        return [sys.executable, str(PARTS / "our_step.py"), *arguments, f"--minibatches={options.minibatches}"]

    def trl(*arguments: str) -> list[str]:
        return [options.trl_python, str(PARTS / "trl_step.py"), *arguments, f"--minibatches={options.minibatches}"]

    half = ["TRL bf16, autocast", "TRL bf16, bf16 weights", *(["TRL bf16, paged"] if options.paged else [])]
    chosen = [
        Side("ours fp32", ours("--precision=fp32"), ["TRL fp32"]),
        Side("ours bf16", ours("--precision=bf16"), half),
    ]
    if options.calls:
        chosen.append(Side("ours bf16, a call", ours("--precision=bf16", "--calls")))
    if options.trl_python:
        chosen += [
            Side("TRL fp32", trl("--precision=fp32")),
            Side("TRL bf16, autocast", trl("--precision=autocast")),
            Side("TRL bf16, bf16 weights", trl("--precision=bf16")),
        ]
        if options.paged:
            chosen.append(Side("TRL bf16, paged", trl("--precision=autocast", "--paged")))
    return chosen


def measure(every: Sequence[Side], rounds: int) -> list[str]:
    """Fills in the sides' steps; returns what their processes run on."""
    with ExitStack() as stack:
        for side in every:
            side.start(stack)
        versions = [side.hear()["versions"] for side in every]
        for number in range(rounds + 1):
            for side in every:
                step = side.step()
                if number:
                    side.steps.append(step)
            print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
        for side in every:
            side.end()
    return list(dict.fromkeys(versions))


def figures(every: Sequence[Side]) -> dict[str, Any]:
    """Return medians of each side's phases and of its ratios to rivals."""
    found: dict[str, Any] = {}
    names = {side.name: side for side in every}
    for side in every:
        found[side.name] = {p: statistics.median(step["phases"].get(p, 0.0) for step in side.steps) for p in PHASES}
        found[side.name] |= {
            "step": statistics.median(side.cpu()),
            "wall": statistics.median(step["wall"] for step in side.steps),
        }
        for rival in (names[name] for name in side.rivals if name in names):
            ratios = [mine / theirs for mine, theirs in zip(side.cpu(), rival.cpu(), strict=True)]
            found[f"{side.name} / {rival.name}"] = [statistics.median(ratios), min(ratios), max(ratios)]
    return found


def table(every: Sequence[Side]) -> str:
    found = figures(every)
    lines = [f"{'CPU-seconds':24}" + "".join(f"{p:>9}" for p in PHASES) + f"{'step':>9}{'min…max':>14}{'wall':>8}"]
    for side in every:
        total, of_side = side.cpu(), found[side.name]
        spread = f"{min(total):.2f}…{max(total):.2f}"
        lines.append(
            f"{side.name:24}"
            + "".join(f"{of_side[part]:9.3f}" for part in PHASES)
            + f"{of_side['step']:9.2f}{spread:>14}{of_side['wall']:8.2f}"
        )
    for name, value in found.items():
        if isinstance(value, list):
            middle, least, most = value
            lines.append(f"{name}: {middle:.2f} ({least:.2f}…{most:.2f})")
    return "\n".join(lines)


def cpu_name() -> str:
    info = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in info if line.startswith("model name")), platform.processor())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", help="the interpreter of an environment with TRL 1.16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minibatches", type=int, choices=(1, 2, 4), default=1, help="optimiser steps a batch")
    parser.add_argument("--calls", action="store_true", help="ours with a real call in the middle of each rollout too")
    parser.add_argument("--paged", action="store_true", help="TRL with its continuous batching too (slow)")
    add_json(parser)
    options = parser.parse_args()
    every = sides(options)
    versions = measure(every, options.rounds)
    print(f"{datetime.date.today()} · {os.cpu_count()} cores of {cpu_name()}, 1 thread · {options.rounds} rounds, "
          f"{options.minibatches} optimiser steps a batch")  # fmt: skip
    print(*versions, sep="\n")
    print(table(every))
    if options.json:
        command = f"benchmarks/step.py --trl-python PYTHON --rounds {options.rounds}"
        save(options.json, figures(every), command=command, measures=("src/retcon/train", "src/retcon/engine"))


if __name__ == "__main__":
    main()
