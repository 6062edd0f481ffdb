"""Groups of a part of a task's rollouts, as another trainer asks for them, and groups that are given up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from playing import LIMITS, TASK, call, play, run_python
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.seeds import derive
from retcon.core.types import Observation, ToolCall, ToolSpec, Trajectory, history_ids
from retcon.engine.kinds.scripted import Reply, ScriptedEngine
from retcon.engine.types import SamplingParams
from retcon.purify.saar import Saar
from retcon.rollout.context import MAX_CHARS, MAX_REASONS, Faults, RolloutContext, count_ungraded, is_purified
from retcon.rollout.group import rollout_group
from retcon.rollout.loop import run_rollout
from retcon.rollout.strategy import Measured, Point
from retcon.tasks.types import Task
from retcon.tools.scripted import ScriptedSession, ScriptedSessions, ScriptedTool


@dataclass(frozen=True)
class Everywhere:
    """Branches wherever a rollout may be branched from, once the first has been measured; keeps what it is told."""

    start: int = 1
    many: int = 1
    measures: bool = False
    entropy_tokens: int = 4
    points: list[Point] = field(default_factory=list)
    measured: list[tuple[int, Measured | None]] = field(default_factory=list)
    drawn: list[float] = field(default_factory=list)

    def from_start(self, count: int, measured: Measured | None) -> int:
        self.measured.append((count, measured))
        return self.start

    def branches(self, point: Point, draw: random.Random) -> int:
        self.points.append(point)
        self.drawn.append(draw.random())
        return self.many

    def resume(self, rollouts: Sequence[Trajectory]) -> list[tuple[int, int]]:
        return []


def counting(id: str, text: str, n: int) -> str:
    """Counts up in its session for three turns, then says so."""
    told = text.count("<|im_start|>tool")
    return call(["n = 1", "n = n + 1\nn", "n = n * 10\nn"][told], f"{id}: ") if told < 3 else f"{id} is done."


Replies = Callable[[str, str, int], str]


def context(replies: Replies = counting, **changed: object) -> RolloutContext:
    tokenizer = ByteTokenizer()
    tools: Mapping[str, ScriptedSessions] = {"python": ScriptedSessions(run_python)}
    return replace(RolloutContext(ScriptedEngine(tokenizer, replies), Chat(tokenizer), tools, LIMITS), **changed)


def grown(
    where: RolloutContext, *, count: int, first: int = 0, task: Task = TASK, seed: int = 5, step: int = 2
) -> list[Trajectory]:
    work = rollout_group(
        task, where, count=count, seed=seed, step=step, grade=lambda _, made: replace(made, reward=1.0), first=first
    )
    return asyncio.run(asyncio.wait_for(work, 60))


@pytest.mark.parametrize("branches", [False, True])
def test_rollouts_of_a_task_that_are_made_in_two_groups_are_those_of_one(branches: bool) -> None:
    """Else both groups would have the same rollouts."""
    strategy = Everywhere(start=2) if branches else None
    where = context(repair=Saar(), probability=0.5, strategy=strategy)
    group = grown(where, count=6, first=5)
    assert [t.id for t in group] == [f"t/2/{n}" for n in range(5, 11)]
    assert [t.provenance.index for t in group] == list(range(5, 11))
    assert [t.provenance.seed for t in group] == [derive("rollout", 5, 2, "t", n) for n in range(5, 11)]
    roots = [int((t.branch.root if t.branch else t.id).rpartition("/")[2]) for t in group]
    assert [t.provenance.purified for t in group] == [is_purified(0.5, 5, 2, "t", root) for root in roots]
    assert is_purified(0.5, 5, 2, "t", 0) != is_purified(0.5, 5, 2, "t", 5), "the draw is of its index in the whole"
    assert {root for root in roots if branches} <= {5, 6}
    if not branches:
        assert group == grown(replace(where, engine=context().engine), count=11)[5:]


def test_branches_of_groups_that_begin_later_leave_nothing_behind() -> None:
    where = context(strategy=Everywhere())
    group = grown(where, count=4, first=7)
    assert len([t for t in group if t.branch is not None]) == 3
    (session,) = where.tools["python"].opened  # type: ignore[union-attr]
    assert (session.events[-1], session.kept) == ("close", {})


def test_a_branch_has_as_many_turns_as_any_rollout() -> None:
    group = grown(context(strategy=Everywhere(), limits=replace(LIMITS, max_turns=3)), count=4)
    assert [(t.stop, len(t.turns)) for t in group] == [("turns", 3)] * 4
    assert {t.branch.turns for t in group if t.branch is not None} == {1, 2}


def test_a_strategy_is_told_of_the_trees_first_turn_and_of_the_models_vocabulary() -> None:
    strategy = Everywhere(start=2, measures=True)
    measured, root, *others = grown(context(strategy=strategy), count=8)

    def nats(trajectory: Trajectory, turn: int) -> float:
        return -sum((trajectory.turns[turn].segments[0].logprobs or ())[:4]) / 4

    ((count, told),) = strategy.measured
    assert told is not None
    assert count == 8
    assert (told.first, told.vocabulary) == (pytest.approx(nats(measured, 0)), ByteTokenizer().size)
    assert told.later == pytest.approx([nats(measured, turn) for turn in (1, 2, 3)])
    assert {point.vocabulary for point in strategy.points} == {ByteTokenizer().size}
    for point in strategy.points:
        assert point.first == pytest.approx(nats(root, 0)), "also of branches of branches"
    assert any(t.branch.parent != root.id for t in others if t.branch is not None)
    for one in (t for t in others if t.branch is not None):
        assert one.branch.rise == pytest.approx(one.branch.uncertainty - nats(root, 0))  # type: ignore[union-attr]


def test_where_it_branches_is_drawn_from_seed_step_task_and_the_rollouts_index_in_the_whole() -> None:
    def drawn(start: int, **of: Any) -> set[float]:
        strategy = Everywhere(start=start, many=0)
        grown(context(strategy=strategy), count=2 * start, **of)
        assert len(set(strategy.drawn)) == 3 * start, "three points each"
        return set(strategy.drawn)

    whole = drawn(5)
    assert drawn(2, first=3) < whole
    others = [{"seed": 6}, {"step": 3}, {"task": replace(TASK, id="u")}, {"seed": 2, "step": 5}]
    assert all(whole.isdisjoint(drawn(5, **of)) for of in others)


def test_the_engine_is_asked_for_the_entropies_of_what_the_strategy_looks_at() -> None:
    where = context(strategy=Everywhere(entropy_tokens=7), sampling=SamplingParams(temperature=0.5, max_tokens=900))
    grown(where, count=2)
    assert {(asked.entropies, asked.temperature, asked.max_tokens) for asked in where.engine.params} == {(7, 0.5, 900)}  # type: ignore[attr-defined]


def test_a_tree_whose_tools_keep_no_state_is_as_large_as_the_strategy_has_it() -> None:
    tools = {"python": ScriptedTool(lambda code: ("1", "ok", None))}
    root, *others = grown(context(strategy=Everywhere(many=2), tools=tools), count=17)
    assert [t.branch and t.branch.root for t in others] == [root.id] * 16


def test_of_two_rollouts_the_first_is_measured_and_the_other_begins_with_the_prompt() -> None:
    strategy = Everywhere(measures=True)
    assert [t.branch for t in grown(context(strategy=strategy), count=2)] == [None, None]
    assert [(count, told is not None) for count, told in strategy.measured] == [(2, True)]


class Stuck(ScriptedEngine):
    """Never answers from the second turn on."""

    def __init__(self) -> None:
        super().__init__(ByteTokenizer(), counting)
        self.waiting = asyncio.Event()
        self.cleaned: list[str] = []

    async def generate(self, request_id, ids, params):
        if "tool" in self.tokenizer.decode(ids):
            self.waiting.set()
            await asyncio.Event().wait()
        return await super().generate(request_id, ids, params)

    async def release(self, request_id: str) -> None:
        for _ in range(3):  # as over a connection
            await asyncio.sleep(0)
        self.cleaned.append(request_id)


@pytest.mark.parametrize("branches", [False, True])
def test_a_group_that_is_given_up_is_over_when_that_is_known(branches: bool) -> None:
    """Ctrl-C: whoever waits for it closes the engine and the sandbox next."""

    async def given_up() -> tuple[list[str], list[str]]:
        engine = Stuck()
        where = context(engine=engine, strategy=Everywhere(start=3) if branches else None)
        work = rollout_group(TASK, where, count=3, seed=5, step=2, grade=lambda _, made: made)
        task = asyncio.create_task(work)
        await engine.waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return sorted(engine.cleaned), [session.events[-1] for session in where.tools["python"].opened]  # type: ignore[union-attr]

    assert asyncio.run(given_up()) == (["t/2/0", "t/2/1", "t/2/2"], ["close"] * 3)


class Second(ScriptedSession):
    """Whose calls take a second."""

    async def __call__(self, call: ToolCall) -> Observation:
        return replace(await super().__call__(call), seconds=1.0)


class Timed(ScriptedSessions):
    async def open(self, trajectory: str) -> ScriptedSession:
        return Second(self, trajectory)


def test_seconds_that_a_branch_shares_were_spent_once() -> None:
    group = grown(context(strategy=Everywhere(), tools={"python": Timed(run_python)}), count=4)
    shared = [t.branch.turns if t.branch else 0 for t in group]
    assert sum(map(bool, shared)) == 3
    assert [t.raw_seconds for t in group] == [3.0 - turns for turns in shared]


# Why rollouts were lost: what is told, and what is said of it in the end.


def test_a_reason_is_reported_once_and_without_what_names_the_rollout(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults()
    assert (faults.first, faults.why) == ("", "")
    faults.add("t/0", "rollout t/0: a tool failed")
    for n in range(1, 4):
        faults.add(f"t/{n}", f"request t/{n}: the model\n does not answer")
    told = ["rollout t/0 is lost: a tool failed", "rollout t/1 is lost: the model does not answer"]
    assert [record.getMessage() for record in caplog.records] == told
    assert (faults.first, faults.why) == ("a tool failed", ", most often as the model does not answer")


def test_only_so_many_reasons_are_reported_and_counted_and_long_ones_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults()
    for n in range(MAX_REASONS + 2):
        faults.add(f"t/{n}", f"{n}" * 2 * MAX_CHARS)
    for _ in range(3):
        faults.add("t/9", f"{MAX_REASONS}" * MAX_CHARS)
    assert len(caplog.records) == MAX_REASONS
    assert faults.why == f", most often as {'0' * MAX_CHARS}"


def test_a_rollout_whose_tool_fails_on_its_own_account_says_which_it_is(caplog: pytest.LogCaptureFixture) -> None:
    ended = play([call("y")], {"y": ("no worker", "infrastructure", None)}).trajectory
    (told,) = (record.getMessage() for record in caplog.records)
    assert told.startswith(f"rollout {ended.id} is lost: ")
    assert "no worker" in told


def test_a_rollout_that_ends_in_a_lookahead_says_why(caplog: pytest.LogCaptureFixture) -> None:
    ended = play([call("x"), call("y")], {"x": "error", "y": "infrastructure"}, repair=Saar()).trajectory
    assert ended.stop == "infrastructure"
    (told,) = (record.getMessage() for record in caplog.records)
    assert told == f"rollout {ended.id} is lost: a tool failed on its own account in a lookahead"


def test_a_fault_in_the_last_turn_is_no_end_of_the_turns_nor_of_the_room() -> None:
    """It would be graded, and the model blamed for it."""
    told = ("no worker" * 20, "infrastructure", None)
    whole = play([call("x"), call("y")], {"y": told})
    used = len(history_ids(whole.trajectory))
    for limits in (replace(LIMITS, max_turns=2), replace(LIMITS, max_tokens=used - 20)):
        ended = play([call("x"), call("y")], {"y": told}, limits=limits).trajectory
        assert (ended.stop, len(ended.turns), ended.reward) == ("infrastructure", 2, None)


@pytest.mark.parametrize("second", [call("y"), ConnectionError("gone")], ids=["tool", "engine"])
def test_nor_is_one_in_the_lookahead_of_the_last_turn(second: Reply) -> None:
    limits = replace(LIMITS, max_turns=1)
    ended = play([call("x"), second], {"x": "error", "y": "infrastructure"}, repair=Saar(), limits=limits).trajectory
    assert (ended.stop, len(ended.turns), ended.reward) == ("infrastructure", 1, None)


class Given:
    """A tool as a user may write one. gives: what a call does."""

    def __init__(self, gives: Callable[[ToolCall], object]) -> None:
        self.name, self.spec, self._gives = "python", ToolSpec("python"), gives

    async def __call__(self, call: ToolCall) -> Any:
        return self._gives(call)


class Kept(ScriptedSessions):
    """A tool with state that raises at one of its operations. operation: its name."""

    def __init__(self, operation: str) -> None:
        super().__init__(lambda code, _: ("", "error" if code == "x" else "ok", None))
        self.operation = operation

    async def open(self, trajectory: str) -> ScriptedSession:
        opened = ScriptedSession(self, trajectory)

        async def raises(*_: object) -> None:
            raise OSError("no disk")

        if self.operation == "open":
            await raises()
        setattr(opened, self.operation, raises)
        return opened


def raises(error: BaseException) -> Callable[[ToolCall], object]:
    def raised(_: ToolCall) -> object:
        raise error

    return raised


def rolled(tool: Any, *replies: str) -> Trajectory:
    tokenizer = ByteTokenizer()
    engine = ScriptedEngine(tokenizer, [*replies])
    context = RolloutContext(engine, Chat(tokenizer), {"python": tool}, LIMITS, repair=Saar())
    return asyncio.run(run_rollout(TASK, context, id="t/0", seed=0))


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (raises(KeyError("word")), "the tool 'python' raised KeyError: 'word'"),
        (raises(SystemExit(3)), "the tool 'python' raised SystemExit: 3"),
        (lambda call: "text", "returned 'text', where an Observation of the call '0.0.0' belongs"),
        (lambda call: Observation("other", "text", "ok"), "where an Observation of the call '0.0.0' belongs"),
        (lambda call: Observation(call.id, None, "ok"), "whose text is None, where a str belongs"),  # type: ignore[arg-type]
        (lambda call: Observation(call.id, b"x", "ok"), "whose text is b'x', where a str belongs"),  # type: ignore[arg-type]
        (lambda call: Observation(call.id, "x", "fine"), "of status 'fine'; one of ok, error"),  # type: ignore[arg-type]
    ],
)
def test_a_custom_tool_that_raises_or_gives_no_observation_costs_its_rollout_alone(
    gives: Callable[[ToolCall], object], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = rolled(Given(gives), call("x"), "answer")
    assert (made.stop, made.reward, made.raw_failures) == ("infrastructure", None, 0)
    assert said in made.turns[0].observations[0].text
    assert "rollout t/0 is lost: a tool's fault: the tool 'python'" in caplog.text


@pytest.mark.parametrize("operation", ["open", "checkpoint", "rollback", "discard"])
def test_so_does_one_whose_state_is_not_to_be_had(operation: str, caplog: pytest.LogCaptureFixture) -> None:
    made = rolled(Kept(operation), call("x"), call("y"), "answer")
    assert made.stop == "infrastructure"
    assert "the tool 'python' raised OSError: no disk" in caplog.text


def test_one_that_cannot_be_closed_is_gone() -> None:
    assert rolled(Kept("close"), call("y"), "answer").stop == "answer"


def test_only_rollouts_that_answered_can_be_ungraded() -> None:
    answered = play([call("print(1)"), "It is 1."], {}).trajectory
    graded, ungraded = replace(answered, reward=1.0), replace(answered, reward=None)
    ends_in_a_call = replace(ungraded, turns=ungraded.turns[:1])
    cut = replace(ungraded, turns=(replace(ungraded.turns[-1], stop="length"),))
    assert count_ungraded([graded, ungraded, ends_in_a_call, cut]) == (1, 2)
    assert count_ungraded([replace(cut, returned="1"), replace(ungraded, turns=())]) == (1, 1)
