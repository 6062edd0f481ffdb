#!/usr/bin/env python
"""CPU time of `at_least` and `similarity` against difflib and cydifflib.

    python benchmarks/similarity.py [--sizes 100,700] [--pairs N] [--gamma G] [--seed S] [--transcripts DIR] [--repeats]

All of them must agree on every pair. Pairs are made of the standard library's code, cut at lines. --repeats adds
programs of 2,000 characters that repeat one line; --transcripts adds programs that agents ran one after another, by
size, read from a folder with `mint` and `mathcoder` (gzipped JSON Lines).
`near γ` asks the same pairs for γ equal to their ratio, and for the next float above.
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import json
import keyword
import math
import os
import platform
import random
import re
import sysconfig
import time
from collections.abc import Callable, Iterator
from datetime import date
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import cydifflib
from parts.results import add_json, save

from retcon.purify.similarity import at_least, similarity

Pair = tuple[str, str]
WIDTHS = (10, 13, 10, 10, 10, 10, 10, 9, 9)
OF_TRANSCRIPTS = 200
"""Pairs of each size."""
CONTENDERS = ("difflib", "cydifflib", "at_least", "similarity", "near γ")
DIVISIONS = ((0, 200), (200, 450), (450, 1000), (1000, 10**9))  # of real programs, by the longer one's characters


def modules() -> list[str]:
    texts = [p.read_text(encoding="utf-8") for p in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))]
    return [text for text in texts if len(text) > 20_000]


def piece(draw: random.Random, texts: list[str], size: int) -> str:
    text = draw.choice(texts)
    start = text.index("\n", draw.randrange(2_000, len(text) - size - 3_000)) + 1
    return text[start : start + size]


def edit_lines(draw: random.Random, text: str, edits: int) -> str:
    """Replace characters of some lines, and double or drop others."""
    lines = text.splitlines(keepends=True)
    for _ in range(edits):
        i = draw.randrange(len(lines))
        at = draw.randrange(len(lines[i]) + 1)
        changed = lines[i][:at] + draw.choice(("x", "str(", "  ", "= 0", "")) + lines[i][at + draw.randrange(4) :]
        lines[i : i + 1] = draw.choice(([changed], [changed], [changed], [lines[i], changed], [""]))
    return "".join(lines)


def moved(draw: random.Random, text: str) -> str:
    lines = text.splitlines(keepends=True)
    at = draw.randrange(len(lines) // 4, 3 * len(lines) // 4 + 1)
    return "".join(lines[at:] + lines[:at])


def rewrite_names(draw: random.Random, text: str) -> str:
    """Rename all names of a program and reorder its blocks."""
    words = re.findall(r"[a-z_]{3,}", text)
    names = {w: w if keyword.iskeyword(w) else draw.choice(words) for w in sorted(set(words))}
    blocks = re.split(r"(?<=\n)(?=\n)", re.sub(r"[a-z_]{3,}", lambda m: names[m.group()], text))
    return "".join(draw.sample(blocks, len(blocks)))


def pairs(draw: random.Random, texts: list[str], size: int, count: int) -> dict[str, list[Pair]]:
    kinds: dict[str, Callable[[str], str]] = {
        "identical": lambda a: "".join(list(a)),
        "few edits": lambda a: edit_lines(draw, a, max(1, size // 500)),
        "many edits": lambda a: edit_lines(draw, a, size // 40),
        "moved": lambda a: edit_lines(draw, moved(draw, a), 1),
        "rewritten": lambda a: rewrite_names(draw, a),
        "unrelated": lambda _: piece(draw, texts, size),
    }
    return {
        name: [(a, make(a)) for a in (piece(draw, texts, size) for _ in range(count))] for name, make in kinds.items()
    }


def programs(folder: Path) -> Iterator[list[str]]:
    """The programs of each transcript, in order."""
    for path in sorted(folder.glob("mint/*.jsonl.gz")):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            replies = [turn["content"] for turn in json.loads(line)["state"]["history"] if turn["role"] == "assistant"]
            found = (re.findall(r"<execute>(.*?)</execute>", text, re.DOTALL) for text in replies)
            yield [code.strip() for codes in found for code in codes]
    for path in sorted(folder.glob("mathcoder/*.jsonl.gz")):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            yield [turn["content"] for turn in json.loads(line)["debug_result"] if turn["role"] == "code"]


def real(draw: random.Random, folder: Path, count: int) -> dict[str, list[Pair]]:
    found = [pair for ran in programs(folder) for pair in pairwise(ran)]
    kinds = {}
    for low, high in DIVISIONS:
        of_size = [pair for pair in found if low <= max(map(len, pair)) < high]
        kinds[f"real, {low}+"] = draw.sample(of_size, min(count, len(of_size)))
    return {name: sample for name, sample in kinds.items() if sample}


def cpu(work: Callable[[], object], repeat: int) -> float:
    """Measure the CPU time of one call in µs, after a warm-up."""
    if repeat > 1:
        work()
    begun = time.process_time_ns()
    for _ in range(repeat):
        work()
    return (time.process_time_ns() - begun) / 1000 / repeat


def measure(a: str, b: str, gamma: float) -> tuple[list[float], float]:
    """CPU µs of difflib, cydifflib, at_least, similarity, at_least near γ; and the ratio. Ends where they disagree."""
    by_difflib = lambda: difflib.SequenceMatcher(None, a, b, autojunk=False).ratio()  # noqa: E731
    by_cydifflib = lambda: cydifflib.SequenceMatcher(None, a, b, autojunk=False).ratio()  # noqa: E731
    ratio = by_difflib()
    near = (ratio, math.nextafter(ratio, 2))
    asked = (0.0, 0.25, 0.5, 0.75, 1.0, gamma, *near, math.nextafter(ratio, -1))
    wrong = [g for g in asked if at_least(a, b, g) != (ratio >= g)]
    if wrong or similarity(a, b) != ratio or by_cydifflib() != ratio:
        raise SystemExit(f"not what difflib says ({ratio}; γ = {wrong}):\n{a!r}\n{b!r}")
    times = [
        cpu(by_difflib, 1),
        cpu(by_cydifflib, 2),
        cpu(lambda: at_least(a, b, gamma), 5),
        cpu(lambda: similarity(a, b), 3),
        sum(cpu(lambda g=g: at_least(a, b, g), 3) for g in near) / 2,
    ]
    return times, ratio


def report(size: str, kinds: dict[str, list[Pair]], gamma: float) -> dict[str, Any]:
    """Prints what was measured, and gives it as figures: times in ms as [median, least, most] of the kinds' medians."""
    done: dict[str, list[tuple[list[float], float]]] = {kind: [] for kind in kinds}
    for index in range(max(map(len, kinds.values()))):
        for kind, of_kind in kinds.items():  # in turns, so that what else the machine does falls on all of them
            done[kind] += [measure(*pair, gamma) for pair in of_kind[index : index + 1]]
    took: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    gains, near, c_gains = {}, {}, {}
    for kind, results in done.items():
        times = [median(t) for t in zip(*(times for times, _ in results), strict=True)]
        for name, time_of in zip(CONTENDERS, times, strict=True):
            took[name].append(time_of / 1000)
        gains[kind] = median(t[0] / t[2] for t, _ in results)
        near[kind] = median(t[0] / t[4] for t, _ in results)
        c_gains[kind] = median(t[0] / t[1] for t, _ in results)
        ratio = median(r for _, r in results)
        cells = [
            size,
            kind,
            f"{ratio:.2f}",
            *(f"{t:,.0f}" for t in times),
            f"{gains[kind]:,.0f}x",
            f"{near[kind]:,.0f}x",
        ]
        print("  ".join(f"{cell:>{width}}" for cell, width in zip(cells, (*WIDTHS, 9), strict=False)))
    count = sum(map(len, kinds.values()))
    times = [statistic(of.values()) for of in (gains, near) for statistic in (median, min)]
    print(
        "{}: {:,.0f} times difflib in the median kind, {:,.0f} in the worst; near γ {:,.0f} and {:,.0f}; "
        "same decisions on all {} pairs\n".format(size, *times, count)
    )
    return {
        "pairs": count,
        "times difflib": {"median kind": median(gains.values()), **worst(gains), "of": gains},
        "near γ": {"median kind": median(near.values()), **worst(near)},
        "cydifflib": {"least": min(c_gains.values()), "most": max(c_gains.values())},
        "ms": {name: [median(of), min(of), max(of)] for name, of in took.items()},
    }


def worst(gains: dict[str, float]) -> dict[str, Any]:
    kind = min(gains, key=lambda one: gains[one])
    return {"worst kind": gains[kind], "worst, named": f"{gains[kind]:,.0f} ({kind})"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="100,700,2000,10000", help="characters")
    parser.add_argument("--pairs", type=int, default=9, help="of each kind; a third of it from 10,000 characters")
    parser.add_argument("--gamma", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--transcripts", type=Path)
    parser.add_argument("--repeats", action="store_true")
    add_json(parser)
    arguments = parser.parse_args()
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(": ")[2] if models else platform.machine()
    machine = f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"{date.today()}  {machine}, Python {platform.python_version()}")
    print(f"medians over the pairs of a kind, CPU µs; γ = {arguments.gamma:g}; gains over difflib\n")
    head = ("characters", "kind", "ratio", "difflib", "cydifflib", "at_least", "similarity", "near γ", "gain", "near γ")
    print("  ".join(f"{cell:>{width}}" for cell, width in zip(head, (*WIDTHS, 9), strict=False)))
    draw = random.Random(arguments.seed)
    texts, figures = modules(), {}
    for size in map(int, filter(None, arguments.sizes.split(","))):
        count = arguments.pairs if size < 10_000 else max(1, arguments.pairs // 3)
        figures[f"{size} characters"] = report(f"{size:,}", pairs(draw, texts, size, count), arguments.gamma)
    if arguments.repeats:
        lines = ("print(x)\n", "print(y)\n"), ("    total += x\n", "    total -= x\n"), ("x = 1\n", "x = 2\n")
        twice = [(a * (2000 // len(a)), b * (2000 // len(b))) for a, b in lines]
        figures["repeats"] = report("2,000", {"repeats": twice}, arguments.gamma)
    if arguments.transcripts:
        found = real(draw, arguments.transcripts, OF_TRANSCRIPTS)
        figures["transcripts"] = report("as it is", found, arguments.gamma)
    if arguments.json:
        more = " --repeats" * arguments.repeats + " --transcripts DIR" * (arguments.transcripts is not None)
        save(
            arguments.json,
            figures,
            command=f"benchmarks/similarity.py{more}",
            measures=["src/retcon/purify/similarity.py"],
        )


if __name__ == "__main__":
    main()
