"""What a comparison found, as files: compare.json, tables, pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from retcon.evaluate.statistics import Interval, Paired
from retcon.report.compared.curves import COMPARED
from retcon.report.compared.figures import SEEDS_OF_A_FINDING, Figure, figures
from retcon.report.compared.reading import ComparedRun
from retcon.report.compared.sheet import Sheet, to_csv
from retcon.report.plots import draw_curves
from retcon.report.tables import cell, number
from retcon.store.whole import write_whole

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Compared:
    """A comparison that is over. name: of the cell that it is. arms: each arm's runs, one a seed; the first is what the
    others are compared with. recipes: of the arms. matched: in words, what is equal in all. faults: share of calls that
    failed in that condition. seconds: wall, of everything."""

    name: str
    arms: dict[str, list[ComparedRun]]
    recipes: dict[str, str]
    matched: str
    faults: float
    seconds: float

    @property
    def seeds(self) -> list[int]:
        return [run.run.seed for run in next(iter(self.arms.values()))]


def write_compared(found: Compared, out: Path) -> list[Sheet]:
    """Writes compare.json, tables as table.md, table.tex and table.csv, and curves as PNG and SVG; the two tables.
    Raises StorageError, MissingExtra without matplotlib."""
    rows = figures(found.arms)
    sheets = [_values(found, rows), _differences(found, rows)]
    write_whole(out / "compare.json", msgspec.json.format(msgspec.json.encode(summary(found, rows)), indent=1) + b"\n")
    write_whole(out / "table.md", "\n".join(sheet.markdown() for sheet in sheets))
    write_whole(out / "table.tex", "\n".join(sheet.latex() for sheet in sheets))
    write_whole(out / "table.csv", to_csv(_long(found, rows)))
    runs = {arm: [one.run for one in runs] for arm, runs in found.arms.items()}
    draw_curves(runs, out, curves=COMPARED, formats=("png", "svg"))
    return sheets


def summary(found: Compared, rows: Sequence[Figure]) -> dict[str, object]:
    """compare.json: one cell, its arms with their figures by name, each {mean, low, high}; under `difference` the same
    of this arm less the first, paired, with what each seed says; and over how many problems each figure is."""
    first = next(iter(found.arms))
    arms = {
        arm: {
            "recipe": found.recipes[arm],
            "seeds": found.seeds,
            **{row.name: row.arms[arm] for row in rows},
            **({"difference": {r.name: _told(r.differences[arm]) for r in rows if arm in r.differences}}
               if arm != first else {}),
        }
        for arm in found.arms
    }  # fmt: skip
    return {
        "format": FORMAT,
        "compared_with": first,
        "matched": found.matched,
        "faults": found.faults,
        "seconds": round(found.seconds, 1),
        "finding": len(found.seeds) >= SEEDS_OF_A_FINDING,
        "note": caveat(len(found.seeds)),
        "cells": [{"name": found.name, "arms": arms}],
        "problems": {row.name: row.problems for row in rows if row.problems},
        "about": {row.name: f"{row.section}: {row.label}" for row in rows},
    }


def caveat(seeds: int) -> str:
    """What so few seeds are worth; empty for enough."""
    if seeds >= SEEDS_OF_A_FINDING:
        return ""
    many = "One seed" if seeds == 1 else f"{seeds} seeds"
    said = "say" if seeds > 1 else "says"
    return f"{many} {said} little about other seeds: this is not a finding. For one, take {SEEDS_OF_A_FINDING} or more."


def partly(rows: Sequence[Figure], label: Callable[[Figure], str]) -> list[str]:
    """A sentence on the figures that some problems are left out of; none where there are none."""
    left = [
        f"{label(row)} {over.counted} of {over.of}" for row in rows if (over := row.problems) and over.counted < over.of
    ]
    return [f"Over the problems that have a value in every run alone: {', '.join(left)}."] if left else []


def _told(one: Paired) -> dict[str, object]:
    """better, worse: problems, where it is a figure of problems."""
    counts = {"better": one.better, "worse": one.worse} if one.better or one.worse else {}
    return {**asdict(one.difference), "by_seed": list(one.by_seed), **counts}


def _values(found: Compared, rows: Sequence[Figure]) -> Sheet:
    cells = [(row, (row.label, *(cell(row.arms[arm], row.digits) for arm in found.arms))) for row in rows]
    seeds = len(found.seeds)
    ranges = "crossed bootstrap over seeds and problems" if seeds > 1 else "bootstrap over problems"
    notes = [
        f"Calls, tokens: of a rollout; T = 1. Ranges: 95 %, {ranges}"
        + (" (curve and training: Student's t over seeds)." if seeds > 1 else "."),
        f"In training: {found.matched}. CPU ms: of a rollout, evaluating.",
    ]
    if found.faults:
        notes.append(f"Faulty tools: {found.faults:.0%} of calls fail with a TimeoutError or a ConnectionError.")
    return Sheet(
        f"{len(found.arms)} arms, {seeds} {'seed' if seeds == 1 else 'seeds'}", ("", *found.arms), _sections(cells),
        (*notes, *partly(rows, lambda row: f"{row.label} ({row.section})"), *_caveats(seeds)),
    )  # fmt: skip


def _differences(found: Compared, rows: Sequence[Figure]) -> Sheet:
    """Of what is better or worse; costs are told in the other table."""
    first, *others = found.arms
    cells = [
        (row, (row.label, *(difference(row.differences.get(arm), row.digits) for arm in others)))
        for row in rows
        if row.better and row.differences
    ]
    note = f"Paired by seed{' and problem' if cells else ''}; 95 %. A star: the range leaves out 0."
    return Sheet(f"Difference from {first}", ("", *others), _sections(cells), (note, *_caveats(len(found.seeds))))


def _caveats(seeds: int) -> list[str]:
    return [said] if (said := caveat(seeds)) else []


def _sections(
    cells: Sequence[tuple[Figure, tuple[str, ...]]],
) -> tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]:
    titles = dict.fromkeys(row.section for row, _ in cells)
    return tuple((title, tuple(texts for row, texts in cells if row.section == title)) for title in titles)


def difference(one: Paired | None, digits: int) -> str:
    """`+.012 [−.020, +.044]`, with a star where the range leaves out 0."""
    if one is None:
        return "–"
    interval = one.difference
    if interval.low == interval.high:
        return signed(interval.mean, digits)
    star = " *" if interval.low > 0 or interval.high < 0 else ""
    return f"{signed(interval.mean, digits)} [{signed(interval.low, digits)}, {signed(interval.high, digits)}]{star}"


def signed(value: float, digits: int) -> str:
    """`+.012`, `−.020`, `.000`."""
    text = number(abs(value), digits)
    if not round(value, digits):
        return text
    return f"{'+' if value > 0 else '−'}{text}"


def _long(found: Compared, rows: Sequence[Figure]) -> list[list[object]]:
    """A row for each figure of each arm."""
    heads = ["section", "figure", "arm", "seeds", "mean", "low", "high"]
    made: list[list[object]] = [[*heads, "difference", "difference_low", "difference_high"]]
    for row in rows:
        for arm in found.arms:
            one = row.differences.get(arm)
            difference = None if one is None else one.difference
            made.append([row.section, row.name, arm, len(found.seeds), *_limits(row.arms[arm]), *_limits(difference)])
    return made


def _limits(interval: Interval | None) -> list[object]:
    return [None] * 3 if interval is None else [interval.mean, interval.low, interval.high]
