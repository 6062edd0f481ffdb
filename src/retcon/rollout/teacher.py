"""A teacher as an engine, so that its demonstrations come out of the very loop that a model goes through."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from retcon.chat.chat import Chat
from retcon.core.errors import EngineError
from retcon.core.seeds import derive
from retcon.engine.types import Generation, SamplingParams
from retcon.tasks.types import Lesson


class Teacher:
    """Engine that plays a teacher; `lessons` gives the lesson of each request id.

    It reads what tools printed from the ids, as a model would. It knows no log-probs: raises EngineError when asked to
    score.
    """

    def __init__(self, lessons: Mapping[str, Lesson], chat: Chat) -> None:
        self._lessons = lessons
        self._chat = chat

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        printed = self._chat.observations_in(ids)
        words, code = self._lessons[request_id](printed, random.Random(derive(params.seed, "teacher")))
        return as_generation(self._chat, words, code, params.max_tokens)

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> Sequence[float]:
        raise EngineError("the teacher has no probabilities: nothing it wrote can be scored")

    async def release(self, request_id: str) -> None:
        """Nothing is kept."""


def as_generation(chat: Chat, words: str, code: str | None, max_tokens: int) -> Generation:
    """What somebody wrote, as the chat's model would have sampled it: words, then a call of `python` unless code is
    None; cut off at `max_tokens`, without log-probs."""
    written = chat.wrote(words, [] if code is None else [("python", {"code": code})]).ids or ()
    if len(written) > max_tokens:
        return Generation(written[:max_tokens], None, "length")
    return Generation(written, None, "stop")
