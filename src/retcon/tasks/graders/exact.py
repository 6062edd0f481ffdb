"""Grader by equal text, ignoring case and white space."""

from __future__ import annotations

from dataclasses import dataclass

from retcon.tasks.graders.text import final_answer, same_text
from retcon.tasks.grading.registry import Host, Kind, Reply, Verdict
from retcon.tasks.types import Task


@dataclass(frozen=True, slots=True)
class ExactSettings:
    """Settings of `exact`, without any keys."""


class ExactGrader:
    """Grader that compares texts. Implements `Grader`."""

    async def grade(self, task: Task, reply: Reply) -> Verdict:
        right = same_text(task.answer, reply.text)
        return Verdict.of(right, "the same text" if right else "another text", final_answer(reply.text))

    async def check(self, task: Task) -> None:
        if not task.answer.strip():
            raise ValueError(f"task {task.id} has an empty answer")

    async def close(self) -> None:
        """Do nothing: nothing was started."""


async def _open(_settings: ExactSettings, _host: Host) -> ExactGrader:
    return ExactGrader()


GRADER = Kind("exact", ExactSettings, _open)
