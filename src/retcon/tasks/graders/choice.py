"""Grader of multiple choice by letters."""

from __future__ import annotations

from dataclasses import dataclass

from retcon.tasks.graders.text import answer_letter, chosen_letter, final_answer
from retcon.tasks.grading.registry import Host, Kind, Reply, Verdict
from retcon.tasks.types import Task


@dataclass(frozen=True, slots=True)
class ChoiceSettings:
    """Settings of `choice`, without any keys."""


class ChoiceGrader:
    """Grader that compares letters. Implements `Grader`."""

    async def grade(self, task: Task, reply: Reply) -> Verdict:
        wanted, chosen = answer_letter(task.answer), chosen_letter(reply.text)
        why = f"chose {chosen}" if chosen is not None else "chose no letter"
        return Verdict.of(chosen == wanted, why, chosen or final_answer(reply.text))

    async def check(self, task: Task) -> None:
        answer_letter(task.answer)

    async def close(self) -> None:
        """Do nothing: nothing was started."""


async def _open(_settings: ChoiceSettings, _host: Host) -> ChoiceGrader:
    return ChoiceGrader()


GRADER = Kind("choice", ChoiceSettings, _open, read=lambda answer, _meta: answer_letter(answer))
