#!/usr/bin/env python
r"""Record a workload: of a run's rollouts, or of transcripts, the lengths and seconds alone.

    python benchmarks/studies/record.py runs/quickstart/saar/seed-1 --out benchmarks/workloads/quickstart.jsonl
    python benchmarks/studies/record.py TRANSCRIPTS.jsonl… --characters 12 --window 640 \
        --out benchmarks/workloads/agents.jsonl

A run's folder: whole groups of the rollouts that it kept, drawn at random; lengths in its model's ids, seconds of its
tools: of a run with `sandbox.reuse=false`, as a program that is answered from memory takes none. Attempts that a repair
took out are not in it.

Transcripts, in any format that `retcon purify` reads: as many with 2 calls as with 3, 4, 5 and 6, drawn at random;
`--characters` of text count as one id; what is longer than `--window` ids in all is left out. Transcripts tell no
seconds: each one's programs run in a session of the sandbox here, 3 s at most. Those whose prompts are of about the
same length form a group, and get the prompt of the group's first.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import random
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path

import msgspec

from retcon.core.errors import RecordError
from retcon.core.types import Segment, Trajectory
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Limits
from retcon.store import jsonl
from retcon.store.records import open_source
from retcon.transcripts.detector import Detector

GROUP = 8
CALLS = range(2, 7)
Line = dict[str, object]


def of_run(folder: Path, rollouts: int, draw: random.Random) -> list[Line]:
    """Whole groups of a run: rollouts of the same task in the same step."""
    groups = []
    for file in sorted((folder / "trajectories").glob("step-*.jsonl*")):
        found = sorted((t for t in jsonl.read(file) if t.stop != "infrastructure"), key=lambda t: t.task)
        members = [list(group) for _, group in groupby(found, key=lambda t: t.task)]
        groups += [group for group in members if len(group) >= GROUP]
    if len(groups) * GROUP < rollouts:
        raise SystemExit(f"{folder} has {len(groups)} groups of {GROUP} rollouts, {rollouts // GROUP} are asked for")
    lines: list[Line] = []
    for number, group in enumerate(draw.sample(groups, rollouts // GROUP)):
        for trajectory in group[:GROUP]:
            seconds = [sum(o.seconds for o in turn.observations) for turn in trajectory.turns]
            lines.append(line(trajectory, number, seconds, 0))
    return lines


async def of_transcripts(
    files: Sequence[Path], rollouts: int, draw: random.Random, characters: int, window: int
) -> list[Line]:
    """Group other agents' transcripts by prompt length."""
    found = [t for file in files for t in transcripts(file) if len(t.text) <= window * characters]
    chosen: list[Trajectory] = []
    for calls in CALLS:
        these, wanted = [t for t in found if t.calls == calls], rollouts * (calls - 1) // len(CALLS) - len(chosen)
        if len(these) < wanted:
            raise SystemExit(f"{len(these)} transcripts have {calls} calls, {wanted} are asked for")
        chosen += draw.sample(these, wanted)
    chosen.sort(key=lambda t: sum(len(s.text) for s in t.prompt))
    groups = [chosen[at : at + GROUP] for at in range(0, rollouts, GROUP)]
    draw.shuffle(groups)  # any first ones are a mixture
    lines: list[Line] = []
    async with SandboxPool(workers=1, limits=Limits(wall_seconds=3)) as sandbox:
        for index, trajectory in enumerate(chain.from_iterable(groups)):
            session = await sandbox.session()
            seconds = [
                sum([(await session.run(call.code)).seconds for call in turn.calls]) for turn in trajectory.turns
            ]
            await session.close()
            lines.append(line(trajectory, index // GROUP, seconds, characters))
            if index % GROUP:
                lines[-1]["prompt"] = lines[-2]["prompt"]
    return lines


def transcripts(file: Path) -> Iterator[Trajectory]:
    detector = Detector()
    for record in open_source(file).records:
        value = msgspec.json.decode(record.data)
        found = detector.format_of(value)
        if found is not None:
            yield from found.read(value, record.where).trajectories


def line(trajectory: Trajectory, group: int, seconds: Sequence[float], characters: int) -> Line:
    def size(segments: Sequence[Segment]) -> int:
        if characters:
            return round(sum(len(s.text) for s in segments) / characters)
        return sum(len(s.ids or ()) for s in segments)

    turns = []
    for turn, took in zip(trajectory.turns, seconds, strict=True):
        sampled = size(turn.generated)
        shown = max(size(turn.segments) - sampled, len(turn.calls))  # a short text is no id by its characters
        turns.append((max(1, sampled), shown, round(took, 4)))
    return {"group": group, "prompt": max(1, size(trajectory.prompt)), "turns": turns}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="+", help="a run's folder, or files of transcripts")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--characters", type=int, default=4, help="of a transcript that count as one id")
    parser.add_argument("--window", type=int, default=1024, help="ids of a transcript at most")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    try:
        if options.source[0].is_dir():
            lines = of_run(options.source[0], options.rollouts, draw)
            source = "rollouts of a training run of the quickstart's recipe; lengths in ids"
        else:
            lines = asyncio.run(
                of_transcripts(options.source, options.rollouts, draw, options.characters, options.window)
            )
            names = ", ".join(sorted(file.name.split(".jsonl")[0] for file in options.source))
            source = f"{names}: as many with 2 calls as with 3, 4, 5, 6; {options.characters} characters as one id"
    except RecordError as error:
        sys.exit(f"error: {error}")
    head = {"source": source, "recorded": str(datetime.date.today())}
    options.out.write_text("".join(json.dumps(one) + "\n" for one in (head, *lines)), encoding="utf-8")
    print(f"{len(lines)} rollouts: {options.out}")


if __name__ == "__main__":
    main()
