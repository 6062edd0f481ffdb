"""A reproduction as files: one page of tables and pictures, each beside what the paper says, and reproduction.json."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from retcon.report.compared.curves import COMPARED
from retcon.report.compared.figures import Arms, Figure, by_seed, figures
from retcon.report.compared.reading import ComparedRun
from retcon.report.compared.sheet import Sheet
from retcon.report.compared.writing import caveat, difference, partly
from retcon.report.papers.types import Extra, Paper, Study
from retcon.report.plots import draw_curves
from retcon.report.tables import cell
from retcon.store.whole import explained, write_whole

FORMAT = 1
PAGE, FIGURES, PICTURES = "reproduction.md", "reproduction.json", "pictures"


@dataclass(frozen=True, slots=True)
class Reproduced:
    """What has been run. arms: name to runs, one a seed, the paper's first arm first. recipes: name to what it was
    trained with, in words. command: that made it. seconds: wall, of everything."""

    paper: Paper
    studies: tuple[Study, ...]
    arms: dict[str, list[ComparedRun]]
    recipes: dict[str, str]
    command: str
    seconds: float


def write_reproduced(found: Reproduced, out: Path) -> list[Sheet]:
    """Writes the page, its pictures into `out`/pictures/<study>, and the figures; a sheet a study, with differences
    from the first arm. Raises StorageError, MissingExtra without matplotlib."""
    rows = {study.name: study_figures(study, _arms(found, study)) for study in found.studies}
    sheets = [_sheet(study, rows[study.name]) for study in found.studies]
    pictures = {study.name: _draw(study, _arms(found, study), out) for study in found.studies}
    write_whole(out / PAGE, "\n".join(_page(found, sheets, pictures)))
    told = {
        "format": FORMAT,
        "paper": {"name": found.paper.name, "title": found.paper.title, "arxiv": found.paper.arxiv},
        "seeds": [run.run.seed for run in next(iter(found.arms.values()))],
        "note": caveat(len(next(iter(found.arms.values())))),
        "command": found.command,
        "seconds": round(found.seconds, 1),
        "recipes": found.recipes,
        "studies": [_told(study, rows[study.name]) for study in found.studies],
    }
    write_whole(out / FIGURES, msgspec.json.format(msgspec.json.encode(told), indent=1) + b"\n")
    return sheets


def study_figures(study: Study, arms: Arms) -> list[Figure]:
    """The study's figures, in its order, those that were measured; the first arm is what others are compared with."""
    known = {figure.name: figure for figure in figures(arms)}
    found = [known[name] for name in study.figures if name in known]
    return [*found, *(one for extra in study.extras if any((one := _extra(extra, arms)).arms.values()))]


def _extra(extra: Extra, arms: Arms) -> Figure:
    values = {arm: [extra.value(run) for run in runs] for arm, runs in arms.items()}
    return by_seed("", extra.name, extra.label, extra.digits, extra.better, values, most=extra.most)


def _arms(found: Reproduced, study: Study) -> dict[str, list[ComparedRun]]:
    first = found.paper.first.name
    return {name: found.arms[name] for name in dict.fromkeys((first, *study.arms))}


def _sheet(study: Study, rows: Sequence[Figure]) -> Sheet:
    """Figures down and arms across; below them, by how much each is more than the first arm's."""
    arms = list(rows[0].arms) if rows else []
    values = tuple((_label(row), *(cell(row.arms[arm], row.digits) for arm in arms)) for row in rows)
    apart = tuple(
        (_label(row), "", *(difference(row.differences.get(arm), row.digits) for arm in arms[1:]))
        for row in rows
        if row.differences
    )
    sections = (("as measured", values), *([(f"less {arms[0]}", apart)] if apart else []))
    return Sheet(study.title, ("", *arms), sections, tuple(partly(rows, _label)))


CONDITION = {"off, second top-p": "top-p", "purification on": "repaired"}
"""What a figure's label says of how it was measured; without purification and at T = 1 it says nothing."""


def _label(row: Figure) -> str:
    return f"{row.label}, {CONDITION[row.section]}" if row.section in CONDITION else row.label


def _draw(study: Study, arms: Arms, out: Path) -> list[Path]:
    curves = [curve for curve in COMPARED if curve.name in study.curves]
    if not curves:
        return []
    runs = {arm: [one.run for one in of_arm] for arm, of_arm in arms.items()}
    folder = out / PICTURES / study.name
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return list(draw_curves(runs, folder, curves=curves).values())


def _page(found: Reproduced, sheets: Sequence[Sheet], pictures: dict[str, list[Path]]) -> Iterator[str]:
    paper, seeds = found.paper, len(next(iter(found.arms.values())))
    yield f"# {paper.title}, in miniature\n"
    yield f"[arXiv {paper.arxiv}](https://arxiv.org/abs/{paper.arxiv}). Made by\n\n    {found.command}\n"
    yield (
        f"{seeds} {'seed' if seeds == 1 else 'seeds'} an arm, each from a start that all arms share, equal in rollouts "
        "trained on. Problems, model and machine are not the paper's: compare directions, not heights. Brackets are "
        "95 % ranges; a star marks a difference whose range leaves out 0.\n"
    )
    if note := caveat(seeds):
        yield f"**{note}**\n"
    yield "| arm | trained with |\n|---|---|"
    yield "\n".join(f"| {name} | {recipe} |" for name, recipe in found.recipes.items()) + "\n"
    for study, sheet in zip(found.studies, sheets, strict=True):
        yield f"## {study.title}\n"
        yield sheet.markdown(titled=False)
        if study.note:
            yield f"{study.note}\n"
        yield _claims(study)
        yield from (f"![{file.stem}]({PICTURES}/{study.name}/{file.name})\n" for file in pictures[study.name])
    yield "## Of the paper, not here\n"
    yield "\n".join(f"- {line}" for line in paper.elsewhere) + "\n"


def _claims(study: Study) -> str:
    if not study.claims:
        return "What the paper says of it could not be read.\n"
    lines = [f"| {claim.what} | {claim.value} | {claim.source} |" for claim in study.claims]
    return "\n".join(["| in the paper | | where |", "|---|---|---|", *lines]) + "\n"


def _told(study: Study, rows: Sequence[Figure]) -> dict[str, object]:
    return {
        "name": study.name,
        "title": study.title,
        "paper": [asdict(claim) for claim in study.claims],
        "figures": {
            row.name: {
                "about": _label(row),
                "arms": row.arms,
                **({"problems": row.problems} if row.problems else {}),
                "difference": {arm: one.difference for arm, one in row.differences.items()},
            }
            for row in rows
        },
    }
