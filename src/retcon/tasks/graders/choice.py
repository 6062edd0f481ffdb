"""Multiple choice: the same letter."""

from __future__ import annotations

from dataclasses import dataclass

from retcon.tasks.graders.text import chosen_letter, final_answer, letter
from retcon.tasks.grading.registry import Host, Kind, Reply, Verdict
from retcon.tasks.types import Task


@dataclass(frozen=True, slots=True)
class ChoiceSettings:
    """It has none."""


class ChoiceGrader:
    """Implements `Grader`."""

    async def grade(self, task: Task, reply: Reply) -> Verdict:
        wanted, chosen = letter(task.answer), chosen_letter(reply.text)
        why = f"chose {chosen}" if chosen is not None else "chose no letter"
        return Verdict.of(chosen == wanted, why, chosen or final_answer(reply.text))

    async def check(self, task: Task) -> None:
        letter(task.answer)

    async def close(self) -> None:
        """It started nothing."""


async def _open(_settings: ChoiceSettings, _host: Host) -> ChoiceGrader:
    return ChoiceGrader()


GRADER = Kind("choice", ChoiceSettings, _open, read=lambda answer, _meta: letter(answer))
