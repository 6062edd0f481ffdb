r"""The weak teacher of the number problems: what it writes next, given what it has seen. Its code often fails.

It knows each problem's two steps but writes poor Python: a first try at a step fails nearly always, a try after an
error in six cases of ten, and one program in twenty that runs is of a wrong method. Its demonstrations
(`retcon.rollout.demonstrate`) hold real failures, real repairs and real wrong answers. How the rates were chosen is in
`docs/log.md`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from retcon.tasks.numbers import NumberProblem, Step
from retcon.tasks.teacher_code import PROGRAMS

FIRST_FAILURE_RATE = 0.995
RETRY_FAILURE_RATE = 0.6
WRONG_METHOD_RATE = 0.05


@dataclass(frozen=True, slots=True)
class Seen:
    """What the teacher has seen of a call: what it printed, and whether that is the number that it asked for."""

    worked: bool
    output: str


def write_code(step: Step, rng: random.Random, *, after_error: bool) -> str:
    """One try at a step: right, failing or of a wrong method."""
    programs = PROGRAMS[step.operation.name]
    if rng.random() < (RETRY_FAILURE_RATE if after_error else FIRST_FAILURE_RATE):
        source = rng.choice(programs.failing)
    elif rng.random() < WRONG_METHOD_RATE:
        source = rng.choice(programs.wrong)
    else:
        source = rng.choice(programs.right)
    return source.format(*step.args)


def reply(problem: NumberProblem, seen: Sequence[Seen], rng: random.Random) -> tuple[str, str | None]:
    """The teacher's next turn after what it has seen: its words, and its code unless this is the answer."""
    values = [s.output for s in seen if s.worked]
    after_error = bool(seen) and not seen[-1].worked
    if len(values) >= 2:
        return f"answer: \\boxed{{{values[1]}}}", None
    if not values:
        step, lead = problem.first, "find x."
    else:
        args = list(problem.second.args)
        args[problem.second.x_at or 0] = int(values[0])
        step, lead = Step(problem.second.operation, tuple(args), None), f"now x is {values[0]}."
    lead = f"again: {lead}" if after_error else lead
    return lead, write_code(step, rng, after_error=after_error)
