"""What a rollout begins with."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from playing import LIMITS, TASK, call, play
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.types import history_ids
from retcon.engine.kinds.scripted import ScriptedEngine
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


def test_what_has_been_said_and_done_stands_in_place_of_a_prompt_made_of_the_task() -> None:
    before = play([call("a"), "It is 42."]).trajectory
    after = replace(before, prompt=Chat(ByteTokenizer()).prompt("And 7 times 8?"), turns=before.turns[:1])
    engine = ScriptedEngine(ByteTokenizer(), ["It is 56."])
    made = asyncio.run(
        run_rollout(TASK, RolloutContext(engine, Chat(engine.tokenizer), {}, LIMITS), id="t", seed=0, after=after)
    )
    assert (made.prompt, made.turns[:1], len(made.turns)) == (after.prompt, after.turns, 2)
    assert engine.seen == [("t", history_ids(after))]
