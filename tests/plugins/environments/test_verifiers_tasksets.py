"""Tasksets of verifiers 0.4, by its own package, as tasks: `make integration`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("verifiers", minversion="0.4", reason="verifiers 0.4, which `make integration` installs")

import verifiers.v1 as vf
from rolling import played, recipe_of, tools_of

from retcon.build import build_tasks
from retcon.chat.families.hermes import render_call
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError

pytestmark = pytest.mark.filterwarnings("default")  # the packages' own


class Sum(vf.TaskData):
    answer: str = ""


class Adding(vf.Task[Sum]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return 1.0 if self.data.answer in trace.last_reply else 0.0

    @vf.reward(weight=0.125)
    async def called(self, trace: vf.Trace) -> float:
        return float(len(trace.tool_messages))


class Adder(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    def add(self, a: int, b: int) -> int:
        """Adds two numbers."""
        if a < 0:
            raise ValueError("only what is positive")
        if a > 1000:
            raise ConnectionError("the adder is down")
        return a + b


class AddingWithTools(Adding):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [Adder(vf.ToolsetConfig())]


class SumsConfig(vf.TasksetConfig):
    count: int = 6


class Sums(vf.Taskset[AddingWithTools, SumsConfig]):
    kind: ClassVar[type[Any]] = AddingWithTools
    more: ClassVar[dict[str, Any]] = {}

    def load(self) -> Iterable[Any]:
        for n in range(self.config.count):
            asked = {"prompt": f"What is {n} + {n}?", "system_prompt": "Add.", "answer": str(2 * n), **self.more}
            yield self.kind(Sum(**asked), self.config.task)


class Books(vf.State):
    booked: list[int] = []  # noqa: RUF012 - a field, of which pydantic copies the default


class Ledger(vf.Toolset[vf.ToolsetConfig, Books]):
    """Keeps what was booked in the rollout's state, and how many calls there were of its own; a failure leaves both."""

    TOOL_PREFIX = None

    async def setup_task(self, task: Sum) -> None:
        self.calls = 0
        self.wanted = int(task.answer)

    @vf.tool
    async def book(self, amount: int) -> str:
        """Books an amount."""
        self.calls += 1
        self.state.booked.append(amount)
        if amount < 0:
            raise ValueError("a debt")
        return f"{self.state.booked} of {self.wanted} in {self.calls}"


class Booking(vf.Task[Sum, Books]):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [Ledger(vf.ToolsetConfig())]

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        assert trace.state.booked == []

    @vf.reward
    async def booked(self, trace: vf.Trace) -> float:
        return 1.0 if sum(trace.state.booked) == int(self.data.answer) else 0.0


class Bookings(Sums, vf.Taskset[Booking, SumsConfig]):
    kind = Booking


HELD: list[str] = []


class Holding(Ledger):
    """What it opens for a task makes the setup fail at last."""

    async def setup(self) -> None:
        HELD.append("a connection")
        self._exit_stack.callback(HELD.pop)

    async def setup_task(self, task: Sum) -> None:
        raise OSError("no room")


class Halting(Booking):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [Holding(vf.ToolsetConfig())]


class Halted(Sums, vf.Taskset[Halting, SumsConfig]):
    kind = Halting


class SharedHalf(Sums):
    """Of the toolsets that all its tasks share, the second cannot be set up."""

    @classmethod
    def toolsets(cls, config: SumsConfig) -> list[vf.Toolset]:
        return [Holding(vf.ToolsetConfig()), Unready(vf.ToolsetConfig())]


class Unready(Adder):
    TOOL_PREFIX = "unready"

    async def setup(self) -> None:
        raise OSError("no room")


class Endless(Sums):
    INFINITE = True


class Contained(Sums):
    more: ClassVar[dict[str, Any]] = {"image": "python:3.11"}


class Rewarding(Adding):
    @vf.reward
    async def left(self, trace: vf.Trace, runtime: vf.Runtime) -> float:
        return float((await runtime.run(["cat", "answer"], {})).exit_code)


class InItsRuntime(Sums):
    kind = Rewarding


class Preparing(Adding):
    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        await runtime.write("a", b"")


class Prepared(Sums):
    kind = Preparing


class Raising(Adding):
    @vf.reward
    async def broken(self, trace: vf.Trace) -> float:
        raise KeyError("no judge")


class Ungradable(Sums):
    kind = Raising


class Unasked(Sums):
    more: ClassVar[dict[str, Any]] = {"prompt": None}


class Mixed(Sums):
    """The last two of its rows are others than the first."""

    def last(self, asked: Any) -> Any:
        return self.kind(asked, self.config.task)

    def load(self) -> Iterable[Any]:
        *first, one, other = super().load()
        return [*first, self.last(one.data), self.last(other.data)]


class ContainedInTheEnd(Mixed):
    def last(self, asked: Any) -> Any:
        return self.kind(asked.model_copy(update={"image": "python:3.11"}), self.config.task)


class InItsRuntimeInTheEnd(Mixed):
    def last(self, asked: Any) -> Any:
        return Rewarding(asked)


class WithoutToolsInTheEnd(Mixed):
    def last(self, asked: Any) -> Any:
        return Adding(asked)


class OtherToolsInTheEnd(Mixed):
    def last(self, asked: Any) -> Any:
        return Booking(asked)


class AddingOtherwise(AddingWithTools):
    @vf.reward
    async def polite(self, trace: vf.Trace) -> float:
        return 0.5 * ("please" in trace.last_reply)


class OtherRewardsInTheEnd(Mixed):
    def last(self, asked: Any) -> Any:
        return AddingOtherwise(asked)


def many(count: int = 3) -> vf.Taskset:
    return Endless(SumsConfig()).take(count)


def sums(environment: str, *keys: str, repair: str = "saar") -> Recipe:
    return recipe_of('task.kind="verifiers"', f'task.environment="{__name__}:{environment}"', *keys, repair=repair)


def added(a: object, b: int) -> str:
    return render_call("adder_add", {"a": a, "b": b})


def test_a_taskset_gives_its_tasks_its_tools_and_its_weighted_rewards() -> None:
    recipe = sums("Sums", "task.arguments={count=8}", "task.evaluation_share=0.25")
    tasks = build_tasks(recipe)
    told = [*tasks.train(0), *tasks.evaluation(9, 0)]
    assert {(t.system, t.question, t.answer) for t in told} == {
        ("Add.", f"What is {n} + {n}?", str(2 * n)) for n in range(8)
    }
    assert list(tools_of(recipe)["adder_add"].spec.parameters["required"]) == ["a", "b"]
    made = played(recipe, (added(3, 3), "It is 6."))
    assert (made.reward, made.answer) == (1.125, "It is 6.")
    assert made.turns[0].observations[0].text == "6"
    assert played(recipe, ("It is 7.",)).reward == 0.0


def test_a_tasksets_failed_calls_are_repaired_and_its_rewards_see_the_clean_conversation() -> None:
    made = played(sums("Sums"), (added(-3, 3), added(3, 3), "It is 6."))
    assert made.turns[0].repair
    assert (made.turns[0].repair.decision, made.raw_failures, made.failures) == ("shallow", 1, 0)
    assert made.turns[0].abandoned[0].observations[0].error_type == "ValueError"
    assert made.reward == 1.125
    raw = played(sums("Sums", repair="none"), (added(-3, 3), added(3, 3), "It is 6."))
    assert raw.turns[0].observations[0].text == "Error executing tool add: only what is positive"
    assert raw.reward == 1.25
    badly = played(sums("Sums", repair="none"), (added("three", 3), "It is 6."))
    assert badly.failures == 1


def test_a_fault_of_a_taskset_is_nobodys() -> None:
    assert played(sums("Sums"), (added(5000, 3), "It is 6.")).stop == "infrastructure"
    made = played(sums("Ungradable"), ("It is 6.",))
    assert (made.stop, made.reward) == ("infrastructure", None)


def test_the_state_of_a_taskset_goes_back_to_where_a_failed_call_began() -> None:
    replies = [render_call("book", {"amount": n}) for n in (2, -1, 4)]
    made = played(sums("Bookings"), (*replies, "It is booked."))
    assert [o.text for turn in made.turns for o in turn.observations] == ["[2] of 6 in 1", "[2, 4] of 6 in 2"]
    assert made.reward == 1.0
    raw = played(sums("Bookings", repair="none"), (*replies, "It is booked."))
    assert [o.text for turn in raw.turns for o in turn.observations] == [
        "[2] of 6 in 1", "Error executing tool book: a debt", "[2, -1, 4] of 6 in 3",
    ]  # fmt: skip
    assert raw.reward == 0.0
    assert played(sums("Bookings", "task.rollback=replay"), (*replies, "It is booked.")).reward == 1.0


@pytest.mark.parametrize(
    ("environment", "call"),
    [("Halted", render_call("book", {"amount": 2})), ("SharedHalf", render_call("adder_add", {"a": 3, "b": 3}))],
)
def test_what_a_setup_had_opened_before_it_failed_is_closed(environment: str, call: str) -> None:
    assert played(sums(environment), (call, "It is 6.")).stop == "infrastructure"
    assert HELD == []


def test_tasks_without_an_end_are_had_by_a_function_that_takes_some() -> None:
    with pytest.raises(RecipeError, match=r"the tasks of Endless never end: .*\.take\(1000\)"):
        build_tasks(sums("Endless"))
    tasks = build_tasks(sums("many", "task.arguments={count=4}", "task.evaluation_share=0.25"))
    assert len([*tasks.train(0), *tasks.evaluation(9, 0)]) == 4


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ("Contained", r"a AddingWithTools is solved in a container \(image\)"),
        ("ContainedInTheEnd", r"row 4 of ContainedInTheEnd: a AddingWithTools is solved in a container \(image\)"),
        ("InItsRuntime", "left rewards what the agent left in its runtime"),
        ("InItsRuntimeInTheEnd", "row 4 of .*: of Rewarding, left rewards what the agent left in its runtime"),
        ("WithoutToolsInTheEnd", r"row 4 of .*: a Adding has no tools, and row 0, a AddingWithTools, has adder_add; "),
        ("OtherToolsInTheEnd", r"row 4 of .*: a Booking has book, and row 0, a AddingWithTools, has adder_add; "),
        ("Unasked", "a simulated user speaks first"),
        ("Sum", "is a Sum, and no verifiers Taskset"),
        ("nothing", "cannot be loaded"),
    ],
)
def test_tasksets_that_cannot_be_had_are_refused_by_name(environment: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        build_tasks(sums(environment))


def test_rows_of_several_kinds_with_the_same_tools_are_had() -> None:
    recipe = sums("OtherRewardsInTheEnd")
    assert played(recipe, (added(5, 5), "It is 10, please."), question="5 + 5").reward == 1.625
    assert played(recipe, (added(3, 3), "It is 6, please.")).reward == 1.125


def test_a_task_that_uses_a_runtime_after_all_says_so() -> None:
    with pytest.raises(RecipeError, match=r"use the agent's runtime \(`runtime.write`\)"):
        played(sums("Prepared"), ("It is 6.",))


def test_an_installed_taskset_is_had_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "doubling_sums.py").write_text(
        "import verifiers.v1 as vf\n__all__ = ['Doubling']\n"
        "class Doubling(vf.Taskset):\n"
        "    def load(self):\n"
        "        for n in range(4):\n"
        "            yield vf.Task(vf.TaskData(prompt=f'Double {n}.'))\n"
    )
    monkeypatch.chdir(tmp_path)
    recipe = recipe_of('task.kind="verifiers"', 'task.environment="somebody/doubling-sums@0.1"')
    tasks = build_tasks(recipe)
    assert {t.question for t in [*tasks.train(0), *tasks.evaluation(9, 0)]} == {f"Double {n}." for n in range(4)}
    with pytest.raises(RecipeError, match="'no-such-taskset' cannot be loaded"):
        build_tasks(recipe_of('task.kind="verifiers"', 'task.environment="no-such-taskset"'))
