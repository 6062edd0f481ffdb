"""The loop over the scripted engine: what it asks for, what it commits and when it ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from playing import LIMITS, TASK, call, play
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.errors import EngineError
from retcon.core.types import Segment, Trajectory, Turn, history_ids, to_sample
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.engine.types import Generation
from retcon.purify.saar import Saar
from retcon.rollout.context import RolloutContext, RolloutLimits, is_purified
from retcon.rollout.group import rollout_group, rollout_groups
from retcon.rollout.loop import TurnLookahead, run_rollout, truncate_to
from retcon.tasks.types import Task
from retcon.tools.scripted import ScriptedTool

DONE = "It is 42."


def test_a_rollout_is_what_the_engine_saw():
    p = play([call("a"), call("b"), DONE], {})
    ids = history_ids(p.trajectory)
    assert p.texts == [call("a"), call("b"), DONE]
    for _, seen in p.engine.seen:
        assert ids[: len(seen)] == seen
    last = p.engine.seen[-1][1]
    assert ByteTokenizer().decode(ids[len(last) :]) == DONE + "<|im_end|>"
    assert p.trajectory.stop == "answer"
    assert p.trajectory.text == ByteTokenizer().decode(ids)
    assert "<|im_end|><|im_end|>" not in p.trajectory.text, "a turn that ended well is closed once"


def test_the_mask_is_on_what_was_sampled():
    p = play([call("a"), DONE], {})
    sample = to_sample(p.trajectory)
    assert sample.source == p.trajectory.id
    learnt = [i for i, m in zip(sample.ids, sample.mask, strict=True) if m]
    assert ByteTokenizer().decode(learnt) == f"{call('a')}<|im_end|>{DONE}<|im_end|>"
    assert sample.logprobs == tuple(
        lp if m else None
        for lp, m in zip((0.0, *asyncio.run(p.engine.score("", sample.ids, 1))), sample.mask, strict=True)
    )


def test_every_generation_has_a_random_stream_of_its_own_that_hangs_on_the_seed():
    first, again, other = (play([call("a"), call("b"), DONE], {}, seed=s) for s in (1, 1, 2))
    seeds = [params.seed for params in first.engine.params]
    assert len(set(seeds)) == 3
    assert seeds == [params.seed for params in again.engine.params]
    assert not set(seeds) & {params.seed for params in other.engine.params}


def test_after_a_failure_the_next_turn_has_the_same_stream_whether_it_was_repaired_or_not():
    replies = [call("bad"), call("bat"), call("c"), DONE]
    off, on = (play(replies, {"bad": "error"}, repair=r) for r in (None, Saar()))
    assert off.engine.params[1].seed == on.engine.params[2].seed  # the second turn of each
    assert on.engine.params[1].seed not in {params.seed for params in off.engine.params}


def test_attempts_have_streams_and_calls_of_their_own_at_every_turn():
    script = [call("bad"), call("good"), call("bad"), call("worse"), call("good"), DONE]
    p = play(script, {"bad": "error", "worse": "error"}, repair=Saar())
    assert len({params.seed for params in p.engine.params}) == len(script)
    made = [attempt.calls[0].id for turn in p.turns for attempt in turn.abandoned]
    assert made == ["0.0.0", "0.1.0", "1.0.0", "1.1.0", "1.2.0"]


def test_turns_run_out_with_the_last_call_run():
    p = play([call("a"), call("b"), DONE], {}, limits=replace(LIMITS, max_turns=2))
    assert p.trajectory.stop == "turns"
    assert p.tool.executed == ["a", "b"]
    assert [len(t.observations) for t in p.turns] == [1, 1]


def test_a_generation_that_is_cut_off_runs_no_call():
    whole = play([call("a"), DONE], {})
    first = len(whole.engine.seen[0][1])
    p = play([call("a"), DONE], {}, limits=replace(LIMITS, max_tokens=first + len(call("a"))))
    assert p.trajectory.stop == "length"
    assert (p.turns[0].text, p.turns[0].calls, p.tool.executed) == (call("a"), (), [])
    assert len(history_ids(p.trajectory)) == first + len(call("a"))


def test_ids_run_out_with_an_observation():
    whole = play([call("a"), DONE], {})
    first = len(whole.engine.seen[1][1])
    p = play([call("a"), DONE], {}, limits=replace(LIMITS, max_tokens=first))
    assert (p.trajectory.stop, len(p.turns), p.tool.executed) == ("length", 1, ["a"])
    p = play([call("a"), DONE], {}, limits=replace(LIMITS, max_tokens=first + 1))
    assert (p.trajectory.stop, p.turns[1].text) == ("length", DONE[0])


@pytest.mark.parametrize("repair", [None, Saar(), Saar(lookahead="first")])
@pytest.mark.parametrize("status", ["ok", "error"])
def test_no_history_has_more_ids_than_the_limit_whatever_tools_print(repair, status):
    def reply(_: str, __: str, n: int) -> str:
        return call("a") if n < 4 else DONE

    answer = ("é" * 100, status, None)
    whole = play(reply, {"a": answer}, repair=repair)
    start = len(whole.engine.seen[0][1]) + len(call("a")) + 1
    for limit in range(start, start + 60):
        limits = replace(LIMITS, max_tokens=limit, lookahead_tokens=500)
        p = play(reply, {"a": answer}, repair=repair, limits=limits)
        ids = history_ids(p.trajectory)
        assert (p.trajectory.stop, len(ids)) == ("length", limit)
        assert ids == history_ids(whole.trajectory)[:limit]
        assert p.turns[0].observations == whole.turns[0].observations
        assert to_sample(p.trajectory).mask[-(limit - start) or limit :].count(1) == 0


def test_what_is_cut_off_at_the_limit_is_reported_by_its_ids():
    whole = play([call("a"), DONE], {"a": ("x" * 50, "ok", None)})
    limit = len(whole.engine.seen[0][1]) + len(call("a")) + 30
    cut = play([call("a"), DONE], {"a": ("x" * 50, "ok", None)}, limits=replace(LIMITS, max_tokens=limit)).trajectory
    assert len(history_ids(cut)) == limit
    for segment in cut.segments:
        assert segment.text == ByteTokenizer().decode(segment.ids)


def test_a_prompt_that_leaves_no_room_is_not_asked():
    p = play([DONE], {}, limits=replace(LIMITS, max_tokens=10))
    assert (p.trajectory.stop, p.turns, p.engine.seen, p.engine.released) == ("length", (), [], ["t/0/0"])


def test_a_prompt_that_leaves_room_for_one_id_is_asked_for_it():
    length = len(play([DONE], {}).engine.seen[0][1])
    full = play([DONE], {}, limits=replace(LIMITS, max_tokens=length))
    assert (full.trajectory.stop, full.engine.seen) == ("length", [])
    (asked,) = play([DONE], {}, limits=replace(LIMITS, max_tokens=length + 1)).engine.params
    assert asked.max_tokens == 1


def test_the_model_is_told_the_tasks_system_message():
    engine = ScriptedEngine(ByteTokenizer(), [DONE])
    context = RolloutContext(engine, Chat(ByteTokenizer()), {}, LIMITS)
    asyncio.run(run_rollout(replace(TASK, system="Be brief."), context, id="r", seed=0))
    ((_, prompt),) = engine.seen
    assert "Be brief." in ByteTokenizer().decode(prompt)


def test_a_tool_that_does_not_exist_is_answered_with_the_nearest():
    hermes = '<tool_call>\n{"name": "pyton", "arguments": {"code": "a"}}\n</tool_call>'
    tool = ScriptedTool({})
    trajectory = run([hermes, DONE], tool=tool, style="hermes")
    (observation,) = trajectory.turns[0].observations
    assert (observation.status, observation.error_type) == ("malformed", "UnknownTool")
    assert "did you mean 'python'?" in observation.text
    assert observation.text in trajectory.text
    assert tool.executed == []


def test_a_malformed_call_reaches_no_tool():
    p = play(["```python\nprint(1", DONE], {})
    assert [(o.status, o.text) for o in p.turns[0].observations] == [("malformed", "malformed call")]
    assert p.tool.executed == []
    assert p.texts[1] == DONE


def test_an_infrastructure_fault_of_a_tool_ends_the_rollout_with_its_turns():
    p = play([call("a"), call("lost"), DONE], {"lost": "infrastructure"})
    assert (p.trajectory.stop, len(p.turns), p.trajectory.failures) == ("infrastructure", 2, 0)


@pytest.mark.parametrize("fault", [ConnectionResetError("gone"), TimeoutError("slow")])
def test_an_engine_that_cannot_be_reached_ends_the_rollout_with_its_turns(fault):
    p = play([call("a"), fault], {})
    assert (p.trajectory.stop, p.texts, p.engine.released) == ("infrastructure", [call("a")], ["t/0/0"])


class CannotScore(ScriptedEngine):
    async def score(self, request_id, ids, start):
        raise ConnectionError("gone")


def test_a_fault_while_scoring_leaves_the_failure_with_its_attempts():
    engine = CannotScore(ByteTokenizer(), [call("bad"), call("bat"), DONE])
    trajectory = run(engine, tool=ScriptedTool(lambda code: ("", "error" if code == "bad" else "ok", None)))
    assert trajectory.stop == "infrastructure"
    (turn,) = trajectory.turns
    assert (turn.repair.decision, turn.repair.attempts, turn.failures) == ("unrepaired", 1, 1)
    assert [attempt.calls[0].code for attempt in turn.abandoned] == ["bat"]
    to_sample(trajectory)  # nothing is left without log-probs


class Everything:
    """A repair that finds fault with all turns, and commits each with what came next, spliced without scores."""

    attempts = 1

    def failed(self, turn):
        return True

    async def repair(self, turn, lookahead):
        following = await lookahead.attempt([turn])
        return [replace(t, segments=tuple(map(unscored, t.segments))) for t in (turn, following)]


def unscored(segment):
    return replace(segment, kind="spliced", logprobs=None) if segment.kind == "sampled" else segment


def test_all_that_a_repair_leaves_unscored_is_scored_in_its_place():
    p = play([call("a"), DONE], {}, repair=Everything())
    generated = play([call("a"), DONE], {})
    assert to_sample(p.trajectory).logprobs == to_sample(generated.trajectory).logprobs
    assert {s.kind for t in p.turns for s in t.generated} == {"spliced"}


def test_no_repair_is_asked_about_an_infrastructure_fault():
    p = play([call("lost")], {"lost": "infrastructure"}, repair=Everything())
    assert (p.trajectory.stop, len(p.turns)) == ("infrastructure", 1)


def test_what_fits_leaves_room_to_go_on_except_for_an_answer():
    p = play([call("a"), DONE], {})
    step, answer = p.turns
    used = len(history_ids(p.trajectory))
    prompt = used - len([i for t in p.turns for s in t.segments for i in s.ids])

    def fits(*turns, max_tokens, max_turns=2):
        limits = RolloutLimits(max_tokens, max_turns, lookahead_tokens=500)
        return TurnLookahead(None, limits, history=range(prompt), number=0, state=None).fits(*turns)

    assert fits(step, answer, max_tokens=used)
    assert not fits(step, answer, max_tokens=used - 1)
    after_step = len(p.engine.seen[1][1])
    assert fits(step, max_tokens=after_step + 1)
    assert not fits(step, max_tokens=after_step)
    assert not fits(step, answer, max_tokens=used, max_turns=1)


def test_a_turn_that_ends_otherwise_is_closed_by_the_template():
    p = play([call("a") + "<|endoftext|>", DONE], {})
    assert p.turns[0].text.endswith("<|endoftext|>")
    assert f"{call('a')}<|endoftext|><|im_end|>\n<|im_start|>tool" in p.prompt(1)


def test_a_request_that_the_engine_refuses_is_an_error_and_the_engine_is_asked_to_release():
    engine = ScriptedEngine(ByteTokenizer(), [call("a")])
    with pytest.raises(EngineError, match="generation 2 of a script of 1"):
        run(engine)
    assert engine.released == ["r"]


def test_a_cancelled_rollout_is_released():
    class Stuck(ScriptedEngine):
        async def generate(self, request_id, ids, params) -> Generation:
            self.started.set()
            await asyncio.Event().wait()
            raise AssertionError

    async def cancel() -> Stuck:
        engine = Stuck(ByteTokenizer(), [])
        engine.started = asyncio.Event()
        task = asyncio.create_task(start(engine))
        await engine.started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return engine

    assert asyncio.run(cancel()).released == ["r"]


@pytest.mark.parametrize("wrong", [(0, 1, 0), (1, 0, 0), (1, 1, -1)])
def test_limits_are_checked(wrong):
    with pytest.raises(ValueError, match="max_turns"):
        RolloutLimits(*wrong)
    assert RolloutLimits(1, 1, 0).max_tokens == 1


def test_the_provenance_says_what_was_armed():
    made = play([DONE], {}, repair=Saar(), seed=3).trajectory.provenance
    assert (made.seed, made.purified) == (3, True)
    assert play([DONE], {}).trajectory.provenance.purified is False


def start(engine, *, tool=None, style="markdown"):
    tools = {"python": tool or ScriptedTool(lambda _: ("", "ok", None))}
    chat = Chat(engine.tokenizer, style=style)
    return run_rollout(TASK, RolloutContext(engine, chat, tools, LIMITS, repair=Saar()), id="r", seed=0)


def run(engine, **how) -> Trajectory:
    engine = engine if isinstance(engine, ScriptedEngine) else ScriptedEngine(ByteTokenizer(), engine)
    return asyncio.run(start(engine, **how))


def grade(task: Task, trajectory: Trajectory) -> Trajectory:
    answer = trajectory.turns[-1].text.removesuffix("<|im_end|>")
    return replace(trajectory, answer=answer, reward=float(task.answer in answer))


STATUS = {"bad": "error", "lost": "infrastructure"}


def of_groups(engine, *, count=6, **changed):
    """A context, and what else a group needs."""
    tools = {"python": ScriptedTool(lambda code: ("", STATUS.get(code, "ok"), None))}
    context = RolloutContext(engine, Chat(ByteTokenizer()), tools, LIMITS, **changed)
    return {"context": context, "count": count, "seed": 5, "step": 2, "grade": grade}


def test_a_group_is_rolled_out_at_once_and_graded_in_order():
    def reply(request_id: str, text: str, n: int) -> str:
        index = int(request_id.rsplit("/", maxsplit=1)[-1])
        return [call("bad"), call("lost") if index == 4 else call("bat"), DONE if index % 2 else "No."][n]

    engine = ScriptedEngine(ByteTokenizer(), reply)
    settings = of_groups(engine, repair=Saar(), probability=0.5)
    group = asyncio.run(rollout_group(TASK, **settings))
    assert [t.id for t in group] == [f"t/2/{n}" for n in range(6)]
    assert [t.reward for t in group] == [0, 1, 0, 1, None, 1]
    assert [t.provenance.purified for t in group] == [is_purified(0.5, 5, 2, "t", n) for n in range(6)]
    assert {t.provenance.purified for t in group} == {True, False}
    assert len({t.provenance.seed for t in group}) == 6
    assert [name for name, _ in engine.seen[:6]] == [t.id for t in group]  # none waits for another


def test_seeds_of_a_group_do_not_hang_on_what_is_purified():
    groups = []
    for probability in (0.0, 1.0):
        engine = ScriptedEngine(ByteTokenizer(), [DONE])
        groups.append(asyncio.run(rollout_group(TASK, **of_groups(engine, repair=Saar(), probability=probability))))
    assert [t.provenance.seed for t in groups[0]] == [t.provenance.seed for t in groups[1]]


def test_the_random_stream_of_a_rollout_hangs_on_seed_step_task_and_index_alone():
    def seeds(task: Task = TASK, **changed: int) -> list[int | None]:
        engine = ScriptedEngine(ByteTokenizer(), [DONE])
        group = asyncio.run(rollout_group(task, **(of_groups(engine, count=2) | changed)))
        return [t.provenance.seed for t in group]

    assert seeds() == seeds()
    of_all = [seeds(), seeds(seed=6), seeds(step=3), seeds(replace(TASK, id="u")), seeds(seed=2, step=5)]
    assert len({seed for group in of_all for seed in group}) == 10


def test_a_group_says_where_each_rollout_is_from():
    engine = ScriptedEngine(ByteTokenizer(), [DONE])
    group = asyncio.run(rollout_group(TASK, **of_groups(engine, count=3, model="m")))
    assert [(t.provenance.step, t.provenance.index, t.provenance.model) for t in group] == [
        (2, n, "m") for n in range(3)
    ]


def test_groups_of_several_tasks_come_in_order():
    engine = ScriptedEngine(ByteTokenizer(), [call("a"), DONE])
    tasks = [TASK, replace(TASK, id="u", answer="43")]
    groups = asyncio.run(rollout_groups(tasks, **of_groups(engine, count=2)))
    assert [[t.id for t in g] for g in groups] == [["t/2/0", "t/2/1"], ["u/2/0", "u/2/1"]]
    assert [[t.reward for t in g] for g in groups] == [[1, 1], [0, 0]]
    assert [name for name, _ in engine.seen[:4]] == [t.id for g in groups for t in g]


def test_an_error_in_one_rollout_ends_the_others_cleanly():
    class OneRefuses(ScriptedEngine):
        async def generate(self, request_id, ids, params):
            if request_id.endswith("/1"):
                raise EngineError("too long")
            await asyncio.Event().wait()
            raise AssertionError

    async def released() -> list[str]:
        engine = OneRefuses(ByteTokenizer(), [])
        with pytest.raises(EngineError, match="too long"):
            await rollout_groups([TASK], **of_groups(engine, count=3))
        return sorted(engine.released)

    assert asyncio.run(released()) == ["t/2/0", "t/2/1", "t/2/2"]


def test_a_script_begins_anew_for_a_rollout_of_the_same_name():
    engine = ScriptedEngine(ByteTokenizer(), [call("bat"), DONE])
    first, again = run(engine), run(engine)
    assert first.text == again.text
    assert first.text.count("bat") == 1


def test_what_is_too_much_is_cut_off_the_last_of_several_turns():
    one, last = (Turn((Segment("sampled", text, tuple(text.encode())),)) for text in ("first", "second"))
    assert [turn.text for turn in truncate_to([one, last], 8, Chat(ByteTokenizer()))] == ["first", "sec"]


# What a rollout begins with.


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
