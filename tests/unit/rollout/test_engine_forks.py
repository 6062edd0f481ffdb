"""What an engine that keeps prefixes is told when a rollout branches."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace

from playing import LIMITS, TASK, call, run_python
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.rollout.context import RolloutContext
from retcon.rollout.group import rollout_group
from retcon.rollout.strategy import Measured, Point
from retcon.tools.scripted import ScriptedSessions


@dataclass(frozen=True)
class AtTheSecondTurn:
    measures: bool = False
    entropy_tokens: int = 4

    def from_start(self, count: int, measured: Measured | None) -> int:
        return 1

    def branches(self, point: Point, draw: random.Random) -> int:
        return int(point.turn == 1)


class Forking(ScriptedEngine):
    def __init__(self) -> None:
        super().__init__(ByteTokenizer(), [call("n = 1"), call("n + 1"), "It is 2."])
        self.forks: list[tuple[str, str, int]] = []

    def fork(self, request_id: str, source_id: str, length: int) -> None:
        self.forks.append((request_id, source_id, length))


def test_an_engine_is_told_where_a_branch_begins() -> None:
    engine, tool = Forking(), ScriptedSessions(run_python)
    context = RolloutContext(engine, Chat(engine.tokenizer), {"python": tool}, LIMITS, strategy=AtTheSecondTurn())
    work = rollout_group(TASK, context, count=2, seed=0, step=1, grade=lambda _, made: replace(made, reward=1.0))
    parent, branch = asyncio.run(work)
    assert branch.branch is not None
    assert engine.forks == [(branch.id, parent.id, branch.branch.tokens)]
