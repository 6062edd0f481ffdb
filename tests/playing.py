"""Rollouts over the scripted engine, with bytes for ids: what the tests of the loop and of repairs play."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.types import Status, Trajectory, Turn
from retcon.engine.scripted import Reply, ScriptedEngine
from retcon.engine.types import SamplingParams
from retcon.purify.types import Repair
from retcon.rollout.limits import Limits
from retcon.rollout.loop import rollout
from retcon.tasks.types import Task
from retcon.tools.scripted import Answer, ScriptedTool

TASK = Task("t", "What is 6 times 7?", "42")
LIMITS = Limits(max_ids=4000, max_turns=6, lookahead_ids=4000)


def call(code: str, reasoning: str = "") -> str:
    """What a model writes that thinks `reasoning` and runs `code`."""
    return f"{reasoning}```python\n{code}\n```"


@dataclass
class Play:
    trajectory: Trajectory
    engine: ScriptedEngine
    tool: ScriptedTool

    @property
    def turns(self) -> tuple[Turn, ...]:
        return self.trajectory.turns

    @property
    def texts(self) -> list[str]:
        """What the model wrote in each committed turn, without the end of turn."""
        return [written(turn) for turn in self.turns]

    def prompt(self, n: int) -> str:
        """What the engine was given for its n-th generation."""
        return ByteTokenizer().decode(self.engine.seen[n][1])


def written(turn: Turn) -> str:
    return turn.text.removesuffix("<|im_end|>")


def play(
    replies: Sequence[Reply] | Callable[[str, str, int], str],
    outcomes: Mapping[str, Status | Answer],
    *,
    repair: Repair | None = None,
    limits: Limits = LIMITS,
    seed: int = 7,
    max_tokens: int = 2000,
) -> Play:
    """One rollout. outcomes: of code, by status or by whole answer; code that is not named is ok."""

    def answer(code: str) -> Answer:
        outcome = outcomes.get(code, "ok")
        return (f"<{outcome}>", outcome, None) if isinstance(outcome, str) else outcome

    tokenizer = ByteTokenizer()
    engine, tool = ScriptedEngine(tokenizer, replies), ScriptedTool(answer)
    sampling = SamplingParams(max_tokens=max_tokens)
    trajectory = asyncio.run(
        rollout(
            TASK,
            id="t/0/0",
            engine=engine,
            tools={"python": tool},
            chat=Chat(tokenizer),
            limits=limits,
            sampling=sampling,
            seed=seed,
            repair=repair,
        )
    )
    return Play(trajectory, engine, tool)
