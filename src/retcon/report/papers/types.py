"""What a reproduction is made of: arms, and studies that set their figures beside a paper's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from retcon.evaluate.statistics import Interval
from retcon.report.compared.figures import Arms
from retcon.report.compared.reading import ComparedRun


@dataclass(frozen=True, slots=True)
class Variant:
    """An arm. role: of the recipe that it begins with, a key of Paper.recipes. keys: what it changes of that.
    switches_to: the role of the recipe whose [repair] it gets for the second half of its steps, if any. rate: factor on
    the recipe's learning rate. start: name of the start that arms of another model than the first one's share."""

    name: str
    role: str
    keys: tuple[str, ...] = ()
    switches_to: str = ""
    rate: float = 1.0
    start: str = ""


@dataclass(frozen=True, slots=True)
class Here:
    """What stands beside a paper's value: figures of an arm, or keys of its recipe such as `rl.lr`, by their names with
    spaces between; less: the arm whose figures are subtracted."""

    arm: str
    figures: str
    less: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A value of the paper. source: table or section. here: None with a reason in `differs`."""

    what: str
    value: str
    source: str
    here: Here | None = None
    differs: str = ""


def table(source: str, columns: Sequence[tuple[str, str, str]], *rows: tuple[str, str, str, str]) -> Iterator[Claim]:
    """A table of the paper: a claim for each cell that has a figure here, and one for the rest of a row. columns: head,
    and either figures of the arms here or "" and a reason. rows: label, cells as the paper prints them, the arm here,
    "" for none, and what differs."""
    for label, cells, arm, differs in rows:
        rest, reasons = list[str](), list[str]()
        for (head, figures, reason), cell in zip(columns, cells.split(), strict=True):
            if cell != "-" and arm and figures:
                about = "; ".join(filter(None, (differs, reason)))
                yield Claim(f"{label}: {head}", cell, source, Here(arm, figures), about)
            elif cell != "-":
                rest.append(f"{head} {cell}")
                reasons.append(reason if arm else differs)
        if rest:
            yield Claim(label, ", ".join(rest), source, None, "; ".join(dict.fromkeys(reasons)))


@dataclass(frozen=True, slots=True)
class Extra:
    """A figure that a comparison does not have: one value a run, None where there is none, or one with its interval,
    which counts where there is but one run. better: the sign of what is better, 0 where neither is. most, least: that
    it can be."""

    name: str
    label: str
    digits: int
    better: int
    value: Callable[[ComparedRun], float | Interval | None]
    most: float = math.inf
    least: float = 0.0


@dataclass(frozen=True, slots=True)
class Study:
    """A table or picture of the paper. arms: names of variants. figures, curves: of a comparison's. note: what is
    different here. first: the arm that the others are compared with, the paper's where it is "". repaired: whether it
    reads evaluations with purification on. draw: writes a picture of its own into a folder."""

    name: str
    title: str
    arms: tuple[str, ...]
    figures: tuple[str, ...]
    claims: tuple[Claim, ...]
    extras: tuple[Extra, ...] = ()
    curves: tuple[str, ...] = ()
    note: str = ""
    first: str = ""
    repaired: bool = False
    draw: Callable[[Arms, Path], Path | None] | None = None


@dataclass(frozen=True, slots=True)
class Paper:
    """name: as on the command line. recipes: role to the recipe that stands for it in miniature. variants: all arms,
    of which the first is what the others are compared with. settings: the paper's hyperparameters. elsewhere: what of
    the paper no study here is about, and which command is. quick: overrides of `--quick`."""

    name: str
    title: str
    arxiv: str
    recipes: dict[str, str]
    variants: tuple[Variant, ...]
    studies: tuple[Study, ...]
    settings: tuple[Claim, ...]
    elsewhere: tuple[str, ...]
    quick: tuple[str, ...]

    def compared(self, study: Study) -> tuple[str, ...]:
        """Names of the study's arms, the one that the others are compared with first."""
        return tuple(dict.fromkeys((study.first or self.variants[0].name, *study.arms)))

    def arms_of(self, studies: tuple[Study, ...]) -> tuple[Variant, ...]:
        """The variants that these studies need, in the paper's order."""
        named = {arm for study in studies for arm in self.compared(study)}
        return tuple(variant for variant in self.variants if variant.name in named)
