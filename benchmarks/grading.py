#!/usr/bin/env python
r"""What graders get right: documented examples, gold programs, fuzzed answers, and forms of answers against other graders.
python benchmarks/grading.py examples
python benchmarks/grading.py programs --data DIR (HumanEval.jsonl.gz, mbpp.json)
python benchmarks/grading.py fuzz [--count 10000] [--seed 0]
python benchmarks/grading.py confusion --data DIR [--other PYTHON] [--show N]      DIR holds math500.jsonl

`confusion` writes every answer anew in forms that are equal and in forms that are wrong, and asks `math`, Math-Verify by
itself, and, in the environment of PYTHON, mathruler (PRM800K's grader) and the one of PRIME in verl:

    python -m venv other && other/bin/pip install mathruler sympy pylatexenc tqdm numpy packaging 'antlr4-python3-runtime==4.11.0'
    other/bin/pip install --no-deps verl
"""  # noqa: E501

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from parts.forms import bare, equal_forms, wrong_forms
from parts.results import add_json, save

from retcon.tasks.grading.grading import GradeSettings, Grading
from retcon.tasks.grading.registry import Fault, Outcome, Reply
from retcon.tasks.types import Task

EXAMPLES: tuple[tuple[str, str, bool], ...] = (
    # its README: usage, and what it says of parsing and comparing
    (r"${1,3} \cup {2,4}$", r"${1,2,3,4}$", True),
    ("1/2", r"$\frac{1}{2}$", True),
    ("1/2", r"The answer is $\frac{1}{2}$", True),
    ("1/2", "The answer is 1/2", True),
    (r"\sqrt{2}", r"\[ \sqrt{2} \]", True),
    (r"\frac{1}{3}", r"$\frac13$", True),
    (r"\sqrt{3}", r"$\sqrt3$", True),
    (r"\beta", "$β$", True),
    ("1", "$x = 1$", True),
    ("0.1", r"$10\%$", True),
    ("10", r"$10 \text{ cm}$", True),
    ("9", r"$(9)$", True),
    (r"\frac{1}{3}", "0.333333", True),
    ("x + 1", "$y + 1$", False),
    (r"\{1, 2\}", "$(1, 2)$", False),
    ("x + y", "$y + x$", True),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"$\begin{pmatrix}1&2\\3&4\end{pmatrix}$", True),
    (r"(0, 1) \cup (2, 3)", r"$(2, 3) \cup (0, 1)$", True),
    ("[0, 1)", "$[0, 1]$", False),
    ("1 < x < 2", "$(1, 2)$", True),
    ("(1, 2)", "$1 < x < 2$", False),
    ("x = 1", "$1$", True),
    # what its tests are called after
    ("7425000", "7,425,000", True),
    ("1000.99", "$1,000.99", True),
    ("0.4", ".4", True),
    ("-5", "-5", True),
    (r"\frac{10}{9}", "10/9", True),
    ("9", "Answer \\[ 9 \\]", True),
    ("10", r"Answer \( (9+1) \)", True),
    (r"\frac{1}{3}", r"$k = \frac{1}{3}$", True),
    (r"28\%", "28 percent", True),
    ("0.28", "28", False),
    (r"\text{Evelyn}", r"Therefore, $\boxed{\text{Evelyn}}$ is our answer.", True),
    ("2-2p", r"Thus $x-p=\boxed{2-2p}$.", True),
    (r"90^\circ", r"$\boxed{90^\circ}$", True),
    ("x^2 + 2x + 1", "$(x+1)^2$", True),
)
"""(gold, reply, whether they are equal): what Math-Verify documents of itself."""


async def outcomes(settings: GradeSettings, cases: Sequence[tuple[Task, str]], at_once: int) -> list[Outcome]:
    async with Grading(settings, at_once=at_once) as grading:
        room = asyncio.Semaphore(4 * at_once)

        async def one(task: Task, reply: str) -> Outcome:
            async with room:
                return await grading.outcome(task, Reply(reply))

        return await asyncio.gather(*(one(task, reply) for task, reply in cases))


def right(outcome: Outcome) -> bool:
    return not isinstance(outcome, Fault) and outcome.right


def examples(args: argparse.Namespace) -> dict[str, Any]:
    graded = asyncio.run(outcomes(GradeSettings(), [(Task("", "", g), r) for g, r, _ in EXAMPLES], args.at_once))
    wrong = [(*case, one) for case, one in zip(EXAMPLES, graded, strict=True) if right(one) is not case[2]]
    print(f"documented examples: {len(EXAMPLES) - len(wrong)} of {len(EXAMPLES)}")
    for gold, reply, equal, one in wrong:
        print(f"  {gold!r} and {reply!r} should be {'equal' if equal else 'different'}: {one}")
    return {"examples": len(EXAMPLES), "agree": len(EXAMPLES) - len(wrong)}


def programs(args: argparse.Namespace) -> dict[str, Any]:
    with gzip.open(args.data / "HumanEval.jsonl.gz", "rt") as file:
        humaneval = [json.loads(line) for line in file]
    sets = {
        "HumanEval": [(r, r["prompt"] + r["canonical_solution"]) for r in humaneval],
        "MBPP": [(r, r["gold"]) for r in json.loads((args.data / "mbpp.json").read_text())],
    }
    figures: dict[str, Any] = {}
    settings = GradeSettings("code", options={"code": {"seconds": 60.0}})
    for name, rows in sets.items():
        cases = [(Task(str(row["task_id"]), "", "", meta=row), f"```python\n{code}\n```") for row, code in rows]
        start = time.perf_counter()
        graded = asyncio.run(outcomes(settings, cases, args.at_once))
        seconds = time.perf_counter() - start
        failed = [f"{task.id} ({one.why})" for (task, _), one in zip(cases, graded, strict=True) if not right(one)]
        print(
            f"{name}: {len(cases) - len(failed)} of {len(cases)} in {seconds:.1f} s; not: {', '.join(failed) or 'none'}"
        )
        figures[name] = {"passed": len(cases) - len(failed), "of": len(cases), "seconds": round(seconds, 1)}
    return figures


SEEDS = (
    *(r"\frac{1}{2}", "0.5", "12", "-3", "1,234", r"50\%", r"2\sqrt{3}", r"\pi/4", "x^2+2x+1", "(1, 2)", "[0, 1)"),
    *(r"\{1, 2, 3\}", r"(-\infty, 2]", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\text{Monday}", r"90^\circ", "a+bi"),
    *(
        "x = 5",
        "x > 3",
        r"\binom{5}{2}",
        "5!",
        r"\log_2 8",
        r"e^{i\pi}",
        r"\sum_{k=1}^{10} k",
        r"\int_0^1 x dx",
        "10_3",
    ),
    *(
        "3:45",
        "C",
        "7 apples",
        r"\frac{\sqrt{2}}{3}",
        r"1 \pm \sqrt{5}",
        r"\cos 30^\circ",
        "2^{10}",
        "1.5e10",
        "∞",
        "½",
    ),
)
PIECES = (
    *(
        "\\boxed{",
        "}",
        "{",
        "\\frac",
        "\\sqrt",
        "^",
        "_",
        "$",
        "$$",
        "\\[",
        "\\]",
        "####",
        "\\left(",
        "\\right)",
        "&",
        "%",
    ),
    *(
        "\\\\",
        "\\begin{pmatrix}",
        "\\end{pmatrix}",
        "(",
        ")",
        "[",
        "]",
        ",",
        "=",
        "<",
        "\\cup",
        "\\text{",
        "!",
        "\0",
        "\n",
    ),
    *(
        "\ud800",
        "\u202e",
        "é",
        "数",
        "🙂",
        "9" * 40,
        "1/0",
        "\\infty",
        "\\int",
        "\\lim",
        "import os",
        "__class__",
        "'",
        '"',
    ),
)
HOSTILE = (
    *("9^{9^{9^9}}", "((10^9)!)!", "2^{2^{2^{2^{2^2}}}}", r"\binom{10^9}{5\cdot 10^8}", "x^{10^8}+1=0"),
    *("{" * 2000, "(" * 2000, r"\frac{1}{" * 300, "1+" * 1900 + "1", "9" * 3900, r"\sqrt{" * 500, "-" * 3000 + "1"),
    *("__import__('os')._exit(0)", "exec('while True: pass')", r"\sum_{k=1}^{10^{12}} k^k", r"\prod_{n=1}^{10^9} n"),
)


def fuzzed(seed: int, count: int, hostile: float = 0.003) -> Iterator[tuple[str, str]]:
    """(answer, reply): replies of whole and of broken mathematics, marked in all ways; a share of them hostile."""
    rng = random.Random(f"fuzz/{seed}")
    for _ in range(count):
        answer = rng.choice(SEEDS[:15])
        text = rng.choice(HOSTILE) if rng.random() < hostile else rng.choice((answer, rng.choice(SEEDS)))
        for _ in range(rng.choice((0, 1, 1, 2, 3, 8))):
            at = rng.randrange(len(text) + 1)
            change = rng.randrange(4)
            piece = rng.choice((rng.choice(PIECES), rng.choice(SEEDS), chr(rng.randrange(32, 0x3000))))
            text = text[:at] + (piece if change else "") + text[at + (change == 1) + 3 * (change == 0) :]
        frames = ("{}", r"\boxed{{{}}}", "#### {}", "The answer is ${}$.", r"$\boxed{{{}}}$ and then", "so {}\n\n")
        yield answer, rng.choice(frames).format(text)


def fuzz(args: argparse.Namespace) -> dict[str, Any]:
    settings = GradeSettings(options={"math": {"seconds": 2.0, "memory_mb": 512}})
    cases = [(Task("", "", answer), reply) for answer, reply in fuzzed(args.seed, args.count)]
    for name in ("exact", "choice"):
        others = asyncio.run(outcomes(GradeSettings(name), [(Task("", "", "B"), r) for _, r in cases], args.at_once))
        print(f"{name}: {len(others)} answers, {sum(isinstance(one, Fault) for one in others)} faults")
    start = time.perf_counter()
    graded: list[Outcome] = []
    for n in range(0, len(cases), 500):
        graded += asyncio.run(outcomes(settings, cases[n : n + 500], args.at_once))
        seconds = time.perf_counter() - start
        ends = Counter("fault" if isinstance(one, Fault) else "right" if one.right else "wrong" for one in graded)
        print(f"math: {len(graded)} answers in {seconds:.0f} s: {dict(ends)}", flush=True)
    why = Counter(re.sub(r"\d+", "n", one.why)[:90] for one in graded if isinstance(one, Fault))
    for reason, n in why.most_common(8):
        print(f"  {n:4} {reason}")
    return {"answers": len(graded), "seconds": round(seconds), **ends}


PLAIN = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from math_verify import parse, verify
for line in sys.stdin:
    gold, reply = json.loads(line)
    print(int(verify(parse(f"${gold}$"), parse(reply))), flush=True)
"""
OTHERS = """
import contextlib, importlib.util, json, sys, types
for name in ("verl", "verl.utils", "verl.utils.reward_score"):  # their __init__ would ask for torch and ray
    found = importlib.util.find_spec("verl").submodule_search_locations[0] if name == "verl" else path
    path = found if name == "verl" else path + "/" + name.rpartition(".")[2]
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
sys.modules["verl.utils.metric"] = types.ModuleType("verl.utils.metric")
sys.modules["verl.utils.metric"].Metric = object
import mathruler.grader as ruler
import verl.utils.reward_score.prime_math as prime
out = sys.stdout
for line in sys.stdin:
    gold, reply = json.loads(line)
    marks = []
    for grade in (lambda: ruler.grade_answer(ruler.extract_boxed_content(reply), gold),
                  lambda: prime.compute_score(reply, gold)[0]):
        with contextlib.redirect_stdout(sys.stderr):
            try:
                marks.append(int(bool(grade())))
            except Exception:
                marks.append(2)
    print(*marks, file=out, flush=True)
"""


def asked(python: str, program: str, cases: Sequence[tuple[str, str]]) -> list[list[bool]]:
    """What graders in another process say of (gold, reply): for each grader, of each case."""
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    done = subprocess.run([python, "-c", program], input=lines, capture_output=True, text=True, check=False)
    rows = [line.split() for line in done.stdout.splitlines()]
    if len(rows) != len(cases):
        sys.exit(f"{python} ended after {len(rows)} of {len(cases)} answers:\n{done.stderr[-2000:]}")
    return [[row[n] == "1" for row in rows] for n in range(len(rows[0]))]


def confusion(args: argparse.Namespace) -> dict[str, Any]:
    golds = [json.loads(line)["answer"] for line in (args.data / "math500.jsonl").open()][:: args.every]
    cases: list[tuple[str, str, str, bool]] = []
    for n, gold in enumerate(golds):
        other = next(g for g in golds[n + 1 :] + golds[:n] if g != gold and bare(g) != bare(gold))
        cases += [(gold, reply, form, True) for form, reply in equal_forms(gold).items()]
        cases += [(gold, reply, form, False) for form, reply in wrong_forms(gold, other).items()]
    pairs = [(gold, reply) for gold, reply, _, _ in cases]
    others = dict(
        zip(("mathruler", "verl (PRIME)"), asked(args.other, OTHERS, pairs) if args.other else (), strict=False)
    )
    graded = asyncio.run(outcomes(GradeSettings(), [(Task("", "", g), r) for g, r in pairs], args.at_once))
    graders = {"math": [right(one) for one in graded], "Math-Verify": asked(sys.executable, PLAIN, pairs)[0], **others}
    faults = [one.why for one in graded if isinstance(one, Fault)]
    counts: dict[tuple[bool, str], Counter[str]] = defaultdict(Counter)
    for n, (_, _, form, equal) in enumerate(cases):
        for key in ((equal, form), (equal, "all")):
            counts[key]["of"] += 1
            counts[key].update(name for name, verdicts in graders.items() if verdicts[n])
    print(f"{len(golds)} answers, {len(cases)} replies, {len(faults)} faults: {Counter(faults).most_common(3)}")
    for equal in (True, False):
        print(f"\n| {'equal' if equal else 'wrong'} forms: taken for right | of | {' | '.join(graders)} |")
        print("|" + "---|" * (2 + len(graders)))
        for (kind, form), found in sorted(counts.items(), key=lambda item: -item[1]["of"]):
            if kind is equal:
                print(f"| {form} | {found['of']} | {' | '.join(str(found[name]) for name in graders)} |")
    for n, (gold, reply, form, equal) in enumerate(cases):
        if args.show and graders["math"][n] is not equal:
            args.show -= 1
            print(f"{'equal' if equal else 'wrong'}, {form}: {gold!r} and {reply!r}: {graded[n]}")
    figures = {"equal" if equal else "wrong": dict(counts[equal, "all"]) for equal in (True, False)}
    return {"answers": len(golds), "faults": len(faults), **figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("examples", "programs", "fuzz", "confusion"))
    parser.add_argument("--data", type=Path, help="a folder of evaluation files")
    parser.add_argument("--other", help="Python of an environment with mathruler and verl")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=1, help="take every Nth answer")
    parser.add_argument("--show", type=int, default=0, help="disagreements with what is so, to print")
    parser.add_argument("--at-once", type=int, default=2)
    add_json(parser)
    args = parser.parse_args()
    figures = {"examples": examples, "programs": programs, "fuzz": fuzz, "confusion": confusion}[args.what](args)
    if args.json:
        measures = ["src/retcon/tasks/graders", "src/retcon/tasks/grading"]
        save(args.json, figures, command=f"benchmarks/grading.py {args.what}", measures=measures)


if __name__ == "__main__":
    main()
