#!/usr/bin/env python
"""Completions whose verdicts others have published, graded by our graders: how many agree, and each that does not.

    git clone https://github.com/QwenLM/Qwen2.5-Math /tmp/qwen
    git clone https://github.com/mathllm/MathCoder /tmp/mathcoder
    git clone https://github.com/xingyaoww/mint-bench /tmp/mint       its outputs, as FOLDER/MODEL.jsonl.gz
    python benchmarks/studies/published.py [--qwen /tmp/qwen] [--mathcoder /tmp/mathcoder] [--mint FOLDER] [--show FILE]

qwen: 100 problems of MATH with eight completions each, and the `score` of its own grader. mathcoder: answers of
MathCoder-L-13b (GSM8K) and MathCoder-CL-13b (SVAMP, mathematics, simuleq) in files called `correct` and `wrong`. mint:
452 interactions of four models each; `success` by MINT's own checks of what they proposed last. A folder may be a bare
repository, too. --show writes every difference, one a line, with what each side says.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[1]))  # where `parts` and `grading` are
from grading import outcomes, right
from parts.measure import machine

from retcon.tasks.grading.grading import GradeSettings
from retcon.tasks.grading.registry import Fault
from retcon.tasks.types import Task

QWEN = "evaluation/data/eval_rm_maj_example/math_cot_100.jsonl"
MATHCODER = {
    "MathCoder: GSM8K": "outs/MathCoder-L-13b/GSM8K/GSM8K_test_result-20230916-1348-{}.jsonl",
    "MathCoder: SVAMP": "outs/MathCoder-CL-13b/SVAMP/SVAMP_test_result-20230918-0026-{}.jsonl",
    "MathCoder: mathematics": "outs/MathCoder-CL-13b/mathematics/mathematics_test_result-20230917-2308-{}.jsonl",
    "MathCoder: simuleq": "outs/MathCoder-CL-13b/simuleq/simuleq_test_result-20230918-0021-{}.jsonl",
}
GRADERS = {"mmlu": "choice", "humaneval": "code", "mbpp": "code"}
SOLUTION = re.compile(r"<solution>((?:(?!<solution>).)*)</solution>", re.DOTALL)
DEFINES = re.compile(r"^def (\w+)\(", re.MULTILINE)


class Case(NamedTuple):
    """One completion. set: its source. verdict: the published one."""

    set: str
    task: Task
    reply: str
    verdict: bool


def lines(folder: Path, path: str) -> list[dict[str, Any]]:
    """Rows of a file of a checkout or of a bare repository."""
    if (folder / path).is_file():
        text = (folder / path).read_text()
    else:
        shown = ["git", "-C", str(folder), "show", f"HEAD:{path}"]
        text = subprocess.run(shown, capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in text.splitlines()]


def of_qwen(folder: Path) -> Iterator[Case]:
    for row in lines(folder, QWEN):
        for n, (reply, score) in enumerate(zip(row["code"], row["score"], strict=True)):
            yield Case("Qwen2.5-Math: MATH", Task(f"{row['idx']}/{n}", row["question"], row["gt"]), reply, score)


def of_mathcoder(folder: Path) -> Iterator[Case]:
    for name, path in MATHCODER.items():
        for verdict in ("correct", "wrong"):
            for n, row in enumerate(lines(folder, path.format(verdict))):
                question = row["messages"][-1]["content"][0]["content"]
                task = Task(f"{verdict}/{n}", question, str(row["ground_truth"]["answer"]))
                yield Case(name, task, f"\\boxed{{{row['completion']}}}", verdict == "correct")


def of_mint(folder: Path) -> Iterator[Case]:
    for path in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(path, "rt") as file:
            rows = [json.loads(line) for line in file]
        for row in rows:
            subset, task, last = row["subset"], row["task"], row["state"]["history"][-1]
            proposed = SOLUTION.findall(last["content"]) if last["role"] == "assistant" else []
            if subset == "hotpotqa" or not proposed:
                continue
            grader = GRADERS.get(subset, "math")
            meta: dict[str, Any] = {"grader": grader}
            if subset == "humaneval":
                prompt = task["prompt"].partition("\n\n")[2]
                meta |= {"prompt": prompt, "test": task["reference"], "entry_point": DEFINES.findall(prompt)[-1]}
            elif subset == "mbpp":
                meta |= {"tests": task["reference"]}
            reply = proposed[-1] if grader == "code" else f"<answer>{proposed[-1].strip()}</answer>"
            reply = f"```python\n{reply.strip()}\n```" if grader == "code" else reply
            answer = "" if grader == "code" else str(task["reference"])
            name = f"{path.name.partition('.jsonl')[0]}/{row['row']}"
            yield Case(f"MINT: {subset}", Task(name, task["prompt"], answer, meta=meta), reply, row["state"]["success"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sources = {"qwen": of_qwen, "mathcoder": of_mathcoder, "mint": of_mint}
    for name in sources:
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--show", type=Path, help="file of the differences, JSON Lines")
    parser.add_argument("--at-once", type=int, default=2)
    args = parser.parse_args()
    given = {name: folder for name in sources if (folder := getattr(args, name)) is not None}
    cases = [case for name, folder in given.items() for case in sources[name](folder)]
    graded = asyncio.run(outcomes(GradeSettings(), [(case.task, case.reply) for case in cases], args.at_once))
    counts: dict[str, Counter[tuple[bool, bool]]] = {}
    differ = []
    for case, ours in zip(cases, graded, strict=True):
        counts.setdefault(case.set, Counter())[case.verdict, right(ours)] += 1
        if right(ours) is not case.verdict:
            about = {"set": case.set, "id": case.task.id, "published": case.verdict, "ours": right(ours)}
            task = {"answer": case.task.answer, "reply": case.reply, "question": case.task.question}
            differ.append({**about, "why": ours.why, **task})
    print("| completions | of | right to both | wrong to both | only published right | only ours right |")
    print("|---|---|---|---|---|---|")
    for name, of in counts.items():
        both = (of[True, True], of[False, False], of[True, False], of[False, True])
        print(f"| {name} | {sum(of.values()):,} | {' | '.join(f'{n:,}' for n in both)} |")
    faults = sum(isinstance(one, Fault) for one in graded)
    print(f"\n{len(differ)} of {len(cases):,} differ; {faults} could not be graded; {machine()}")
    if args.show:
        args.show.write_text("".join(json.dumps(one) + "\n" for one in differ))


if __name__ == "__main__":
    main()
