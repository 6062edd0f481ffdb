"""Groups whose rollouts branch, over scripted engines and tools."""

from __future__ import annotations

import asyncio
import gc
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import pytest

from playing import LIMITS, TASK, call, run_python
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.core.errors import EngineError, InfrastructureFault, RecipeError
from retcon.core.seeds import derive
from retcon.core.types import Observation, ToolCall, Trajectory
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.engine.types import Generation
from retcon.purify.saar import Saar
from retcon.purify.types import Repair
from retcon.rollout.context import RolloutContext, is_purified
from retcon.rollout.group import rollout_group
from retcon.rollout.strategies.aepo import Aepo
from retcon.rollout.strategies.arpo import Arpo
from retcon.rollout.strategies.fission import Fission
from retcon.rollout.strategy import Measured, Point, Uncertainty, uncertainty
from retcon.sandbox.jail import messages
from retcon.tasks.types import Task
from retcon.tools.scripted import ScriptedSession, ScriptedSessions
from retcon.tools.types import CHECKPOINTS, OpenTool, StatefulTool

PROGRAMS = {0: "n = 1", 1: "n = n + 1\nn", 2: "n = n * 10\nn"}


@dataclass(frozen=True)
class At:
    """Branches at one turn, or wherever a rollout may be branched from: a strategy of someone's own."""

    start: int
    turn: int | None = 1
    many: int = 1
    measures: bool = False
    entropy_tokens: int = 4

    def from_start(self, count: int, measured: Measured | None) -> int:
        return self.start

    def branches(self, point: Point, draw: random.Random) -> int:
        return self.many if self.turn in (None, point.turn) else 0

    def resume(self, rollouts: Sequence[Trajectory]) -> list[tuple[int, int]]:
        return []


def counting(id: str, text: str, n: int) -> str:
    """Counts up in its session for three turns, then says what it has been told last."""
    turns = text.count("<|im_start|>tool")
    return call(PROGRAMS[turns], f"{id}: ") if turns < 3 else f"{id} is done."


@dataclass
class Played:
    group: list[Trajectory]
    engine: ScriptedEngine
    tool: ScriptedSessions

    def told(self, index: int) -> list[str]:
        return [o.text for turn in self.group[index].turns for o in turn.observations]

    @property
    def branched(self) -> list[int]:
        return [n for n, t in enumerate(self.group) if t.branch is not None]


def grow(
    strategy: At,
    count: int,
    *,
    replies: Callable[[str, str, int], str] = counting,
    tool: StatefulTool | None = None,
    others: Mapping[str, StatefulTool] | None = None,
    repair: Repair | None = None,
    probability: float = 1.0,
    seed: int = 0,
    step: int = 1,
) -> Played:
    tokenizer = ByteTokenizer()
    engine, sessions = ScriptedEngine(tokenizer, replies), ScriptedSessions(run_python)
    context = RolloutContext(
        engine, Chat(tokenizer), {"python": tool or sessions, **(others or {})}, LIMITS,
        repair=repair, probability=probability, strategy=strategy,
    )  # fmt: skip

    def grade(_: Task, trajectory: Trajectory) -> Trajectory:
        return replace(trajectory, reward=1.0)

    work = rollout_group(TASK, context, count=count, seed=seed, step=step, grade=grade)
    return Played(asyncio.run(asyncio.wait_for(work, 60)), engine, sessions)


def test_a_branch_begins_as_its_parent_went_and_goes_on_by_itself():
    played = grow(At(start=1, turn=2), 2)
    parent, branch = played.group
    assert branch.branch is not None
    assert (branch.branch.parent, branch.branch.root, branch.branch.turns) == (parent.id, parent.id, 2)
    nats = -sum(parent.turns[2].segments[0].logprobs[:4]) / 4
    assert (branch.branch.uncertainty, branch.branch.measure) == (pytest.approx(nats), "surprisal")
    assert branch.turns[:2] == parent.turns[:2]
    assert branch.prompt == parent.prompt
    assert branch.turns[2].text.startswith(branch.id)
    assert parent.turns[2].text.startswith(parent.id)
    first = next(ids for name, ids in played.engine.seen if name == branch.id)
    assert branch.branch.tokens == len(first)
    assert first == tuple(
        i for s in (*parent.prompt, *parent.turns[0].segments, *parent.turns[1].segments) for i in s.ids
    )


@dataclass(frozen=True)
class Resumes(At):
    """Resumes the first rollout twice, before its third turn."""

    turn: int | None = -1

    def resume(self, rollouts: Sequence[Trajectory]) -> list[tuple[int, int]]:
        return [(0, 2)] if len(rollouts) < 4 else []


def test_a_finished_rollout_is_resumed_in_the_state_that_it_had() -> None:
    played = grow(Resumes(start=2), 5)
    assert played.branched == [2, 3], "the fifth begins with the prompt"
    assert [played.told(n) for n in range(5)] == [["", "2", "20"]] * 5
    parent, branch = played.group[0], played.group[2]
    assert branch.branch is not None
    assert (branch.branch.parent, branch.branch.root, branch.branch.turns) == (parent.id, parent.id, 2)
    assert branch.turns[:2] == parent.turns[:2]
    assert branch.turns[2].text.startswith(branch.id)
    assert branch.sampled_tokens == sum(len(t.segments[0].ids or ()) for t in branch.turns[2:])
    assert [session.events[-1] for session in played.tool.opened] == ["close"] * 5


def test_what_was_sampled_for_the_parent_is_not_counted_again():
    parent, branch = grow(At(start=1, turn=2), 2).group
    assert branch.sampled_tokens == sum(len(t.segments[0].ids or ()) for t in branch.turns[2:])
    assert parent.sampled_tokens == sum(len(t.segments[0].ids or ()) for t in parent.turns)


def test_each_has_the_state_that_it_came_with_whoever_calls_in_between():
    played = grow(At(start=2, turn=None), 8)
    assert len(played.branched) == 6
    assert [played.told(n) for n in range(8)] == [["", "2", "20"]] * 8
    assert len(played.tool.opened) == 2, "one session a tree"
    for session in played.tool.opened:
        assert session.events[-1] == "close"
        assert not session.kept, "nothing is kept beyond its use"


@pytest.mark.parametrize(("repair", "of_a_tree"), [(None, 16), (Saar(attempts=0), 16), (Saar(attempts=1), 5)],
                         ids=["none", "no attempts", "saar"])  # fmt: skip
def test_a_tree_has_no_more_rollouts_than_a_session_keeps_states(repair: Repair | None, of_a_tree: int):
    def failing(id: str, text: str, n: int) -> str:
        return call("oops") if repair is not None and n == 1 else counting(id, text, n)

    played = grow(At(start=1, turn=None, many=3), 40, replies=failing, repair=repair)
    trees = Counter(t.branch.root if t.branch else t.id for t in played.group)
    assert CHECKPOINTS == messages.CHECKPOINTS
    assert max(trees.values()) <= of_a_tree
    assert len(trees) == len(played.tool.opened) == -(-40 // of_a_tree)
    for session in played.tool.opened:
        kept = accumulate({"checkpoint": 1, "discard": -1}.get(event.split()[0], 0) for event in session.events)
        assert max(kept) <= CHECKPOINTS


def test_trees_are_as_small_beside_a_rollout_that_was_measured():
    played = grow(At(start=1, turn=None, many=3, measures=True), 33)
    trees = Counter(t.branch.root if t.branch else t.id for t in played.group)
    assert sorted(trees.values()) == [1, 16, 16]


def test_what_a_rollout_kept_for_its_repair_goes_with_it_though_its_tree_goes_on():
    def failing(id: str, text: str, n: int) -> str:
        return call("oops" if "n = 1" in text else "n = 1")

    (session,) = grow(At(start=1, many=3), 4, replies=failing, repair=Saar(attempts=2)).tool.opened
    assert len(session.kept) == 2, "of the last one, whose end is the tool's"


def test_a_branch_that_does_not_call_leaves_nothing_behind():
    def answers(id: str, text: str, n: int) -> str:
        return counting(id, text, n) if id.endswith("/0") else "Nothing to run."

    played = grow(At(start=1), 2, replies=answers)
    (session,) = played.tool.opened
    assert not session.kept
    assert session.events[-1] == "close"


def test_slots_are_dealt_to_trees_and_what_is_left_begins_with_the_prompt():
    played = grow(At(start=3, turn=1), 8)
    roots = [t.branch and t.branch.root for t in played.group]
    assert [t.id.rpartition("/")[2] for t in played.group] == [str(n) for n in range(8)]
    assert roots[:6] == [None] * 3 + [played.group[n].id for n in range(3)]
    assert roots[6:] == [None, None], "each tree branched once: what it might have had besides starts anew"


def test_where_it_branches_the_slots_that_are_left_go_to_parent_and_branch():
    played = grow(At(start=1, turn=None), 5)
    parents = {t.branch.parent.rpartition("/")[2] for t in played.group if t.branch}
    assert len(played.branched) == 4
    assert len(parents) > 1, "branches branch too"


def test_a_branch_is_not_asked_about_the_point_that_it_began_at():
    asked: list[tuple[int, int, int]] = []

    @dataclass(frozen=True)
    class Asked(At):
        def branches(self, point: Point, draw: random.Random) -> int:
            asked.append((point.turn, point.in_a_row, point.left))
            return super().branches(point, draw)

    group = grow(Asked(start=1, turn=1), 4).group
    assert [point for point in asked if point[0] == 1] == [(1, 0, 3)]
    assert sorted(asked[1:]) == [(2, 1, 1), (2, 1, 1), (3, 0, 1), (3, 0, 1)], "where none branches, the row is over"
    assert [t.branch and t.branch.parent for t in group] == [None, group[0].id, None, None]


def test_a_group_that_never_calls_is_whole():
    played = grow(At(start=1), 4, replies=lambda id, text, n: "It is 42.")
    assert [len(t.turns) for t in played.group] == [1] * 4
    assert not played.branched


def test_the_first_rollout_is_measured_before_others_begin():
    asked: list[Measured | None] = []

    @dataclass(frozen=True)
    class Measuring(At):
        def from_start(self, count: int, measured: Measured | None) -> int:
            asked.append(measured)
            return 2

    played = grow(Measuring(start=2, measures=True), 4)
    (measured,) = asked
    assert measured is not None
    assert len(measured.later) == 3
    written = played.group[0].turns[0].segments[0]
    assert measured.first == pytest.approx(-sum(written.logprobs[:4]) / 4)
    assert [t.branch and t.branch.root for t in played.group] == [None, None, played.group[1].id, None]
    names = [name for name, _ in played.engine.seen]
    assert names.index(played.group[1].id) > max(n for n, name in enumerate(names) if name == played.group[0].id)


def test_seeds_do_not_depend_on_who_is_first():
    def slow_first(delays: Sequence[int]) -> list[Trajectory]:
        tool = Slow(delays)
        return grow(At(start=2, turn=None), 8, tool=tool).group

    one, other = slow_first([5, 0]), slow_first([0, 5])
    assert one == other
    assert [t.provenance.seed for t in one] == [derive("rollout", 0, 1, TASK.id, n) for n in range(8)]


def test_whether_it_branches_is_drawn_anew_for_every_step_rollout_and_turn():
    drawn: list[float] = []

    @dataclass(frozen=True)
    class Drawing(At):
        def branches(self, point: Point, draw: random.Random) -> int:
            drawn.append(draw.random())
            return 0

    counts = []
    for step in (1, 2, 1):
        grow(Drawing(start=2), 4, step=step)
        counts.append(len(drawn))
    first, second, again = drawn[: counts[0]], drawn[counts[0] : counts[1]], drawn[counts[1] :]
    assert first == again
    assert len({*first, *second}) == len(first) + len(second) > 8


def test_a_branch_of_a_branch_is_of_the_same_tree():
    group = grow(At(start=1, turn=None), 8).group
    branches = [t.branch for t in group if t.branch is not None]
    assert any(branch.parent != group[0].id for branch in branches)
    assert {branch.root for branch in branches} == {group[0].id}


class Slow(ScriptedSessions):
    """Sessions whose calls take some passes of the event loop: those of the first tree so many, the second's others."""

    def __init__(self, delays: Sequence[int]) -> None:
        super().__init__(run_python)
        self.delays = {f"t/1/{n}": delay for n, delay in enumerate(delays)}

    async def open(self, trajectory: str) -> OpenTool:
        return Delayed(await super().open(trajectory), self.delays[trajectory])


class Delayed:
    def __init__(self, tool: OpenTool, passes: int) -> None:
        self.name, self.spec, self._tool, self._passes = tool.name, tool.spec, tool, passes
        self.checkpoint, self.rollback, self.discard, self.close = (
            tool.checkpoint, tool.rollback, tool.discard, tool.close
        )  # fmt: skip

    async def __call__(self, call: ToolCall) -> Observation:
        for _ in range(self._passes):
            await asyncio.sleep(0)
        return await self._tool(call)


def test_a_state_that_cannot_be_forked_costs_the_branch_alone():
    played = grow(At(start=1), 3, tool=ScriptedSessions(run_python, broken=["checkpoint"]))
    assert [t.stop for t in played.group] == ["answer"] * 3
    assert not played.branched, "they begin with the prompt instead"


def test_where_one_of_two_states_cannot_be_forked_the_other_is_given_back():
    """Else what begins with the prompt in the branch's place would go on from its parent's state."""
    kept, broken = ScriptedSessions(run_python), ScriptedSessions(run_python, "other", broken=["checkpoint"])
    played = grow(At(start=1), 3, tool=kept, others={"other": broken})
    assert not played.branched
    assert [played.told(n) for n in range(3)] == [["", "2", "20"]] * 3
    assert [session.trajectory for session in kept.opened] == [t.id for t in played.group]
    for session in kept.opened:
        assert (session.events[-1], session.kept) == ("close", {})


class Narrow(ScriptedSessions):
    """Sessions that have room for four states."""

    async def open(self, trajectory: str) -> ScriptedSession:
        session = await super().open(trajectory)
        checkpoint = session.checkpoint

        async def if_there_is_room() -> str:
            if len(session.kept) >= 4:
                raise InfrastructureFault("it is full")
            return await checkpoint()

        session.checkpoint = if_there_is_room  # type: ignore[method-assign]
        return session


def test_where_a_session_has_no_room_for_a_branch_nobody_else_goes_without():
    played = grow(At(start=1, turn=None, many=3), 12, tool=Narrow(run_python))
    assert [played.told(n) for n in range(12)] == [["", "2", "20"]] * 12
    assert 0 < len(played.branched) < 11


def test_a_fault_of_a_branch_is_that_branch_s_alone():
    def breaks(id: str, text: str, n: int) -> str:
        if id.endswith("/1"):
            raise ConnectionError("gone")
        return counting(id, text, n)

    played = grow(At(start=1), 2, replies=breaks)
    assert [t.stop for t in played.group] == ["answer", "infrastructure"]
    assert [t.reward for t in played.group] == [1.0, None]


def test_the_first_error_ends_the_group():
    def refuses(id: str, text: str, n: int) -> str:
        if id.endswith("/1"):
            raise EngineError("no such id")
        return counting(id, text, n)

    tool = ScriptedSessions(run_python)
    with pytest.raises(EngineError, match="no such id"):
        grow(At(start=1, many=3), 4, replies=refuses, tool=tool)
    (session,) = tool.opened
    assert session.events[-1] == "close"
    assert not session.kept


def test_errors_that_come_together_are_all_taken_note_of(caplog: pytest.LogCaptureFixture):
    def refuses(id: str, text: str, n: int) -> str:
        raise EngineError("no such id")

    with pytest.raises(EngineError, match="no such id"):
        grow(At(start=3), 3, replies=refuses)
    gc.collect()
    assert not caplog.records, "an exception that was never retrieved"


@pytest.mark.parametrize("passes", range(9))
def test_an_error_closes_the_tools_of_branches_too_that_it_meets_before_they_have_begun(passes: int):
    def refuses(id: str, text: str, n: int) -> str:
        if id.endswith("/0") and "tool" in text:
            raise EngineError("no such id")
        return counting(id, text, n)

    tool = Slow([4, passes])
    with pytest.raises(EngineError, match="no such id"):
        grow(At(start=2, turn=None), 8, replies=refuses, tool=tool)
    assert [session.events[-1] for session in tool.opened] == ["close"] * len(tool.opened)


@pytest.mark.parametrize("measures", [False, True])
def test_whether_it_is_purified_is_drawn_for_a_tree(measures: bool):
    group = grow(At(start=3, turn=None, measures=measures), 24, repair=Saar(), probability=0.5).group
    whole = {t.id: t.provenance.purified for t in group}
    assert [is_purified(0.5, 0, 1, TASK.id, n) for n in range(3)] == [t.provenance.purified for t in group[:3]]
    assert [t.provenance.purified for t in group] == [whole[t.branch.root if t.branch else t.id] for t in group]
    assert len({whole[t.branch.root] for t in group if t.branch}) == 2, "some are and some are not"
    filled = grow(At(start=2, turn=99), 16, repair=Saar(), probability=0.5).group
    assert [t.provenance.purified for t in filled] == [is_purified(0.5, 0, 1, TASK.id, n) for n in range(16)]


def test_a_tree_is_purified_as_a_whole():
    def failing(id: str, text: str, n: int) -> str:
        turns = text.count("<|im_start|>tool")
        if turns == 0:
            return call("n = 1", "sure ")
        if "NameError" in text or "is not defined" in text:
            return call("n + 1", "mended ")
        return call("oops", "bad ") if turns == 1 else "done"

    played = grow(At(start=1, turn=2), 2, replies=failing, repair=Saar())
    parent, branch = played.group
    assert parent.turns[1].repair is not None
    assert branch.turns[1] == parent.turns[1], "the repaired history is what it goes on from"
    assert all(t.provenance.purified for t in played.group)
    assert [t.stop for t in played.group] == ["answer", "answer"]


# Where ARPO and AEPO branch, against numbers worked out by hand.


V = 1000


def point(rise: float = 0.0, *, in_a_row: int = 0, left: int = 8) -> Point:
    """The uncertainty has risen by so many nats a token."""
    return Point(turn=1, nats=0.5 + rise, first=0.5, vocabulary=V, in_a_row=in_a_row, left=left)


def share(strategy: Arpo | Aepo, at: Point) -> float:
    draws = random.Random(0)
    return sum(strategy.branches(at, draws) for _ in range(2000)) / 2000


def test_the_chance_of_a_branch_rises_with_the_entropy() -> None:
    """α + β · 20 ΔH / log V: .5 + .2 · 20 · .3 / 6.9078 = .6737."""
    arpo = Arpo()
    assert arpo.chance(point()) == 0.5
    assert arpo.chance(point(0.3)) == pytest.approx(0.6737, abs=1e-4)
    assert arpo.chance(point(-0.3)) == pytest.approx(0.3263, abs=1e-4)
    assert arpo.chance(point(9)) == 1.0
    assert share(arpo, point(0.3)) == pytest.approx(0.6737, abs=0.04)


def test_above_a_threshold_it_branches_always_and_else_never() -> None:
    paper = Arpo(threshold=0.5, siblings=2)
    assert {paper.branches(point(0.01), random.Random(n)) for n in range(9)} == {2}
    assert {paper.branches(point(0.0), random.Random(n)) for n in range(9)} == {0}
    assert paper.branches(point(0.01, left=1), random.Random(0)) == 1


def test_siblings_are_drawn_one_by_one() -> None:
    drawn = {Arpo(siblings=3).branches(point(), random.Random(n)) for n in range(99)}
    assert drawn == {0, 1, 2, 3}


def test_a_path_that_has_branched_is_less_likely_to_branch_again() -> None:
    aepo = Aepo(penalty=0.05)
    assert [aepo.chance(point(in_a_row=n)) for n in (0, 1, 2, 30)] == pytest.approx([0.5, 0.475, 0.45, 0.0])


def test_the_budget_is_split_by_where_the_model_is_unsure() -> None:
    """⌊16 σ(β · 20 · gap / log V)⌋ + 1: gap 1 and β = .5 give σ(1.4476) = .8096, so 13; gap -1 gives 4; 0 gives 9."""
    aepo = Aepo()
    assert aepo.measures
    assert aepo.from_start(16, Measured(1.5, [0.2, 0.8], V)) == 13
    assert aepo.from_start(16, Measured(0.5, [1.2, 1.8], V)) == 4
    assert aepo.from_start(16, Measured(0.5, [], V)) == 9
    assert aepo.from_start(16, None) == 9
    assert aepo.from_start(16, Measured(99.0, [0.0], V)) == 16
    assert [Aepo(balance=1e6).from_start(16, Measured(h, [1.0], V)) for h in (9.0, 0.0)] == [16, 1]


def test_recoveries_are_sampled_after_a_failed_call_or_not_at_all() -> None:
    """A group of recoveries that is cut short has less to compare."""
    fission = Fission(recoveries=3)
    failed = replace(point(left=5), failed=True)
    draws = [fission.branches(at, random.Random(0)) for at in (failed, point(), replace(failed, left=2))]
    assert draws == [3, 0, 0]
    with pytest.raises(RecipeError, match=r"of 8 rollouts .* initial = 4 leaves 4 for recoveries, fewer than"):
        load_recipe(None, ["strategy.kind=fission", "rl.group=8"])


def test_a_number_that_is_given_is_not_measured_for() -> None:
    aepo = Aepo(initial=6)
    assert not aepo.measures
    assert aepo.from_start(16, None) == 6


def test_the_entropy_that_an_engine_tells_goes_before_its_log_probs() -> None:
    both = Generation((1, 2, 3), (-1.0, -2.0, -6.0), "stop", entropies=(0.5, 1.5, 4.0))
    assert uncertainty(both, 2) == Uncertainty(1.0, "entropy")
    assert uncertainty(Generation((1, 2, 3), (-1.0, -2.0, -6.0), "stop"), 2) == Uncertainty(1.5, "surprisal")
    assert uncertainty(Generation((1,), (-math.log(4),), "stop"), 20).nats == pytest.approx(math.log(4))
    with pytest.raises(EngineError, match="gives neither"):
        uncertainty(Generation((1,), None, "stop"), 2)


@pytest.mark.parametrize("kind", ["arpo", "aepo"])
def test_more_rollouts_from_the_start_than_are_made_are_refused(kind: str) -> None:
    with pytest.raises(RecipeError, match=r"strategy: initial = 9 is more than the 8 rollouts"):
        load_recipe(None, [f"strategy.kind={kind}", "strategy.initial=9", "rl.group=8"])
    load_recipe(None, [f"strategy.kind={kind}", "strategy.initial=9", "rl.group=8", "select.kind=roc"])


def test_an_own_strategy_is_named_by_its_import_path() -> None:
    recipe = load_recipe(None, ["strategy.kind=retcon.rollout.strategies.arpo:Arpo", "strategy.initial=2"])
    assert isinstance(recipe.strategy, Arpo)
    with pytest.raises(RecipeError, match=r"no strategy .*did you mean 'arpo'"):
        load_recipe(None, ["strategy.kind=arpa"])


# What an engine that keeps prefixes is told when a rollout branches.


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
