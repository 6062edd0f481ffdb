"""Grader by the weighted mean of several graders."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from retcon.core.errors import RecipeError
from retcon.tasks.grading.registry import Grader, Host, Kind, Reply, Verdict, kind_of
from retcon.tasks.types import Task


@dataclass(frozen=True, slots=True)
class MeanSettings:
    of: Annotated[
        Mapping[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]],
        Field(description="graders, by name or import path, and their weights", min_length=1),
    ]
    right_from: Annotated[float, Field(gt=0, le=1, description="the mean from which an answer is right")] = 1.0


class MeanGrader:
    """Grader by a mean; a fault of one part is its fault. parts: graders, which their host closes, and weights."""

    def __init__(self, parts: Mapping[str, tuple[Grader, float]], right_from: float = 1.0) -> None:
        self._parts, self._right_from = parts, right_from

    async def grade(self, task: Task, reply: Reply) -> Verdict:
        graded = (grader.grade(task, reply) for grader, _ in self._parts.values())
        verdicts: list[Verdict] = []
        for one in await asyncio.gather(*graded, return_exceptions=True):  # all have ended before one is raised
            if isinstance(one, BaseException):
                raise one
            verdicts.append(one)
        weights = [weight for _, weight in self._parts.values()]
        total = math.fsum(weights)
        score = min(1.0, math.fsum(v.score * w for v, w in zip(verdicts, weights, strict=True)) / total)
        why = ", ".join(f"{name} {v.score:.2g}" for name, v in zip(self._parts, verdicts, strict=True))
        answer = next((v.answer for v in verdicts if v.answer is not None), None)
        return Verdict(score, score >= self._right_from - 1e-9, why, answer)

    async def check(self, task: Task) -> None:
        for grader, _ in self._parts.values():
            await grader.check(task)

    async def close(self) -> None:
        """Do nothing: the host closes the parts."""


def _ready(settings: MeanSettings) -> None:
    for name in settings.of:
        if kind_of(name).name == GRADER.name:
            raise RecipeError("grader mean: of cannot name mean itself")


async def _open(settings: MeanSettings, host: Host) -> MeanGrader:
    _ready(settings)
    parts = {name: (await host.grader(name), weight) for name, weight in settings.of.items()}
    return MeanGrader(parts, settings.right_from)


GRADER = Kind("mean", MeanSettings, _open, ready=_ready, asks=lambda settings: settings.of)
