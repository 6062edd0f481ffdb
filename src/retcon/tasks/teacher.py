r"""The weak teacher of the number problems: what it writes next, given what it has seen. Its code often fails.

It knows each problem's steps but writes poor Python: a first try at a step fails nearly always, a try after an
error in six cases of ten, and one program in twenty that runs is of a wrong method. Its demonstrations
(`retcon.train.demos.teacher`) hold real failures, real repairs and real wrong answers. How the rates were chosen is in
`docs/log.md`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from retcon.tasks.numbers import LETTERS, NumberProblem, Step
from retcon.tasks.teacher_code import PROGRAMS


@dataclass(frozen=True, slots=True)
class Rates:
    """How weak the teacher is: the share of first tries at a step that fail, of tries right after an error that do,
    and of programs that run that are of a wrong method. Another teacher is for measuring, not for better agents.
    """

    first_failure: float = 0.995
    retry_failure: float = 0.6
    wrong_method: float = 0.05


WEAK = Rates()


@dataclass(frozen=True, slots=True)
class Seen:
    """What the teacher has seen of a call: what it printed, and whether that is the number that it asked for."""

    worked: bool
    output: str


def write_code(step: Step, rng: random.Random, *, after_error: bool, rates: Rates = WEAK) -> str:
    """One try at a step: right, failing or of a wrong method."""
    programs = PROGRAMS[step.operation.name]
    if rng.random() < (rates.retry_failure if after_error else rates.first_failure):
        source = rng.choice(programs.failing)
    elif rng.random() < rates.wrong_method:
        source = rng.choice(programs.wrong)
    else:
        source = rng.choice(programs.right)
    return source.format(*step.args)


def reply(
    problem: NumberProblem, seen: Sequence[Seen], rng: random.Random, rates: Rates = WEAK
) -> tuple[str, str | None]:
    """The teacher's next turn after what it has seen: its words, and its code unless this is the answer."""
    values = [s.output for s in seen if s.worked]
    after_error = bool(seen) and not seen[-1].worked
    done = len(values)
    if done >= len(problem.steps):
        return f"answer: \\boxed{{{values[len(problem.steps) - 1]}}}", None
    step, lead = problem.steps[done], f"find {LETTERS[0]}."
    if done:
        step, lead = step.after(int(values[-1])), f"now {LETTERS[done - 1]} is {values[-1]}."
    lead = f"again: {lead}" if after_error else lead
    return lead, write_code(step, rng, after_error=after_error, rates=rates)


def next_turn(
    problem: NumberProblem, printed: Sequence[str], rng: random.Random, *, rates: Rates = WEAK
) -> tuple[str, str | None]:
    """As `reply`, a `Lesson`: what is no number did not work."""
    return reply(problem, [Seen(_is_number(text), text) for text in printed], rng, rates)


def _is_number(text: str) -> bool:
    return text.strip().removeprefix("-").isdecimal()
