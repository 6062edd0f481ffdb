"""What a rollout begins with."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from playing import LIMITS, TASK
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.engine.scripted import ScriptedEngine
from retcon.rollout.context import RolloutContext
from retcon.rollout.loop import run_rollout


def test_the_system_message_and_what_was_said_before_stand_before_the_question() -> None:
    engine = ScriptedEngine(ByteTokenizer(), ["It is 42."])
    task = replace(TASK, system="Be brief.", before=(("user", "Hi."), ("assistant", "Hello.")))
    asyncio.run(run_rollout(task, RolloutContext(engine, Chat(engine.tokenizer), {}, LIMITS), id="t", seed=0))
    shown = engine.tokenizer.decode(engine.seen[0][1])
    places = [shown.find(said) for said in ("Be brief.", "Hi.", "Hello.", TASK.question)]
    assert places == sorted(places)
    assert min(places) > 0
