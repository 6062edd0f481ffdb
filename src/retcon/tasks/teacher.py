r"""The weak teacher of the number problems: a Generator whose code really runs, and often fails.

It knows each problem's two steps but writes poor Python: a first try fails with the operation's own rate (.85 to .95),
a try after an error with .25, and a program that runs is of a wrong method with .2. It reads the tool's output
from the ids, as a model would, so its demonstrations hold real failures, real repairs and real wrong answers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from retcon.core.seeds import derive
from retcon.engine.types import Generation, SamplingParams
from retcon.tasks.numbers import NumberProblem, Step
from retcon.tasks.teacher_code import PROGRAMS

RETRY_FAILURE_RATE = 0.25
WRONG_METHOD_RATE = 0.2


@dataclass(frozen=True, slots=True)
class Seen:
    """What the teacher has seen of its rollout: whether each of its calls worked, and what it printed."""

    worked: bool
    output: str


def write_code(step: Step, rng: random.Random, *, after_error: bool) -> str:
    """One try at a step: right, failing or of a wrong method."""
    programs = PROGRAMS[step.operation.name]
    failure_rate = RETRY_FAILURE_RATE if after_error else programs.failure_rate
    if rng.random() < failure_rate:
        source = rng.choice(programs.failing)
    elif rng.random() < WRONG_METHOD_RATE:
        source = rng.choice(programs.wrong)
    else:
        source = rng.choice(programs.right)
    return source.format(*step.args)


def reply(problem: NumberProblem, seen: Sequence[Seen], rng: random.Random) -> str:
    """The teacher's next turn after what it has seen."""
    values = [s.output for s in seen if s.worked]
    after_error = bool(seen) and not seen[-1].worked
    if len(values) >= 2:
        return f"so the answer is \\boxed{{{values[1]}}}"
    if not values:
        step, lead = problem.first, f"first find {problem.first.phrase}."
    else:
        args = list(problem.second.args)
        args[problem.second.x_at or 0] = int(values[0])
        step, lead = Step(problem.second.operation, tuple(args), None), f"now x is {values[0]}."
    if after_error:
        lead = f"that failed. try {step.operation.name.replace('_', ' ')} again."
    return f"{lead}\n```python\n{write_code(step, rng, after_error=after_error)}\n```"


class Teacher:
    """Engine that plays the teacher for one problem per request id.

    encode: text to ids with the control token `<|im_end|>` appended. read: from the history's ids to what was seen.
    """

    def __init__(
        self,
        problems: dict[str, NumberProblem],
        encode: Callable[[str], tuple[int, ...]],
        read: Callable[[Sequence[int]], list[Seen]],
    ) -> None:
        self._problems = problems
        self._encode = encode
        self._read = read

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        seen = self._read(ids)
        rng = random.Random(derive(params.seed, "teacher"))
        text_ids = self._encode(reply(self._problems[request_id], seen, rng))
        if len(text_ids) > params.max_tokens:
            return Generation(text_ids[: params.max_tokens], (0.0,) * params.max_tokens, "length")
        return Generation(text_ids, (0.0,) * len(text_ids), "stop")

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> Sequence[float]:
        raise NotImplementedError("the teacher has no probabilities: nothing it wrote can be scored")

    async def release(self, request_id: str) -> None:
        """Nothing is kept."""
