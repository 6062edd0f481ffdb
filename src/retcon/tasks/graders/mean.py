"""A weighted mean of what several graders say."""

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
    """Implements `Grader`; a fault of one is a fault of the mean. parts: graders, not its own to close, and weights."""

    def __init__(self, parts: Mapping[str, tuple[Grader, float]], right_from: float = 1.0) -> None:
        self._parts, self._right_from = parts, right_from

    async def grade(self, task: Task, reply: Reply) -> Verdict:
        """See `Grader.grade`."""
        graded = (grader.grade(task, reply) for grader, _ in self._parts.values())
        said: list[Verdict] = []
        for one in await asyncio.gather(*graded, return_exceptions=True):  # all have ended before one is raised
            if isinstance(one, BaseException):
                raise one
            said.append(one)
        weights = [weight for _, weight in self._parts.values()]
        total = math.fsum(weights)
        score = min(1.0, math.fsum(v.score * w for v, w in zip(said, weights, strict=True)) / total)
        why = ", ".join(f"{name} {v.score:.2g}" for name, v in zip(self._parts, said, strict=True))
        answer = next((v.answer for v in said if v.answer is not None), None)
        return Verdict(score, score >= self._right_from - 1e-9, why, answer)

    async def check(self, task: Task) -> None:
        """See `Grader.check`."""
        for grader, _ in self._parts.values():
            await grader.check(task)

    async def close(self) -> None:
        """Its parts are their host's to close."""


def _ready(settings: MeanSettings) -> None:
    for name in settings.of:
        if kind_of(name).name == GRADER.name:
            raise RecipeError("grader mean: of cannot name mean itself")


async def _open(settings: MeanSettings, host: Host) -> MeanGrader:
    _ready(settings)
    parts = {name: (await host.grader(name), weight) for name, weight in settings.of.items()}
    return MeanGrader(parts, settings.right_from)


GRADER = Kind("mean", MeanSettings, _open, ready=_ready, asks=lambda settings: settings.of)
