"""Annotated solutions: GSM8K's `<<48/2=24>>` as programs that run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator

from retcon.config.schema import DemosSection
from retcon.config.section import Probability

if TYPE_CHECKING:
    from retcon.train.demos.types import DemoSetup, OpenSource


class Annotated(DemosSection):
    """Section `kind = "annotated"`: training tasks with annotated solutions; always right."""

    failed_twice_share: Probability = Field(0.0, description="of the demonstrations with a failed call, the share in "
        "which the call after it fails too")  # fmt: skip
    reasoning: Literal["comments", "before", "none"] = Field("comments", description="where a solution's sentences go: "
        "comments, above the line of each; before, ahead of the program; none")  # fmt: skip
    answer: str = Field("The answer is \\boxed{{answer}}.", description="the last turn; {answer} is what was printed")

    @field_validator("answer")
    @classmethod
    def _has_a_place(cls, value: str) -> str:
        if "{answer}" not in value:
            raise ValueError("it needs {answer}, the place of the number that was printed")
        return value

    def open(self, setup: DemoSetup) -> OpenSource:
        from retcon.train.demos.annotated import open_annotated

        return open_annotated(self, setup)
