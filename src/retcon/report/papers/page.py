"""Page of a reproduction, with tables and pictures beside the paper's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from retcon.config.schema import Recipe
from retcon.evaluate.statistics import Interval
from retcon.report.comparison import COMPARED, ArmRun, Arms, Figure, by_seed, caveat, difference, figures, note_left_out
from retcon.report.papers.types import Claim, Extra, Ours, Paper, Study
from retcon.report.plots import draw_curves
from retcon.report.tables import Sheet, cell, markdown_row, number
from retcon.store.whole import storage_errors, write_whole

FORMAT = 2
PAGE, FIGURES, PICTURES = "reproduction.md", "reproduction.json", "pictures"
SHAPE_ONLY = "shape only"
HEADS = ("in the paper", "where", "paper", "here", "what differs")
NOTHING = "None of this study's figures was measured: its runs lack the evaluations or metrics that it reads."


@dataclass(frozen=True, slots=True)
class PaperResults:
    """A finished reproduction. arms: runs by name, one a seed. recipes: by arm. about: each arm's recipe in words.
    command: that made it. seconds: wall time in all. quick: whether the runs are too short for their numbers to mean
    anything."""

    paper: Paper
    studies: tuple[Study, ...]
    arms: Mapping[str, Sequence[ArmRun]]
    recipes: Mapping[str, Recipe]
    about: Mapping[str, str]
    command: str
    seconds: float
    quick: bool = False

    @property
    def seeds(self) -> list[int]:
        return [run.run.seed for run in next(iter(self.arms.values()))]

    @property
    def caveat(self) -> str:
        short = f"{SHAPE_ONLY.capitalize()}: a few steps and problems show that everything runs, and no result. "
        return (short * self.quick + caveat(len(self.seeds))).strip()


Line = tuple[str, str, str, str, str]
"""A value of the paper beside ours, as `HEADS`."""


@dataclass(frozen=True, slots=True)
class StudyReport:
    """One study's results. lines: the paper's values beside ours."""

    study: Study
    rows: list[Figure]
    sheet: Sheet
    lines: list[Line]
    pictures: list[Path]


def write_reproduction(found: PaperResults, out: Path) -> list[StudyReport]:
    """Write the page, `out`/pictures/<study> and the figures; return the studies' reports.

    Raises StorageError, MissingExtra without matplotlib.
    """
    reports = [_report(found, study, out / PICTURES / study.name) for study in found.studies]
    settings = [_line(claim, found, lambda _: {}) for claim in found.paper.settings]
    write_whole(out / PAGE, "\n".join(_page(found, reports, settings)))
    content = {
        "format": FORMAT,
        "paper": {"name": found.paper.name, "title": found.paper.title, "arxiv": found.paper.arxiv},
        "seeds": found.seeds,
        "note": found.caveat,
        "command": found.command,
        "seconds": round(found.seconds, 1),
        "recipes": found.about,
        "studies": [_study_json(report) for report in reports],
        "settings": [dict(zip(HEADS, line, strict=True)) for line in settings],
    }
    write_whole(out / FIGURES, msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
    return reports


def all_figures(study: Study, arms: Arms) -> dict[str, Figure]:
    """Return the comparison's and the study's figures, differences against the first arm."""
    known = {figure.name: figure for figure in figures(arms)}
    for extra in study.extras:
        if any((one := _extra(extra, arms)).arms.values()):
            known[one.name] = one
    return known


def _extra(extra: Extra, arms: Arms) -> Figure:
    found = {arm: [extra.value(run) for run in runs] for arm, runs in arms.items()}
    values = {arm: [v.mean if isinstance(v, Interval) else v for v in own] for arm, own in found.items()}
    figure = by_seed(
        "", extra.name, extra.label, extra.digits, extra.better, values, most=extra.most, least=extra.least
    )
    own = {arm: one for arm, (one, *more) in found.items() if isinstance(one, Interval) and not more}
    return replace(figure, arms={**figure.arms, **own})


def _report(found: PaperResults, study: Study, folder: Path) -> StudyReport:
    arms = {name: found.arms[name] for name in found.paper.compared(study)}
    known: dict[str, dict[str, Figure]] = {}

    def against(first: str) -> dict[str, Figure]:
        first = first or next(iter(arms))
        if first not in known:
            known[first] = all_figures(study, {first: arms[first], **arms})
        return known[first]

    names = (*study.figures, *(extra.name for extra in study.extras))
    rows = [figure for name in names if (figure := against("").get(name))]
    lines = [_line(claim, found, against) for claim in study.claims]
    return StudyReport(study, rows, _sheet(study, rows), lines, list(_draw(study, arms, folder)))


def _line(claim: Claim, found: PaperResults, against: Callable[[str], Mapping[str, Figure]]) -> Line:
    here = "" if claim.here is None else _our_value(claim.here, found.recipes, against(claim.here.less))
    missing = "not measured here" if claim.here and not here else ""
    differs = "; ".join(filter(None, (SHAPE_ONLY * found.quick, claim.differs, missing)))
    return claim.what, claim.source, claim.value, here or "–", differs


def _our_value(here: Ours, recipes: Mapping[str, Recipe], known: Mapping[str, Figure]) -> str:
    """The arm's figures, their differences, or values of its recipe; passes in percent, as papers print them; "" if it
    has none of them."""
    texts = []
    for name in here.figures.split():
        section, _, key = name.partition(".")
        scale, figure = 100 if name.startswith("pass") else 1, known.get(name)
        if key:
            value = getattr(getattr(recipes.get(here.arm), section, None), key, None)
            texts.append("–" if value is None else f"{value:g}")
        elif figure is None or (own := figure.arms.get(here.arm)) is None:
            texts.append("–")
        elif here.less:
            one = figure.differences.get(here.arm)
            apart = one and replace(one, difference=_times(one.difference, scale))
            texts.append(difference(apart, 1 if scale > 1 else figure.digits))
        else:
            texts.append(number(100 * own.mean, 1) if scale > 1 else cell(own, figure.digits))
    plain = here.figures.startswith("pass") and not here.less
    return "" if set(texts) == {"–"} else ("/" if plain else "; ").join(texts)


def _times(interval: Interval, scale: float) -> Interval:
    return Interval(scale * interval.mean, scale * interval.low, scale * interval.high)


def _sheet(study: Study, rows: Sequence[Figure]) -> Sheet:
    """Figures down and arms across; below them, by how much each is more than the first arm's."""
    if not rows:
        return Sheet(study.title, ("",), (), (NOTHING,))
    arms = list(rows[0].arms)
    values = tuple((_label(row), *(cell(row.arms[arm], row.digits) for arm in arms)) for row in rows)
    apart = tuple(
        (_label(row), "", *(difference(row.differences.get(arm), row.digits) for arm in arms[1:]))
        for row in rows
        if row.differences
    )
    sections = (("as measured", values), *([(f"less {arms[0]}", apart)] if apart else []))
    return Sheet(study.title, ("", *arms), sections, tuple(note_left_out(rows, _label)))


CONDITION = {"off, second top-p": "top-p", "purification on": "repaired"}
"""What a figure's label says of how it was measured; without purification and at T = 1 it says nothing."""


def _label(row: Figure) -> str:
    return f"{row.label}, {CONDITION[row.section]}" if row.section in CONDITION else row.label


def _draw(study: Study, arms: Arms, folder: Path) -> Iterator[Path]:
    if curves := [curve for curve in COMPARED if curve.name in study.curves]:
        runs = {arm: [one.run for one in of_arm] for arm, of_arm in arms.items()}
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        yield from draw_curves(runs, folder, curves=curves).values()
    if study.draw is not None and (own := study.draw(arms, folder)):
        yield own


def _page(found: PaperResults, reports: Sequence[StudyReport], settings: Sequence[Line]) -> Iterator[str]:
    paper, seeds = found.paper, len(found.seeds)
    yield f"# {paper.title}, in miniature\n"
    yield f"[arXiv {paper.arxiv}](https://arxiv.org/abs/{paper.arxiv}). Made by\n\n```text\n{found.command}\n```\n"
    yield (
        f"{seeds} {'seed' if seeds == 1 else 'seeds'} an arm, each from a start that all arms of its model share, "
        "equal in rollouts trained on. Problems, model and machine are not the paper's: compare directions, not "
        "heights. Brackets are 95 % ranges; a star marks a difference whose range leaves out 0. Beside the paper's "
        "values, passes are in percent; – is what this setting lacks.\n"
    )
    if note := found.caveat:
        yield f"**{note}**\n"
    yield "| arm | trained with |\n|---|---|"
    yield "\n".join(f"| {name} | {recipe} |" for name, recipe in found.about.items()) + "\n"
    for report in reports:
        yield f"## {report.study.title}\n"
        yield report.sheet.markdown(titled=False)
        if report.study.note:
            yield f"{report.study.note}\n"
        yield _markdown(report.lines)
        yield from (f"![{file.stem}]({PICTURES}/{report.study.name}/{file.name})\n" for file in report.pictures)
    if settings:
        yield "## Settings\n"
        yield _markdown(settings)
    yield "## Of the paper, not here\n"
    yield "\n".join(f"- {line}" for line in paper.elsewhere) + "\n"


def _markdown(lines: Sequence[Line]) -> str:
    return "\n".join([markdown_row(HEADS), "|---|---|---|---|---|", *map(markdown_row, lines)]) + "\n"


def _study_json(report: StudyReport) -> dict[str, object]:
    return {
        "name": report.study.name,
        "title": report.study.title,
        "paper": [dict(zip(HEADS, line, strict=True)) for line in report.lines],
        "figures": {
            row.name: {
                "about": _label(row),
                "arms": row.arms,
                **({"problems": row.problems} if row.problems else {}),
                "difference": {arm: one.difference for arm, one in row.differences.items()},
            }
            for row in report.rows
        },
    }
