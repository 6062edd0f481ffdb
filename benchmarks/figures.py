#!/usr/bin/env python
"""Every table of measurements in README and docs, from the result files: `make figures`.

A benchmark writes its figures to benchmarks/results/FILE.json (`--json`; for a finished quickstart or comparison,
`--quickstart`, `--compare` and `--reproduce` here do). Where a page has

    <!-- figures: NAME -->
    ...
    <!-- end of figures -->

there stands NAME.md of benchmarks/tables with its fields filled in: a field is {FILE.KEY.KEY:FORMAT}, a key a name in
the file's figures or a place in a list. FORMAT: a number of digits, for a number, [median, least, most] or {mean, low,
high}; `rows`, a table of texts (`head`, `rows`); `counts`, numbers by their names in one line; `arms` and `screen`,
the comparison of a quickstart in Markdown and as the terminal shows it; `when`, of
{FILE.about}, when and where it was measured; nothing, a text as it is.

Pages that are not what the files say are written anew, or with --check named. --stale lists results that are older than
the code that they measure.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import string
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parts.compared import by_arm, table
from parts.results import ROOT, TRAINED, git, save
from rich.console import Console, RenderableType

from retcon.evaluate.statistics import Interval
from retcon.report.runs import showcase_in
from retcon.report.tables import ROWS, Figures, best_arms, cell, comparison_table, number
from retcon.report.transcript import show_purification

MARKED = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
WIDTH = 80


class FigureError(Exception):
    """A table, a field or a figure that is not there; says where."""


class Filler(string.Formatter):
    """Fills a table's fields in from results: file to its figures."""

    def __init__(self, results: Mapping[str, Any]) -> None:
        self.results = results

    def get_field(self, field_name: str, args: object, kwargs: object) -> tuple[Any, str]:
        value: Any = self.results
        for key in field_name.split("."):
            try:
                value = value[int(key)] if isinstance(value, list) else value[key]
            except (KeyError, IndexError, ValueError, TypeError):
                there = f"; there are: {', '.join(value)}" if isinstance(value, Mapping) else ""
                raise FigureError(f"{{{field_name}}}: there is no {key!r}{there}") from None
        return value, field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.isdigit():
            return figure(value, int(format_spec))
        ways = {"rows": rows, "counts": counts, "arms": arms, "screen": screen, "when": when, "": str}
        if format_spec not in ways:
            raise FigureError(
                f"{format_spec!r} is no format; there are: a number of digits, {', '.join(filter(None, ways))}"
            )
        return ways[format_spec](value)


def figure(value: Any, digits: int) -> str:
    """`.81`, `1.02 (.98…1.10)`, `.812 [.790–.834]`; a dash where nothing was measured."""
    if isinstance(value, list):
        middle, least, most = (number(one, digits) for one in value)
        return f"{middle} ({least}…{most})"
    if isinstance(value, int | float):
        return number(value, digits)
    return cell(None if value is None else Interval(**value), digits)


def when(about: Mapping[str, Any]) -> str:
    """Of what a file says about itself: when, where, beside what load and with which commit it was measured."""
    load = f", load {about['load']}" if "load" in about else ""
    return f"*{about['date']}, {about['machine']}{load}" + (f"; commit {about['commit']}*" if about["commit"] else "*")


def rows(table: Mapping[str, Any]) -> str:
    """A table of texts in Markdown."""
    head, lines = table["head"], table["rows"]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


def counts(of: Mapping[str, int]) -> str:
    """`name` 12, `other` 3."""
    return ", ".join(f"`{name}` {count:,}" for name, count in of.items())


def arms(summary: Mapping[str, Any]) -> str:
    """A row for every figure that was measured, the best in bold."""
    cold, of_arms = read_summary(summary)
    shown = {"cold start": cold} if any(cold.values()) else {}
    lines = [f"| | {' | '.join([*shown, *of_arms])} |", "|" + "---|" * (1 + len(shown) + len(of_arms))]
    of = ""
    for row in ROWS:
        if not row.label.startswith(" "):
            of = re.split(r"(?<=[:,]) ", row.label)[0]  # what the labels below, set in, are of
        label = f"{of} {row.label.strip()}" if row.label.startswith(" ") else row.label
        if not any(figures[row.figure] for figures in of_arms.values()):
            continue
        best, cells = best_arms(row, of_arms), []
        for name, figures in {**shown, **of_arms}.items():
            mean, space, span = cell(figures[row.figure], row.digits).partition(" ")
            cells.append(f"**{mean}**{space}{span}" if name in best else f"{mean}{space}{span}")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def screen(summary: Mapping[str, Any]) -> str:
    table = printed(comparison_table(*read_summary(summary), seeds=len(summary["seeds"])))
    return f"```text\n{table}\n```"


def read_summary(summary: Mapping[str, Any]) -> tuple[Figures, dict[str, Figures]]:
    """Read cold start and arms of a summary.json, figures optional."""

    def read(figures: Mapping[str, Any]) -> Figures:
        found = {row.figure: figures.get(row.figure) for row in ROWS}
        return {name: None if value is None else Interval(**value) for name, value in found.items()}

    return read(summary.get("cold_start", {})), {name: read(one) for name, one in summary["arms"].items()}


def printed(*what: RenderableType) -> str:
    """As a terminal of 80 columns shows it, without colours."""
    file = io.StringIO()
    console = Console(file=file, width=WIDTH, highlight=False)
    for one in what:
        console.print(one)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Every result file by its name: `about` and `figures`."""
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.rglob("*.json"))}


def rendered(page: str, tables: Path, results: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with its tables filled in. Raises FigureError that names the table."""
    filler = Filler({name: {**result["figures"], "about": result["about"]} for name, result in results.items()})

    found = {table.stem: table for table in sorted(tables.rglob("*.md"))}

    def fill(match: re.Match[str]) -> str:
        table = found.get(match[2])
        if table is None:
            raise FigureError(f"there is no table {match[2]!r}; there are: {', '.join(found)}")
        try:
            filled = filler.format(table.read_text(encoding="utf-8").rstrip("\n"))
        except FigureError as error:
            raise FigureError(f"{table.name}: {error}") from None
        return f"{match[1]}\n{filled}\n\n{match[3]}"

    return MARKED.sub(fill, page)


def find_outdated(root: Path) -> dict[Path, str]:
    """Return pages that differ from the result files, with their correct text."""
    results = read_results(root / "benchmarks" / "results")
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    wanted = {
        page: rendered(page.read_text(encoding="utf-8"), root / "benchmarks" / "tables", results) for page in pages
    }
    return {page: text for page, text in wanted.items() if text != page.read_text(encoding="utf-8")}


def find_stale(root: Path) -> list[str]:
    """List results older than the code they measure, or without a date."""
    lines = []
    for name, result in read_results(root / "benchmarks" / "results").items():
        about = result["about"]
        since = (
            [f"{commit.rstrip('+')}..HEAD"] if (commit := about.get("commit")) else [f"--since={about['date']}T00:00"]
        )
        changes = git("log", "--format=%h", *since, "--", *about["measures"], root=root)
        if changes is None:
            lines.append(f"{name}: git knows nothing of {commit or 'this folder'}")
        elif changes:
            count = len(changes.split())
            commits = f"{count} commit{'s' * (count > 1)} since"
            lines.append(f"{name} (of {about['date']}): {commits}; again with: {about['command']}")
    return lines


def costs(folder: Path) -> dict[str, float]:
    """CPU and wall seconds of a run's training and of its evaluation."""
    trained = json.loads((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    settings = json.loads((folder / "eval" / "result.json").read_text(encoding="utf-8"))["settings"].values()
    return {
        "train_cpu_s": trained["cpu_s"],
        "train_wall_s": trained["wall_s"],
        "eval_cpu_s": sum(one["cpu_s"] for one in settings),
        "eval_wall_s": sum(one["wall_s"] for one in settings),
    }


def keep_quickstart(run: Path, file: Path, name: str | None = None, commit: str | None = None) -> None:
    """The result file of a finished `retcon quickstart [NAME] --out run`: its summary, the trajectory that it showed,
    where it computed, and what each run cost. commit: of the code that made it, unless this one."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    runs = [run / "cold_start", *(run / arm / f"seed-{seed}" for arm in summary["arms"] for seed in summary["seeds"])]
    shown = [found for folder in runs[1:] if (found := showcase_in(folder))]
    places = [
        line for one in runs for line in json.loads((one / "run.json").read_text(encoding="utf-8")).get("places", [])
    ]
    figures = {
        "summary": summary,
        "minutes": summary["seconds"] / 60,
        "transcript": printed(show_purification(shown[-1][0])) if shown else "",
        "places": "\n".join(dict.fromkeys(places)),
        "costs": {str(one.relative_to(run).parts[0]): costs(one) for one in runs},
    }
    command = " ".join(("retcon quickstart", *filter(None, (name,)), f"--seeds {len(summary['seeds'])}"))
    save(file, figures, command=command, measures=TRAINED, commit=commit)


def keep_compared(run: Path, file: Path, commit: str | None) -> None:
    """The result file of a finished `retcon compare --out run`: a short table and the whole ones. commit: of the code
    that made it, unless this one."""
    comparison = json.loads((run / "compare.json").read_text(encoding="utf-8"))
    compared = comparison["cells"][0]["arms"]
    whole = (run / "table.md").read_text(encoding="utf-8").strip()
    recipes, seeds = [arm["recipe"] for arm in compared.values()], next(iter(compared.values()))["seeds"]
    command = f"retcon compare {' '.join(recipes)} --seeds {len(seeds)}"
    figures = {"table": table(compared), "by arm": by_arm(compared), "whole": whole, "cells": comparison["cells"]}
    save(file, figures, command=command, measures=TRAINED, commit=commit)


def keep_reproduced(run: Path, file: Path, commit: str | None) -> None:
    """The result file of a finished `retcon reproduce --out run`: its page without title and pictures, and its figures.
    commit: of the code that made it, unless this one."""
    found = json.loads((run / "reproduction.json").read_text(encoding="utf-8"))
    page = (run / "reproduction.md").read_text(encoding="utf-8").partition("\n")[2]
    figures = {
        "page": re.sub(r"\n!\[.*\n", "", page).strip(),
        "minutes": found["seconds"] / 60,
        "studies": found["studies"],
    }
    save(file, figures, command=found["command"], measures=TRAINED, commit=commit)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where a page is out of date")
    parser.add_argument("--stale", action="store_true", help="list results older than their code, and no more")
    parser.add_argument("--quickstart", type=Path, metavar="RUN", help="keep the figures of a finished quickstart")
    parser.add_argument("--compare", type=Path, metavar="RUN", help="keep the figures of a finished comparison")
    parser.add_argument("--reproduce", type=Path, metavar="RUN", help="keep the page of a finished reproduction")
    parser.add_argument("--commit", help="of the code that made that, unless this one")
    parser.add_argument("--of", metavar="NAME", help="which quickstart that was, unless the default one")
    parser.add_argument("--as", dest="name", default="quickstart", help="the name of its result file")
    options = parser.parse_args()
    if options.quickstart:
        results = ROOT / "benchmarks" / "results" / "quickstart"
        keep_quickstart(options.quickstart, results / f"{options.name}.json", options.of, options.commit)
    if options.compare:
        results = ROOT / "benchmarks" / "results" / "compared"
        keep_compared(options.compare, results / f"compare-{options.compare.name}.json", options.commit)
    if options.reproduce:
        results = ROOT / "benchmarks" / "results" / "compared"
        keep_reproduced(options.reproduce, results / f"reproduce-{options.reproduce.name}.json", options.commit)
    if options.stale:
        print(*(find_stale(ROOT) or ["no result is older than the code that it measures"]), sep="\n")
        return 0
    try:
        changed = find_outdated(ROOT)
    except FigureError as error:
        print(error, file=sys.stderr)
        return 2
    for page, text in changed.items():
        if not options.check:
            page.write_text(text, encoding="utf-8")
        print(f"{page.relative_to(ROOT)}: {'out of date, see `make figures`' if options.check else 'written'}")
    return int(options.check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
