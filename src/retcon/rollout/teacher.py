"""The weak teacher as an engine, so that its demonstrations come out of the very loop that a model goes through."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from retcon.chat.chat import Chat
from retcon.core.errors import EngineError
from retcon.core.seeds import derive
from retcon.engine.types import Generation, SamplingParams
from retcon.tasks.numbers import NumberProblem
from retcon.tasks.teacher import WEAK, Rates, Seen, reply


class Teacher:
    """Engine that plays the teacher; `problems` gives the problem of each request id.

    It reads what tools printed from the ids, as a model would. It knows no log-probs: raises EngineError when asked to
    score.
    """

    def __init__(self, problems: Mapping[str, NumberProblem], chat: Chat, rates: Rates = WEAK) -> None:
        self._problems = problems
        self._chat = chat
        self._rates = rates

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        seen = [Seen(_is_number(o), o) for o in self._chat.observations_in(ids)]
        words, code = reply(
            self._problems[request_id], seen, random.Random(derive(params.seed, "teacher")), self._rates
        )
        written = self._chat.wrote(words, [] if code is None else [("python", {"code": code})]).ids or ()
        if len(written) > params.max_tokens:
            return Generation(written[: params.max_tokens], None, "length")
        return Generation(written, None, "stop")

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> Sequence[float]:
        raise EngineError("the teacher has no probabilities: nothing it wrote can be scored")

    async def release(self, request_id: str) -> None:
        """Nothing is kept."""


def _is_number(text: str) -> bool:
    return text.strip().removeprefix("-").isdecimal()
