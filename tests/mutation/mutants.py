"""Tests the tests: puts faults into the code, one at a time, and lists those that no test notices. `make mutants`.

    make mutants                                              # all of them: hours
    make mutants ARGS="--only 'retcon.select.*' --sample 100 --seed 1 --seconds 5"

mutmut makes the faults, as [tool.mutmut] in pyproject.toml says, in a copy of the repository under build/mutants, and
trying.py runs the tests that reach each. What is known of a fault is kept there: the same command goes on where it was,
and tries again what has changed. Ends with 1 where a fault goes unnoticed.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.utils.format_utils import get_mutant_name

ROOT = Path(__file__).resolve().parents[2]
COPY = ROOT / "build" / "mutants"
UNNOTICED = ("survived", "reached by no test")


def copy_tree(only_mutate: list[str], children: int) -> dict[str, dict[str, Any]]:
    """Copies the files that git knows of, with the faults in them: for each file with faults, what these are."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    output = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = [name for name in output.split("\0") if name and (ROOT / name).is_file()]
    there = {str(path.relative_to(COPY)) for room in ("src", "tests") for path in (COPY / room).rglob("*.py")}
    for name in there - set(names):
        (COPY / name).unlink()
    known, changed = read(COPY / "made.json"), []
    made: dict[str, dict[str, Any]] = {}
    for name in names:
        source, target = (ROOT / name).read_bytes(), COPY / name
        if any(fnmatch(name, pattern) for pattern in only_mutate) and name.endswith(".py"):
            digest = hashlib.sha256(source).hexdigest()
            if known.get(name, {}).get("digest") == digest:
                made[name] = known[name]
            else:
                changed.append((name, digest))
        elif not (target.is_file() and target.read_bytes() == source):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    os.chdir(COPY)  # where mutmut reads its settings
    with ProcessPoolExecutor(children) as pool:
        for (name, digest), faults in zip(changed, pool.map(put_faults, [name for name, _ in changed]), strict=True):
            made[name] = {"digest": digest, "faults": faults}
    (COPY / "made.json").write_text(json.dumps(made), encoding="utf-8")
    return made


def put_faults(name: str) -> dict[str, str]:
    """Writes the file with its faults, which act when they are called for: each fault, with its function's digest."""
    mutated = mutate_file_contents(name, (ROOT / name).read_text(encoding="utf-8"))
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(mutated.code, encoding="utf-8")
    function = {fault: fault.partition("__mutmut_")[0] for fault in mutated.mutant_names}
    return {get_mutant_name(Path(name), f): mutated.hash_by_function_name[function[f]] for f in mutated.mutant_names}


@cache
def functions_of(file: str) -> dict[str, list[str]]:
    """The lines of each function of a file with its faults."""
    text = (COPY / file).read_text(encoding="utf-8")
    lines = text.splitlines()
    found = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return {n.name: lines[n.lineno - 1 : n.end_lineno] for n in found}


def difference(fault: str, file: str) -> list[str]:
    """The lines that the fault changes."""
    functions, name = functions_of(file), fault.rpartition(".")[2]
    before, after = (
        [line.replace(function, "") for line in functions[function]]
        for function in (name.partition("__mutmut_")[0] + "__mutmut_orig", name)
    )
    return [line for line in difflib.unified_diff(before, after, n=0, lineterm="") if line[:1] in "-+"][2:]


def read(file: Path) -> dict[str, dict[str, Any]]:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", default=["*"], help="faults whose name is like one of these: 'retcon.select.*'"
    )
    parser.add_argument("--sample", type=int, help="so many of them, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600.0, help="of tests for each fault")
    parser.add_argument("--children", type=int, default=max(1, len(os.sched_getaffinity(0)) // 2))
    options = parser.parse_args()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]
    COPY.mkdir(parents=True, exist_ok=True)
    shutil.copy2(ROOT / "pyproject.toml", COPY)
    made = copy_tree(settings["only_mutate"], options.children)
    faults = {fault: digest for file in made.values() for fault, digest in file["faults"].items()}
    chosen = [name for name in sorted(faults) if any(fnmatch(name, pattern) for pattern in options.only)]
    if options.sample is not None and options.sample < len(chosen):
        chosen = sorted(random.Random(options.seed).sample(chosen, options.sample))
    plan = {
        "faults": {name: faults[name] for name in chosen},
        "seconds": options.seconds,
        "children": options.children,
    }
    (COPY / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-p", "mutation.trying", *settings["pytest_add_cli_args"]]
    words.append("--tb=native")  # pytest's own parses the whole of a file with all its faults: seconds for each failure
    paths = os.pathsep.join(str(COPY / room) for room in ("src", "tests"))
    with (COPY / "pytest.log").open("wb") as log:
        code = subprocess.run(
            [*words, *settings["pytest_add_cli_args_test_selection"]],
            cwd=COPY,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
            check=False,
            stdout=log,
        ).returncode
    ends = read(COPY / "ends.json")
    if code != 0 or any(name not in ends for name in chosen):
        print(f"faults were left untried: {COPY / 'pytest.log'} says why", file=sys.stderr)
        return 2
    files = {fault: name for name, file in made.items() for fault in file["faults"]}
    for name in chosen:
        if ends[name]["end"] in UNNOTICED:
            print(f"{name}: {ends[name]['end']}", *difference(name, files[name]), sep="\n")
    counts = Counter(ends[name]["end"] for name in chosen)
    print(f"{len(chosen)} of {len(faults)} faults:", ", ".join(f"{n} {end}" for end, n in counts.items()))
    return int(any(ends[name]["end"] in UNNOTICED for name in chosen))


if __name__ == "__main__":
    sys.exit(main())
