"""What a reproduction is made of: arms, and studies that set their figures beside a paper's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from retcon.report.compared.reading import ComparedRun


@dataclass(frozen=True, slots=True)
class Variant:
    """An arm. role: of the recipe that it begins with, a key of Paper.recipes. keys: what it changes of that.
    switches_to: the role of the recipe whose [repair] it gets for the second half of its steps, if any."""

    name: str
    role: str
    keys: tuple[str, ...] = ()
    switches_to: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """What the paper says. what: of which the value is. source: where it says so."""

    what: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Extra:
    """A figure that a comparison does not have: one value a run, None where there is none. better: the sign of what is
    better, 0 where neither is. most: that it can be, 1 of a share."""

    name: str
    label: str
    digits: int
    better: int
    value: Callable[[ComparedRun], float | None]
    most: float = math.inf


@dataclass(frozen=True, slots=True)
class Study:
    """A table or picture of the paper. arms: names of variants, beside the paper's first one, with which every study
    compares. figures: names of a comparison's figures. curves: names of its pictures. note: what is different here."""

    name: str
    title: str
    arms: tuple[str, ...]
    figures: tuple[str, ...]
    claims: tuple[Claim, ...]
    extras: tuple[Extra, ...] = ()
    curves: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Paper:
    """name: as on the command line. recipes: role to the recipe that stands for it in miniature. variants: all arms,
    of which the first is what the others are compared with. elsewhere: what of the paper no study here is about, and
    which command is."""

    name: str
    title: str
    arxiv: str
    recipes: dict[str, str]
    variants: tuple[Variant, ...]
    studies: tuple[Study, ...]
    elsewhere: tuple[str, ...]

    @property
    def first(self) -> Variant:
        return self.variants[0]

    def arms_of(self, studies: tuple[Study, ...]) -> tuple[Variant, ...]:
        """The variants that these studies need, in the paper's order, with the first one."""
        named = {self.first.name, *(arm for study in studies for arm in study.arms)}
        return tuple(variant for variant in self.variants if variant.name in named)
