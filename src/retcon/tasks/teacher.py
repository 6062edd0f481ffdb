r"""The weak teacher of the number problems: a Generator whose code really runs, and often fails.

It knows each problem's two steps but writes poor Python: a first try fails with the operation's own rate (.85 to .95),
a try after an error with .25, and a program that runs is of a wrong method with .2. It reads the tool's output
from the ids, as a model would, so its demonstrations hold real failures, real repairs and real wrong answers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retcon.chat import hermes, markdown
from retcon.chat.chat import Chat
from retcon.chat.types import TURN_END
from retcon.core.errors import EngineError
from retcon.core.seeds import derive
from retcon.engine.types import Generation, SamplingParams
from retcon.tasks.numbers import NumberProblem, Step
from retcon.tasks.teacher_code import PROGRAMS

RETRY_FAILURE_RATE = 0.25
WRONG_METHOD_RATE = 0.2


_OBSERVED = {
    "markdown": re.compile(r"<\|im_start\|>tool\n(.*?)<\|im_end\|>", re.DOTALL),
    "hermes": re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What the teacher has seen of a call: what it printed, and whether that is the number that it asked for."""

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


def reply(problem: NumberProblem, seen: Sequence[Seen], rng: random.Random) -> tuple[str, str | None]:
    """The teacher's next turn after what it has seen: its words, and its code unless this is the answer."""
    values = [s.output for s in seen if s.worked]
    after_error = bool(seen) and not seen[-1].worked
    if len(values) >= 2:
        return f"answer: \\boxed{{{values[1]}}}", None
    if not values:
        step, lead = problem.first, "first find x."
    else:
        args = list(problem.second.args)
        args[problem.second.x_at or 0] = int(values[0])
        step, lead = Step(problem.second.operation, tuple(args), None), f"now x is {values[0]}."
    if after_error:
        lead = "try again."
    return lead, write_code(step, rng, after_error=after_error)


class Teacher:
    """Engine that plays the teacher; `problems` gives the problem of each request id.

    It knows no log-probs. Raises EngineError when asked to score.
    """

    def __init__(self, problems: Mapping[str, NumberProblem], chat: Chat) -> None:
        self._problems = problems
        self._chat = chat

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        tokenizer = self._chat.tokenizer
        seen = [Seen(_is_number(o), o) for o in _OBSERVED[self._chat.style].findall(tokenizer.decode(ids))]
        words, code = reply(self._problems[request_id], seen, random.Random(derive(params.seed, "teacher")))
        text = words if code is None else f"{words}\n{self._call(code)}"
        written = (*tokenizer.encode(text), tokenizer.special_id(TURN_END))
        if len(written) > params.max_tokens:
            return Generation(written[: params.max_tokens], None, "length")
        return Generation(written, None, "stop")

    def _call(self, code: str) -> str:
        if self._chat.style == "hermes":
            return hermes.render_call("python", {"code": code})
        return markdown.render_call(code)

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> Sequence[float]:
        raise EngineError("the teacher has no probabilities: nothing it wrote can be scored")

    async def release(self, request_id: str) -> None:
        """Nothing is kept."""


def _is_number(text: str) -> bool:
    return text.strip().removeprefix("-").isdecimal()
