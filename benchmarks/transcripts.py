#!/usr/bin/env python
"""What `retcon purify` finds in real transcripts: every figure that docs/purify.md gives about them.

python benchmarks/transcripts.py --data DIR

DIR has a folder a source (mint, mathcoder, …) with files of transcripts. Counts, the same in every run, and the CPU
time of all. After the calls that failed comes how many of them did with one of the four exceptions that the description
of the data names (it counts about 27 % of MINT's calls as failed, and 9 % of MathCoder's).
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from retcon.core.types import Trajectory
from retcon.purify.offline import Offline
from retcon.store.records import open_source
from retcon.transcripts.detect import Detector
from retcon.transcripts.report import Count, total
from retcon.transcripts.run import Purifier, Sinks

NAMED = {
    "mint": ("AssertionError", "NameError", "SyntaxError", "TypeError"),
    "mathcoder": ("NameError", "TypeError", "IndexError", "AttributeError"),
}
WIDTHS = (52, 12, 7, 7, 8, 6, 8, 7)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    folder: Path = parser.parse_args().data
    sources = {path.name: sorted(path.iterdir()) for path in sorted(folder.iterdir()) if path.is_dir()}
    if not sources:
        raise SystemExit(f"{folder}: no folders of transcripts")
    row("file", "transcripts", "calls", "failed", "shallow", "deep", "removed", "saved")
    begun = time.process_time()
    counts = {name: [purified(path) for path in paths] for name, paths in sources.items()}
    whole = total([total(found) for found in counts.values()])
    took = time.process_time() - begun
    row("all", *figures(whole))
    print(f"{whole.bytes_before / 1e6:.1f} MB, {took:.1f} s of CPU time")
    for name, found in counts.items():
        print(f"\n{name}")
        tell(total(found), NAMED.get(name))
    print("\nall")
    tell(whole, None)
    if "mint" in sources:
        print("\nmint, messages that begin with 'Observation:'")
        pairs(observations(sources["mint"]))
    for path in sources.get("mathcoder", ()):
        print(f"\n{path.name}, calls that failed")
        pairs(failures(path))


def purified(path: Path) -> Count:
    count = Count()
    purifier = Purifier(Offline(), "auto", Sinks(), count)
    for record in open_source(path).records:
        purifier(record)
    row(path.name, *figures(count))
    return count


def figures(count: Count) -> Sequence[object]:
    saved = 1 - count.bytes_after / count.bytes_before
    numbers = (count.transcripts, count.calls, count.failed, count.shallow, count.deep, count.attempts_removed)
    return (*numbers, f"{saved:.1%}")


def row(*cells: object) -> None:
    print(
        " ".join(f"{cell!s:{'<' if n == 0 else '>'}{w}}" for n, (cell, w) in enumerate(zip(cells, WIDTHS, strict=True)))
    )


def tell(count: Count, named: Sequence[str] | None) -> None:
    print(f"  transcripts {count.transcripts}, {count.without_calls} without calls, {count.changed} changed")
    print(f"  calls {count.calls}, failed {count.failed} ({share(count.failed, count.calls)})")
    if named:
        some = sum(count.types[name] for name in named)
        print(f"  {', '.join(named)}: {some} ({share(some, count.calls)})")
    print(f"  shallow {count.shallow}, deep {count.deep}, failed turns taken out {count.attempts_removed}")
    for title, counter in (("by rule", count.rules), ("by type", count.types), ("left alone", count.left)):
        print(f"  {title}: {', '.join(f'{name} {n}' for name, n in counter.most_common())}")
    print(f"  left alone in all: {count.left.total()}")


def share(part: int, of: int) -> str:
    return f"{part / of:.1%}" if of else "none"


def pairs(counter: Mapping[str, int]) -> None:
    for name, number in counter.items():
        print(f"  {name}: {number}")


def observations(paths: Sequence[Path]) -> Counter[str]:
    """How many messages of MINT's begin with "Observation:", and how many of them are no output of a program."""
    counter: Counter[str] = Counter()
    for path in paths:
        for record in open_source(path).records:
            items = msgspec.json.decode(record.data)["state"]["history"]
            texts = [item["content"] for item in items if item["role"] == "user"]
            counter["in all"] += sum(text.startswith("Observation:") for text in texts)
        for trajectory in trajectories(path):
            counter["outputs of programs"] += sum(len(turn.observations) for turn in trajectory.turns)
    counter["no output of a program"] = counter["in all"] - counter["outputs of programs"]
    return counter


def failures(path: Path) -> Counter[str]:
    """What the outputs of MathCoder's failed calls are, and what speaks for and against counting them."""
    counter: Counter[str] = Counter()
    for trajectory in trajectories(path):
        seen: set[tuple[str, str]] = set()
        for turn in trajectory.turns:
            for call, observation in zip(turn.calls, turn.observations, strict=True):
                before = (call.code, observation.text) in seen
                seen.add((call.code, observation.text))
                if observation.status == "ok":
                    words = re.search("Traceback|Error|Warning|imeout|imed out", observation.text)
                    counter["calls that worked, with such a word in the output"] += words is not None
                    continue
                counter["in all"] += 1
                counter["a traceback's heading"] += "Traceback (most recent call last)" in observation.text
                counter["else a SyntaxError's caret"] += observation.extra["rule"] == "syntax"
                counter["a kernel that no longer answers"] += observation.error_type == "Timeout"
                counter["the same call and output earlier in the transcript"] += before
                counter["`except` in the program"] += "except" in call.code
                counter["`print_exc` or the like in the program"] += "traceback" in call.code.lower()
        failed = sum(o.status != "ok" for turn in trajectory.turns for o in turn.observations)
        counter["transcripts with a failure"] += failed > 0
        counter["in transcripts with 5 failures or more"] += failed if failed >= 5 else 0
    return counter


def trajectories(path: Path) -> Iterator[Trajectory]:
    detector = Detector()
    for record in open_source(path).records:
        value = msgspec.json.decode(record.data)
        found = detector.format_of(value)
        if found is not None:
            yield from found.read(value, str(record.number)).trajectories


if __name__ == "__main__":
    main()
