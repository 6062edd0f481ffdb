#!/usr/bin/env python
"""What `retcon purify` finds in real transcripts: every figure that docs/purify/transcripts.md gives about them.

python benchmarks/studies/transcripts.py --data DIR [--json FILE] [--unpaired]
python benchmarks/studies/transcripts.py --data DIR --sample N [--seed S] [--kind shallow|deep] [--but FILE …]
python benchmarks/studies/transcripts.py --data DIR --verdicts benchmarks/results/repairs/first.tsv
python benchmarks/studies/transcripts.py --data DIR --sources [--json FILE]
python benchmarks/studies/transcripts.py --data DIR --calls N [--seed S]

DIR has a folder a source (mint, mathcoder, …) with files of transcripts. Counts, the same in every run, and the CPU
time of all. After the calls that failed comes how many of them did with one of the four exceptions that the description
of the data names (it counts about 27 % of MINT's calls as failed, and 9 % of MathCoder's). At last, of the failures
whose very next call works, how many were repaired, and why the others were not, by source; each of these on a line of
its own with --unpaired. --json keeps all that docs/purify/transcripts.md shows, with the verdicts of
benchmarks/results.

--sample prints repairs to read by hand, drawn with a fixed seed: what failed, its fix, what stays, what was cut, and
what follows; --but leaves out those that a file of verdicts has. --verdicts takes verdicts on such a sample (ids alone,
no text) and says how many of them are right, and whether each of the repairs that they are about is still made.
--gamma, --attempts and --state are those of `retcon purify`.

--sources counts by folder: files, records, calls, failures, repairs, and what of the calls and repairs that were read
by hand was right (benchmarks/results/calls.tsv and repairs/sources.tsv). Each file has to be one of
benchmarks/results/sources.tsv, which names repository, commit and path of each, by its SHA-256. --calls prints N calls
that are called failures and N that are called successes, evenly over the folders, each folder's by a hash of seed and
place.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import pairwise, zip_longest
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from retcon.core.errors import RecordError
from retcon.core.types import Observation, Trajectory
from retcon.purify.failing import failed
from retcon.purify.offline import Repairer, RepairResult, Splice
from retcon.store.records import open_source
from retcon.transcripts.detector import sample_records
from retcon.transcripts.items import decode
from retcon.transcripts.purifier import Count, RecordRepairer, Sinks, total

sys.path.append(str(Path(__file__).parents[1]))  # where `parts` is
from parts.results import RESULTS, add_json, save

NAMED = {
    "mint": ("AssertionError", "NameError", "SyntaxError", "TypeError"),
    "mathcoder": ("NameError", "TypeError", "IndexError", "AttributeError"),
}
REPAIRED = "repaired"
VERDICTS = ("right", "weak", "wrong")
MEASURES = ["src/retcon/purify", "src/retcon/transcripts"]
SOURCES, CALLS, READ = RESULTS / "sources.tsv", RESULTS / "calls.tsv", RESULTS / "repairs" / "sources.tsv"
WIDTHS = (52, 12, 7, 7, 8, 6, 8, 7)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--unpaired", action="store_true")
    parser.add_argument("--sample", type=int, metavar="N", help="print N repairs to read")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=("shallow", "deep"))
    parser.add_argument("--but", type=Path, nargs="+", default=[], metavar="FILE", help="verdicts on what is left out")
    parser.add_argument("--verdicts", type=Path, metavar="FILE")
    parser.add_argument("--sources", action="store_true", help="count by folder, with what was read by hand")
    parser.add_argument("--calls", type=int, metavar="N", help="print N failures and N successes to read")
    parser.add_argument("--gamma", type=float, default=0.5)
    parser.add_argument("--attempts", type=int, default=3)
    parser.add_argument("--state", choices=("check", "ignore"), default="check")
    add_json(parser)
    arguments = parser.parse_args()
    offline = Repairer(arguments.attempts, arguments.gamma, arguments.state)
    folder: Path = arguments.data
    sources = {path.name: sorted(path.iterdir()) for path in sorted(folder.iterdir()) if path.is_dir()}
    if not sources:
        raise SystemExit(f"{folder}: no folders of transcripts")
    paths = [path for own in sources.values() for path in own]
    if arguments.verdicts is not None:
        judged(arguments.verdicts, repairs(paths, offline))
        return
    if arguments.calls is not None:
        every = list(calls(sources))
        for failed_ones in (True, False):
            for n, call in enumerate(
                drawn([c for c in every if c.failed is failed_ones], arguments.calls, arguments.seed)
            ):
                show_call(n, call)
        return
    if arguments.sources:
        table = by_source(sources, offline)
        for cells in (table["head"], *table["rows"]):
            print("\t".join(cells))
        if arguments.json is not None:
            command = "benchmarks/studies/transcripts.py --data DIR --sources"
            save(arguments.json, {"sources": table, "calls": judged_calls()}, command=command, measures=MEASURES)
        return
    if arguments.sample is not None:
        known = {one.key for file in arguments.but for one in read_verdicts(file)}
        fresh = [one for one in repairs(paths, offline) if arguments.kind in (None, one.kind) and one.key not in known]
        for repair in sample(fresh, arguments.sample, arguments.seed):
            show(repair)
        return
    row("file", "transcripts", "calls", "failed", "shallow", "deep", "removed", "saved")
    begun = time.process_time()
    counts = {name: [purified(path, offline) for path in paths] for name, paths in sources.items()}
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
    print("\nfailures whose very next call works, by what became of them")
    cases = {name: list(immediate(own, offline)) for name, own in sources.items()}
    became = {name: Counter(one.reason for one in own) for name, own in cases.items() if own}
    became["all"] = sum(became.values(), Counter())
    print(" " * 14 + "".join(f"{name:>18}" for name in became))
    print(f"  {'in all':12}" + "".join(f"{counter.total():18}" for counter in became.values()))
    for reason, _ in became["all"].most_common():
        print(f"  {reason:12}" + "".join(f"{counter[reason]:18}" for counter in became.values()))
    if arguments.unpaired:
        for one in (one for own in cases.values() for one in own if one.reason != REPAIRED):
            print("\t".join((one.source, str(one.turn), one.reason, " ".join(one.detail.split()))))
    if arguments.json is not None:
        kept: dict[str, object] = {
            "sources": counted(sources, counts, whole),
            "rules": dict(whole.rules.most_common()),
            "left": dict(whole.left.most_common()),
            "failed": whole.failed,
            "left alone": whole.left.total(),
            "immediate": by_reason(became),
            "paired, %": 100 * became["all"][REPAIRED] / became["all"].total(),
            "verdicts": verdicts(),
            "MB": whole.bytes_before / 1e6,
            "CPU s": took,
        }
        save(arguments.json, kept, command="benchmarks/studies/transcripts.py --data DIR", measures=MEASURES)


def counted(
    sources: Mapping[str, Sequence[Path]], counts: Mapping[str, Sequence[Count]], whole: Count
) -> dict[str, object]:
    """A row for each file, as a table of texts."""
    head = ["", "transcripts", "calls", "failed", "shallow", "deep", "turns taken out", "bytes saved"]
    of_files = [(path, one) for name, own in sources.items() for path, one in zip(own, counts[name], strict=True)]
    rows = [[name_of(path), *map(formatted, figures(one))] for path, one in of_files]
    return {"head": head, "rows": [*rows, ["all", *map(formatted, figures(whole))]]}


def by_reason(became: Mapping[str, Counter[str]]) -> dict[str, object]:
    """What became of failures whose next call works: a row for each reason, a column for each source."""
    rows = [["in all", *(f"{counter.total():,}" for counter in became.values())]]
    for reason, _ in became["all"].most_common():
        name = reason if reason == REPAIRED else f"`{reason}`"
        rows.append([name, *(f"{counter[reason]:,}" if counter[reason] else "" for counter in became.values())])
    return {"head": ["", *became], "rows": rows}


def purified(path: Path, offline: Repairer) -> Count:
    count = counted_in(path, offline)
    row(path.name, *figures(count))
    return count


def counted_in(path: Path, offline: Repairer) -> Count:
    """What `retcon purify` counts in a file; of one that it refuses, nothing."""
    count = Count()
    with suppress(RecordError):
        first = sample_records(open_source(path), "auto")
        purifier = RecordRepairer(offline, first.detector, Sinks(), count, values=first.values)
        for record in first.source.records:
            purifier(record)
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
    """Count MINT's "Observation:" messages by whether they are program output."""
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
    """Count MathCoder's failed calls by output and by signs of failure."""
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
                counter["else a SyntaxError's caret"] += observation.rule == "syntax"
                counter["a kernel that no longer answers"] += observation.error_type == "Timeout"
                counter["the same call and output earlier in the transcript"] += before
                counter["`except` in the program"] += "except" in call.code
                counter["`print_exc` or the like in the program"] += "traceback" in call.code.lower()
        failed = sum(o.status != "ok" for turn in trajectory.turns for o in turn.observations)
        counter["transcripts with a failure"] += failed > 0
        counter["in transcripts with 5 failures or more"] += failed if failed >= 5 else 0
    return counter


class Repair(NamedTuple):
    """A repair of a sample. source: file and record, as an audit names it."""

    source: str
    splice: Splice
    raw: Trajectory
    result: RepairResult

    @property
    def kind(self) -> str:
        return "shallow" if self.splice.shallow else "deep"

    @property
    def key(self) -> tuple[str, int]:
        return self.source, self.splice.failure


def repairs(paths: Sequence[Path], offline: Repairer) -> Iterator[Repair]:
    for path in paths:
        for raw in trajectories(path):
            result = offline(raw)
            yield from (Repair(f"{path.name}:{raw.id}", splice, raw, result) for splice in result.splices)


def sample(found: Sequence[Repair], size: int, seed: int) -> Sequence[Repair]:
    """Drawn by a hash of source and turn: where the rules change, what is still repaired stays in the sample."""
    return sorted(found, key=lambda one: sha256(f"{seed} {one.key}".encode()).digest())[:size]


def show(repair: Repair) -> None:
    splice, turns = repair.splice, repair.raw.turns
    print(f"\n{'=' * 80}\n{repair.source}\tturn {splice.failure}\t{repair.kind}")
    for n in range(splice.failure, splice.fix + 1):
        print(f"--- raw turn {n}\n{turns[n].text.strip()[:2000]}")
        for observation in turns[n].observations:
            plain = re.sub(r"\x1b\[[0-9;]*m", "", observation.text).strip()
            print(f"    >> {observation.status}: {plain[-160:] if observation.status != 'ok' else plain[:160]}")
    removed = sum(s.fix - s.failure for s in repair.result.splices if s.failure < splice.failure)
    at = splice.failure - removed
    for n, turn in enumerate(repair.result.trajectory.turns[at : at + 4]):
        print(f"+++ {'what stays' if n == 0 else f'{n} later'}\n{turn.text.strip()[: 2000 if n == 0 else 700]}")
        if turn.repair is not None and n == 0:
            for cut in turn.repair.cut:
                print(f"    cut from raw turn {cut.turn} ({cut.rule}): {cut.text}")


class Verdict(NamedTuple):
    """A line of a file of verdicts. verdict: right, weak or wrong."""

    source: str
    turn: int
    kind: str
    verdict: str

    @property
    def key(self) -> tuple[str, int]:
        return self.source, self.turn


def read_verdicts(path: Path) -> Iterator[Verdict]:
    """Source, turn, decision, verdict, reason; tab between."""
    for line in path.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            source, turn, kind, verdict, _ = line.split("\t")
            yield Verdict(source, int(turn), kind, verdict)


def judged(path: Path, found: Iterable[Repair]) -> None:
    """Count a file's verdicts by whether their repair is still made."""
    made = {repair.key: repair for repair in found}
    counts: Counter[tuple[str, str, str]] = Counter()
    for one in read_verdicts(path):
        now = made.get(one.key)
        counts[one.kind, one.verdict, "made" if now is not None and now.kind == one.kind else "not made now"] += 1
    for (kind, verdict, now), number in sorted(counts.items()):
        print(f"{kind:8} {verdict:6} {now:13} {number}")


class Immediate(NamedTuple):
    """A failure whose very next call works, with no message in between. reason: its outcome."""

    source: str
    turn: int
    reason: str
    detail: str = ""


def immediate(paths: Sequence[Path], offline: Repairer) -> Iterator[Immediate]:
    for path in paths:
        for raw in trajectories(path):
            result = offline(raw)
            taken = {n for splice in result.splices for n in range(splice.failure, splice.fix)}
            left = {one.turn: one for one in result.left}
            for n, (turn, following) in enumerate(pairwise(raw.turns)):
                spoken = any(segment.kind == "prompt" for segment in turn.segments)
                works = bool(following.observations) and all(o.status == "ok" for o in following.observations)
                if failed(turn) and works and not spoken:
                    why = (REPAIRED, "") if n in taken else (left[n].reason, left[n].detail)
                    yield Immediate(f"{path.name}:{raw.id}", n, *why)


def verdicts() -> dict[str, object]:
    """A row for each file of verdicts and decision: how many were read, and how many of them are right."""
    rows = []
    for path in sorted((RESULTS / "repairs").glob("*.tsv")):
        every = list(read_verdicts(path))
        for kind in ("shallow", "deep"):
            own = Counter(one.verdict for one in every if one.kind == kind)
            if own:
                low, high = wilson(own["right"], own.total())
                right = f"{own['right']} ({own['right'] / own.total():.0%}; {low:.0%} to {high:.0%})"
                link = f"[{path.name}](../../benchmarks/results/repairs/{path.name})"
                rows.append([link, f"{own.total()} {kind}", right, str(own["weak"]), str(own["wrong"])])
    return {"head": ["", "read", "right (95 % interval)", "weak", "wrong"], "rows": rows}


def wilson(part: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    z, p = 1.96, part / of
    middle, half = p + z * z / (2 * of), z * sqrt(p * (1 - p) / of + z * z / (4 * of * of))
    return (middle - half) / (1 + z * z / of), (middle + half) / (1 + z * z / of)


def name_of(path: Path) -> str:
    return re.sub(r"(?:\.full)?\.jsonl(?:\.gz)?$", "", path.name)


def formatted(figure: object) -> str:
    return f"{figure:,}" if isinstance(figure, int) else str(figure)


def trajectories(path: Path) -> Iterator[Trajectory]:
    with suppress(RecordError):
        first = sample_records(open_source(path), "auto")
        for record in first.source.records:
            value = first.values.pop(record.number, None) or decode(record)
            found = first.detector.format_of(value)
            if found is not None:
                yield from found.read(value, str(record.number)).trajectories


class SeenCall(NamedTuple):
    """A call that was judged. place: folder, file and record; turn and call count from 0."""

    place: str
    turn: int
    call: int
    tool: str
    arguments: str
    observation: Observation

    @property
    def failed(self) -> bool:
        return self.observation.status not in ("ok", "infrastructure")

    @property
    def key(self) -> str:
        return f"{self.place}\t{self.turn}\t{self.call}"


def calls(sources: Mapping[str, Sequence[Path]]) -> Iterator[SeenCall]:
    for name, paths in sources.items():
        for path in paths:
            for raw in trajectories(path):
                for n, turn in enumerate(raw.turns):
                    for k, (call, seen) in enumerate(zip(turn.calls, turn.observations, strict=False)):
                        given = call.arguments if isinstance(call.arguments, str) else str(dict(call.arguments))
                        yield SeenCall(f"{name}/{path.name}:{raw.id}", n, k, call.name, given, seen)


def drawn(every: Sequence[SeenCall], size: int, seed: int) -> Sequence[SeenCall]:
    """One of each source in turn, until there are enough."""
    ranked = sorted(every, key=lambda one: sha256(f"{seed} {one.key}".encode()).digest())
    waiting: dict[str, list[SeenCall]] = {}
    for call in ranked:
        waiting.setdefault(call.place.partition("/")[0], []).append(call)
    rounds = zip_longest(*(waiting[name] for name in sorted(waiting)))
    return [call for one in rounds for call in one if call is not None][:size]


def show_call(number: int, call: SeenCall) -> None:
    seen = call.observation
    print(
        f"\n=== {number} {'failed' if call.failed else 'worked'}\t{call.key}\t{seen.rule or ''} {seen.error_type or ''}"
    )
    for whole, most in ((f"{call.tool} {call.arguments}", 500), (re.sub(r"\x1b\[[0-9;]*m", "", seen.text), 900)):
        text = whole.strip()
        print(text if len(text) <= most else f"{text[: most // 2]}\n   […]\n{text[-most // 2 :]}")
        print("---")


def judged_calls() -> dict[str, list[int]]:
    """Of the calls that were read, by source: failures right and read, successes right and read; `all` is their sum."""
    found: dict[str, list[int]] = {"all": [0] * 4}
    for line in CALLS.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            place, _, _, called, verdict, *_ = line.split("\t")
            at = 0 if called == "failed" else 2
            for own in (found["all"], found.setdefault(place.partition("/")[0], [0] * 4)):
                own[at] += verdict == "right"
                own[at + 1] += 1
    return found


def by_source(sources: Mapping[str, Sequence[Path]], offline: Repairer) -> dict[str, list[Any]]:
    """A row for each folder. Raises SystemExit for a file that the table of sources does not have."""
    listed = [line.split("\t") for line in SOURCES.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    known = {(name, digest): where for name, _, where, digest in listed}
    read, places = judged_calls(), {file: name for name, file, *_ in listed}
    repaired = Counter((places.get(v.source.rpartition(":")[0], ""), v.verdict) for v in read_verdicts(READ))
    head = ["source", "files", "refused", "records", "unread", "calls", "failed", "failures read: right",
            "successes read: right", "repairs", "repairs read: right, weak, wrong"]  # fmt: skip
    rows: list[list[str]] = []
    every: list[Count] = []
    for name, paths in [*sources.items(), ("all", ())]:
        at = [known.get((name, sha256(path.read_bytes()).hexdigest())) for path in paths]
        if strange := [path for path, one in zip(paths, at, strict=True) if one is None]:
            raise SystemExit(f"{strange[0]}: not in {SOURCES} by its SHA-256")
        counts = [counted_in(path, offline) for path in paths] or every
        every = [*every, *counts]
        whole, (failures, f_read, worked, w_read) = total(counts), read.get(name, [0] * 4)
        refused = sum(not one.transcripts for one in counts)
        judged = [sum(n for (of, v), n in repaired.items() if name in (of, "all") and v == k) for k in VERDICTS]
        numbers = (len(counts), refused, whole.transcripts, whole.unread, whole.calls, whole.failed)
        rows.append([
            str(at[0]).partition("@")[0] if at else name, *map(formatted, numbers),
            f"{failures} of {f_read}" if f_read else "", f"{worked} of {w_read}" if w_read else "",
            formatted(whole.shallow + whole.deep), ", ".join(map(str, judged)) if any(judged) else "",
        ])  # fmt: skip
    return {"head": head, "rows": rows}


if __name__ == "__main__":
    main()
