#!/usr/bin/env python
"""Speed of `retcon purify`, against reading and writing the same JSON.

python benchmarks/purify.py [--megabytes N] [--rounds N] [--format NAME] [--json FILE]
python benchmarks/purify.py --growth
python benchmarks/purify.py --file FILE [--against PYTHON] [--rounds N]

The file is made in a temporary folder: transcripts of 3 to 8 calls, programs of .2 to 2 kB, outputs of 50 to 2,000
characters, half of them numbers and half words, of which one in ten mentions an error by name. *Mixed*: one transcript
in ten has a call that fails, with the traceback as its output, and right after it its fix. Floor: each line decoded
and encoded by msgspec, written as `retcon purify` writes, to the disk and then renamed. CPU time of this process, the
two interleaved; the least of all rounds each, as other work on the machine only adds to it.

--file: this file alone, without a floor, by the command `retcon purify`, its start subtracted; --against: with the
build of another environment too, the two in turns, and how many times as fast this one is.

--growth: one transcript that fails often, longer in each row: turns (each second one fails, and is fixed by the next),
calls of which one in five fails, 10 to 10,000, and an output and a program of nothing but line breaks. Seconds of CPU
time, and how many times the row before.
With --json it is measured as well.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import NamedTuple

import msgspec
from parts.results import add_json, save

from retcon.purify.offline import Repairer
from retcon.store.lines import PartialFile
from retcon.store.records import Record
from retcon.transcripts.purification import Assignment, FileJob
from retcon.transcripts.purifier import Count, RecordRepairer, Sinks

WORDS = ("the", "of", "matrix", "value", "root", "solve", "prime", "sum", "over", "each", "index", "result", "check")


def prose(draw: random.Random, size: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(size // 5))


def program(draw: random.Random) -> str:
    lines = [
        f"{draw.choice(WORDS)}_{n} = {draw.choice(WORDS)}({n}, '{draw.choice(WORDS)}')"
        for n in range(draw.randrange(6, 60))
    ]
    return "\n".join(["import math", *lines, f"print({lines[-1].split()[0]})"])


def output(draw: random.Random) -> str:
    if draw.random() < 0.5:
        text = "\n".join(str(draw.random()) for _ in range(draw.randrange(3, 110)))
    else:
        text = "\n".join(prose(draw, 60).title() for _ in range(draw.randrange(1, 30)))
    return text + "\nmean absolute Error: 0.25 after 3 steps" if draw.random() < 0.1 else text


class Step(NamedTuple):
    lead: str
    code: str
    seen: str


def steps(draw: random.Random, fails: bool) -> list[Step]:
    """The calls of a transcript; with `fails` the second one fails at its last line, and the third one is its fix."""
    found = [Step(prose(draw, 300), program(draw), output(draw)) for _ in range(draw.randrange(3, 9))]
    if fails:
        lead, code, _ = found[1]
        wrong = code.replace("print(", "print(math.")
        line = wrong.count("\n") + 1
        seen = f'Traceback (most recent call last):\n  File "<cell>", line {line}, in <module>\nAttributeError: no'
        found.insert(1, Step(prose(draw, 300), wrong, seen))
        found[2] = Step("I apologize, that name was wrong. " + lead, code, found[2].seen)
    return found


def messages(draw: random.Random, number: int, fails: bool) -> dict[str, object]:
    messages: list[dict[str, object]] = [{"role": "user", "content": prose(draw, 400)}]
    for n, step in enumerate(steps(draw, fails)):
        call = {
            "id": f"c{n}",
            "type": "function",
            "function": {"name": "python", "arguments": json.dumps({"code": step.code})},
        }
        messages.append({"role": "assistant", "content": step.lead, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{n}", "content": step.seen})
    return {"id": number, "messages": [*messages, {"role": "assistant", "content": prose(draw, 200)}]}


def hermes(draw: random.Random, number: int, fails: bool) -> dict[str, object]:
    messages: list[dict[str, object]] = [{"role": "user", "content": prose(draw, 400)}]
    for step in steps(draw, fails):
        call = json.dumps({"name": "python", "arguments": {"code": step.code}})
        messages.append({"role": "assistant", "content": f"{step.lead}\n<tool_call>\n{call}\n</tool_call>"})
        messages.append({"role": "user", "content": f"<tool_response>\n{step.seen}\n</tool_response>"})
    return {"id": number, "messages": [*messages, {"role": "assistant", "content": prose(draw, 200)}]}


def markdown(draw: random.Random, number: int, fails: bool) -> dict[str, object]:
    text = ""
    for step in steps(draw, fails):
        text += f"{step.lead}\n```python\n{step.code}\n```\n```output\n{step.seen}\n```\n"
    text += prose(draw, 300)
    return {"id": number, "question": prose(draw, 400), "completion": text}


def sharegpt(draw: random.Random, number: int, fails: bool) -> dict[str, object]:
    messages = [{"from": "human", "value": prose(draw, 400)}]
    for step in steps(draw, fails):
        call = json.dumps({"name": "python", "arguments": {"code": step.code}})
        messages.append({"from": "function_call", "value": call})
        messages.append({"from": "observation", "value": step.seen})
    return {"id": number, "conversations": [*messages, {"from": "gpt", "value": prose(draw, 200)}]}


FORMATS = {"messages": messages, "hermes": hermes, "markdown": markdown, "sharegpt": sharegpt}


def floor(source: Path, out: Path) -> None:
    written = PartialFile(out)
    with source.open("rb", buffering=1 << 20) as read:
        for line in read:
            written.out.write(msgspec.json.encode(msgspec.json.decode(line)) + b"\n")
    written.commit()


def ours(source: Path, out: Path) -> None:
    assignment = Assignment([source], out, False, [source.name], Repairer(), audit=out.with_suffix(".audit"))
    FileJob(assignment)(lambda *_: None, lambda: False)


def cpu(work: Callable[[Path, Path], None], source: Path, out: Path) -> float:
    begun = time.process_time()
    work(source, out)
    return time.process_time() - begun


def failing(turns: int, every: int = 2) -> bytes:
    """A transcript in which each so many-th call fails; its fix is the next, whose words apologise."""
    messages: list[dict[str, object]] = [{"role": "user", "content": "Add them up."}]
    for n in range(turns):
        failed, fixed = n % every == 0, n % every == 1
        root, at = "sqroot" if failed else "sqrt", n - fixed
        code = f"import math\nside_{at} = {n}\narea_{at} = math.{root}({at})\nprint(area_{at})"
        lead = f"Sorry, an error. Now let me work out area number {at}." if fixed else f"Area number {at} is next."
        seen = (
            f'Traceback (most recent call last):\n  File "<cell>", line 3, in <module>\nAttributeError: sqroot {n}'
            if failed
            else str(n)
        )
        messages.append({"role": "assistant", "content": f"{lead}\n```python\n{code}\n```"})
        messages.append({"role": "tool", "content": seen})
    return msgspec.json.encode({"messages": [*messages, {"role": "assistant", "content": "All areas are done."}]})


def make_breaks(lines: int) -> bytes:
    """Make a transcript whose failing program and output are mostly line breaks."""
    text = "\n" * lines
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": f"```python\nx = (\n{text}\nprint(x)\n```"},
        {"role": "tool", "content": f"{text}x\n{text}  File a.py, line 1\n{text}SyntaxError: no"},
        {"role": "assistant", "content": f"```python\nx = 1\n{text}\nprint(x)\n```"},
        {"role": "tool", "content": "1"},
    ]
    return msgspec.json.encode({"messages": messages})


def growth() -> dict[str, dict[str, float]]:
    """Prints what it finds; seconds of CPU time by what grows and how large it is."""
    found: dict[str, dict[str, float]] = {}
    for name, make, sizes in (
        ("turns", failing, (200, 400, 800, 1600)),
        ("calls, one in five failing", lambda calls: failing(calls, 5), (10, 100, 1_000, 10_000)),
        ("line breaks", make_breaks, (10_000, 20_000, 40_000, 80_000)),
    ):
        before = 0.0
        for size in sizes:
            data = make(size)
            begun = time.process_time()
            RecordRepairer(Repairer(), "auto", Sinks(), Count())(Record(data, 1, "f.jsonl"))
            took = time.process_time() - begun
            print(f"{size:>7} {name}: {took:.2f} s" + (f", {took / before:.1f} times" if before else ""))
            before = found.setdefault(name, {})[str(size)] = took
    return found


def compared(name: str, megabytes: int, rounds: int, *, every: int | None) -> dict[str, float]:
    """One format's speeds. every: each so many-th transcript has a failure, None: none has."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "in.jsonl", Path(folder) / "out.jsonl"
        draw = random.Random(0)
        made = (FORMATS[name](draw, n, every is not None and n % every == 0) for n in range(200))
        lines = [json.dumps(one).encode() + b"\n" for one in made]
        with source.open("wb") as file:
            while file.tell() < megabytes * 1e6:
                file.writelines(lines)
        size = source.stat().st_size / 1e6
        times: dict[Callable[[Path, Path], None], list[float]] = {floor: [], ours: []}
        for n in range(rounds):
            # What the disk has still to write of the one is felt by the next: each goes first in turn.
            for work in (floor, ours) if n % 2 else (ours, floor):
                times[work].append(cpu(work, source, out))
        ours(source, out)
        if (source.read_bytes() == out.read_bytes()) is not (every is None):
            raise SystemExit(f"{name}: the transcripts are not {'clean' if every is None else 'repaired'}")
    least, own = min(times[floor]), min(times[ours])
    print(
        f"{name:>9}{'' if every is None else ', mixed'}: {size:.0f} MB; read and write {size / least:.0f} MB/s, purify "
        f"{size / own:.0f} MB/s of CPU time: {own / least:.2f} times the floor",
        flush=True,
    )
    return {"floor MB/s": size / least, "MB/s": size / own, "times": own / least}


def measure_file(source: Path, python: str) -> float:
    """Measure the CPU seconds that another environment's build takes for a file. Those for its first line alone are
    subtracted."""
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "first.jsonl"
        with source.open("rb") as file:
            first.write_bytes(file.readline())
        return spent(source, python, folder) - spent(first, python, folder)


def spent(source: Path, python: str, folder: str) -> float:
    """Seconds of CPU time of `retcon purify`, start and audit included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [python, "-m", "retcon", "purify", str(source), "-o", f"{folder}/out.jsonl", "--force"]
    subprocess.run(words, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def in_turns(source: Path, against: str | None, rounds: int) -> None:
    """Prints the speeds of one file, and the ratio of two builds."""
    builds = [sys.executable, *([against] if against else [])]
    times: dict[str, list[float]] = {python: [] for python in builds}
    for n in range(rounds):
        for python in builds if n % 2 else reversed(builds):
            times[python].append(measure_file(source, python))
    size = source.stat().st_size / 1e6
    for python, own in times.items():
        print(f"{size / min(own):.2f} MB per second of CPU time (least of {rounds}): {python}")
    if against:
        print(f"{min(times[against]) / min(times[sys.executable]):.2f} times as fast")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--format", choices=tuple(FORMATS))
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--against", metavar="PYTHON", help="the interpreter of another build's environment")
    add_json(parser)
    arguments = parser.parse_args()
    if arguments.growth:
        growth()
        return
    if arguments.file:
        in_turns(arguments.file, arguments.against, arguments.rounds)
        return
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(": ")[2] if models else platform.machine()
    print(
        f"{date.today()}  {model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"Python {platform.python_version()}"
    )
    names = [arguments.format] if arguments.format else list(FORMATS)
    clean = {name: compared(name, arguments.megabytes, arguments.rounds, every=None) for name in names}
    mixed = {name: compared(name, max(1, arguments.megabytes // 10), arguments.rounds, every=10) for name in names}
    if arguments.json is not None:
        speeds, ratios = ([of[key] for of in clean.values()] for key in ("MB/s", "times"))
        found = {
            "MB/s": {"least": min(speeds), "most": max(speeds)},
            "times reading and writing": {"least": min(ratios), "most": max(ratios)},
            "clean": clean,
            "mixed": mixed,
            "growth": growth(),
        }
        command = f"benchmarks/purify.py --megabytes {arguments.megabytes} --rounds {arguments.rounds}"
        measures = [f"src/retcon/{room}" for room in ("transcripts", "purify", "store")]
        save(arguments.json, found, command=command, measures=measures)


if __name__ == "__main__":
    main()
