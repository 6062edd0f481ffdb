"""A turn costs what it adds, however long the conversation is: what goes through the tokenizer is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from conversing import NAMES, TOOLS, chat_of, controls_of
from playing import TASK
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.engine.types import Generation, SamplingParams
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.rollout.loop import run_rollout
from retcon.tools.scripted import ScriptedTool

TURNS = (100, 400)


class Counting(ByteTokenizer):
    """Counts the characters that are encoded, those of what was sampled apart, and the ids that are decoded."""

    def __init__(self, controls: Sequence[str]) -> None:
        super().__init__(controls)
        self.encoded = self.decoded = 0
        self.sampled_again = False

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        self.encoded += len(text)
        self.sampled_again |= "SAMPLED" in text
        return super().encode(text, special=special)

    def decode(self, ids: Sequence[int]) -> str:
        self.decoded += len(ids)
        return super().decode(ids)


class Caller:
    """Engine that calls the tool a number of times, and then answers."""

    def __init__(self, call: Sequence[int], answer: Sequence[int], turns: int) -> None:
        self.call, self.answer, self.left = tuple(call), tuple(answer), turns

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        self.left -= 1
        return Generation(self.call if self.left >= 0 else self.answer, None, "stop")

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> Sequence[float]:
        return [0.0] * (len(ids) - start)

    async def release(self, request_id: str) -> None:
        """Nothing is kept."""


@pytest.mark.parametrize("family", NAMES)
def test_four_times_the_turns_cost_four_times_as_much(family: str) -> None:
    costs: list[tuple[int, int]] = []
    for turns in TURNS:
        tokenizer, known = Counting(controls_of(family)), chat_of(family)
        chat = Chat(tokenizer, tools=TOOLS, framing=known.framing, family=known.family)
        engine = Caller(chat.render_turn("SAMPLED", [("python", {"code": "1"})]).ids, chat.render_turn("x").ids, turns)
        tokenizer.encoded, tokenizer.decoded, tokenizer.sampled_again = 0, 0, False
        made = asyncio.run(
            run_rollout(
                TASK,
                RolloutContext(
                    engine,
                    chat,
                    {"python": ScriptedTool(lambda code: ("seen " * 20, "ok", None))},
                    RolloutLimits(10**7, 10**4),
                    SamplingParams(max_tokens=1000),
                ),
                id="t",
                seed=0,
            )
        )
        assert len(made.turns) == turns + 1
        assert not tokenizer.sampled_again
        costs.append((tokenizer.encoded, tokenizer.decoded))
    ratio = TURNS[1] / TURNS[0]
    for short, long in zip(*costs, strict=True):
        assert long < 1.05 * ratio * short
