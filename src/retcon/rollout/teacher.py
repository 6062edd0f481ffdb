"""The weak teacher as an engine, so that its demonstrations come out of the very loop that a model goes through."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

from retcon.chat import hermes, markdown
from retcon.chat.chat import Chat
from retcon.chat.types import TURN_END
from retcon.core.errors import EngineError
from retcon.core.seeds import derive
from retcon.engine.types import Generation, SamplingParams
from retcon.tasks.numbers import NumberProblem
from retcon.tasks.teacher import WEAK, Rates, Seen, reply

_OBSERVED = {
    "markdown": re.compile(r"<\|im_start\|>tool\n(.*?)<\|im_end\|>", re.DOTALL),
    "hermes": re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL),
}


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
        tokenizer = self._chat.tokenizer
        seen = [Seen(_is_number(o), o) for o in _OBSERVED[self._chat.style].findall(tokenizer.decode(ids))]
        words, code = reply(
            self._problems[request_id], seen, random.Random(derive(params.seed, "teacher")), self._rates
        )
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
