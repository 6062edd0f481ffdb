"""What a rollout tells while it runs, and what its record keeps of what the engine told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from conversing import chat_of
from playing import LIMITS, TASK, call, play
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.types import Observation, Segment, ToolCall, Trajectory, Turn
from retcon.engine.kinds.scripted import Reply, ScriptedEngine
from retcon.engine.types import Generation, SamplingParams
from retcon.purify.kinds.describe import Describe
from retcon.purify.saar import Saar
from retcon.rollout.context import RolloutContext
from retcon.rollout.lengths import count_prompt_ids
from retcon.rollout.loop import TurnLookahead, TurnSampler, run_rollout
from retcon.tools.scripted import ScriptedTool


class Telling(ScriptedEngine):
    """Tells entropies, and which weights sampled."""

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        made = await super().generate(request_id, ids, params)
        return replace(made, entropies=(1.0, 3.0), versions=(7,) * len(made.ids))


def context(replies: Sequence[Reply], *, fails: str = "", max_tokens: int = 2000) -> RolloutContext:
    tool = ScriptedTool(lambda code: (code, "error" if code == fails else "ok", None))
    engine = Telling(ByteTokenizer(), replies)
    sampling = SamplingParams(max_tokens=max_tokens)
    return RolloutContext(engine, Chat(engine.tokenizer), {"python": tool}, LIMITS, sampling, Saar())


def rolled(where: RolloutContext, told: list[Turn] | None = None) -> Trajectory:
    heard = [] if told is None else told
    return asyncio.run(run_rollout(TASK, where, id="t/0/0", seed=0, on_turn=heard.append))


def test_each_turn_is_told_as_it_is_committed() -> None:
    told: list[Turn] = []
    made = rolled(context([call("bad"), call("bat"), call("c"), "Done."], fails="bad"), told)
    assert tuple(told) == made.turns
    assert len(told) == 3


def test_who_watches_is_told_what_came_before_each_turn_at_its_first_try_and_before_its_calls_run() -> None:
    where, seen = context([call("bad"), call("bat"), call("c"), "Done."], fails="bad"), []

    async def watch(history: Trajectory, generation: Generation) -> None:
        seen.append((history, where.chat.tokenizer.decode(generation.ids), list(where.tools["python"].executed)))  # type: ignore[union-attr]

    made = asyncio.run(run_rollout(TASK, where, id="t/0/0", seed=0, watch=watch))
    assert [history for history, _, _ in seen] == [
        Trajectory("t/0/0", "t", made.prompt, made.turns[:n]) for n in (0, 1, 2)
    ]
    assert [written for _, written, _ in seen] == [f"{text}<|im_end|>" for text in (call("bad"), call("c"), "Done.")]
    assert [ran for _, _, ran in seen] == [[], ["bad", "bat"], ["bad", "bat", "c"]]


def test_the_reason_for_a_lost_rollout_is_what_the_engine_said(caplog: pytest.LogCaptureFixture) -> None:
    where = context([call("a"), ConnectionError("the line is dead")])
    assert rolled(where).stop == "infrastructure"
    assert where.faults.first.endswith("the engine cannot be reached: the line is dead")
    assert [record.getMessage() for record in caplog.records] == [f"rollout t/0/0 is lost: {where.faults.first}"]


def test_turns_keep_their_entropy_and_the_versions_of_the_weights_that_sampled_them() -> None:
    for replies, max_tokens in (([call("a"), "Done."], 2000), (["It goes on and on."], 5)):
        turns = rolled(context(replies, max_tokens=max_tokens)).turns
        assert [turn.entropy for turn in turns] == [2.0] * len(replies)
        sampled = [s for turn in turns for s in turn.segments if s.kind == "sampled"]
        assert [s.versions for s in sampled] == [(7,) * len(s.ids or ()) for s in sampled]
    assert turns[-1].stop == "length"


def test_a_spliced_turn_is_scored_under_the_rollouts_own_name() -> None:
    where = context([call("bad"), call("bat"), "Done."], fails="bad")
    rolled(where)
    assert [name for name, _, _ in where.engine.scored] == ["t/0/0"]  # type: ignore[attr-defined]


def test_a_described_turn_that_ended_is_not_ended_again() -> None:
    made = play([call("bad"), "It is 42."], {"bad": "error"}, repair=Describe()).trajectory
    assert "<|im_end|><|im_end|>" not in made.text.replace("\n", "")
    assert made.text.count("<|im_end|>") == play([call("good"), "It is 42."]).trajectory.text.count("<|im_end|>")


def told_after(chat: Chat, *written: str) -> str:
    """What stands between what a repair has the turn say, with one call, and the model's next turn."""
    lookahead = TurnLookahead(TurnSampler("t", None, chat, SamplingParams(), 0), LIMITS, (1, 2), 0, None)  # type: ignore[arg-type]
    said = [Segment("sampled", text, tuple(chat.tokenizer.encode(text, special=True))) for text in written]
    told = lookahead.render_observations(said, [ToolCall("0", "python", {}, 0)], [Observation("0", "1", "ok")])
    return "".join(segment.text for segment in told)


def test_a_turn_that_a_repair_writes_is_closed_once_before_what_tools_said() -> None:
    rest = "\n<|im_start|>tool\n1<|im_end|>\n<|im_start|>assistant\n"
    assert told_after(Chat(ByteTokenizer()), "So. ", "Run it.") == "<|im_end|>" + rest
    assert told_after(Chat(ByteTokenizer()), "So. ", "Run it.<|im_end|>") == rest


def test_what_tools_said_names_the_call_as_the_turn_does_that_a_repair_writes() -> None:
    told = told_after(chat_of("listed"), '[TOOL_CALLS][{"name": "python", "arguments": {}, "id": "abc', 'defghi"}]')
    assert '"call_id": "abcdefghi"' in told


def test_what_was_said_before_the_question_counts_in_a_prompts_length() -> None:
    chat = Chat(ByteTokenizer())
    before = replace(TASK, before=(("user", "Hi."), ("assistant", "Hello.")))
    assert count_prompt_ids(chat, before) >= count_prompt_ids(chat, TASK) + len("Hi.Hello.")
