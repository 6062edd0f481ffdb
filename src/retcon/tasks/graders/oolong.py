"""Grader of OOLONG (arXiv 2511.02817): numbers that are close have a part of the score.

An answer is a list in Python's notation with one number, date or text. Of a reply counts what follows its last colon,
or its last word where it is long and has none, as in OOLONG's own script. A number that is off by n scores .75^n. Only
a score of 1 is right.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from retcon.tasks.grading.registry import Host, Kind, Reply, Verdict
from retcon.tasks.types import Task

SHORT = 20
"""Characters below which a reply is an answer."""
PHRASES = ("more common", "less common", "same frequency")
DATES = ("%Y-%m-%d", "%b %d, %Y", "%B %d, %Y", "%d %b %Y", "%d %B %Y", "%m/%d/%Y")
NUMERIC = "ANSWER_TYPE.NUMERIC"
_DATE = re.compile(r"\[datetime\.date\((\d+), (\d+), (\d+)\)\]")
Gold = str | int | date


def read_gold(answer: str) -> Gold:
    """Read a published answer. Raises ValueError."""
    if (found := _DATE.fullmatch(answer.strip())) is not None:
        return date(*map(int, found.groups()))
    try:
        values: Any = ast.literal_eval(answer)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        values = None
    if not isinstance(values, list) or not values:
        raise ValueError(f"{answer[:60]!r} is no list with an answer of OOLONG")
    return values[0] if isinstance(values[0], int) else str(values[0])


def score(gold: Gold, numeric: bool, reply: str) -> tuple[float, str]:
    """Return the score of a reply, and the answer found in it. numeric: whether a number may be off."""
    found = _candidate(reply.strip())
    if found == str(gold):
        return 1.0, found
    if found in PHRASES:
        return float(found in str(gold)), found
    try:
        if isinstance(gold, date):
            return float(_parse_date(found) == gold), found
        return 0.75 ** abs(int(gold) - int(found)) if numeric else 0.0, found
    except ValueError:
        return 0.0, found


def _candidate(reply: str) -> str:
    if ":" not in reply:
        return reply if len(reply) < SHORT else reply.rsplit(maxsplit=1)[-1]
    last = re.sub(r"[*\[\]]", "", reply.rpartition(":")[2].strip())
    return last if len(last) < SHORT else next((phrase for phrase in PHRASES if phrase in last), last)


def _parse_date(text: str) -> date:
    for form in DATES:
        try:
            return datetime.strptime(text, form).date()
        except ValueError:
            continue
    raise ValueError(text)


@dataclass(frozen=True, slots=True)
class OolongSettings:
    """Settings of `oolong`, without any keys."""


class OolongGrader:
    """Grader that gives partial scores. Implements `Grader`."""

    async def grade(self, task: Task, reply: Reply) -> Verdict:
        worth, found = score(read_gold(task.answer), task.meta.get("answer_type") == NUMERIC, reply.text)
        return Verdict(worth, worth == 1.0, f"score {worth:.2f}", found)

    async def check(self, task: Task) -> None:
        read_gold(task.answer)

    async def close(self) -> None:
        """Do nothing: nothing was started."""


async def _open(_settings: OolongSettings, _host: Host) -> OolongGrader:
    return OolongGrader()


GRADER = Kind("oolong", OolongSettings, _open, read=lambda answer, _meta: read_gold(answer))
