"""The states that the tools of an environment have: which begin, which end, and what is told of a call."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import pytest

from retcon.core.errors import InfrastructureFault, RecipeError
from retcon.core.types import Observation, ToolCall, ToolSpec, Trajectory, Turn
from retcon.tasks.environments.tasks import EnvironmentTasks, Sessions
from retcon.tasks.environments.types import Rollback, classify_error, cleanup_on_error
from retcon.tasks.kinds.trl import Factory, MethodEnvironment
from retcon.tasks.types import Split, Task


class Noted:
    """Implements `Environment`; a state is the list of the calls that it was told. begun, ended: all states."""

    name = "noted"
    specs: Sequence[ToolSpec] = (ToolSpec("say"), ToolSpec("look"))

    def __init__(self, rollback: Rollback = "copy") -> None:
        self.rollback = rollback
        self.begun: list[list[str]] = []
        self.ended: list[list[str]] = []

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"noted/{n}", f"What is {n}?", "") for n in range(9)] if split == "train" else []

    def row(self, task: str) -> Mapping[str, Any]:
        return {"task": task}

    async def begin(self, task: str) -> list[str]:
        self.begun.append([])
        return self.begun[-1]

    async def call(self, state: list[str] | None, name: str, arguments: Mapping[str, Any]) -> str:
        if "wait" in arguments:
            raise classify_error(TimeoutError("it took too long"), (), "too late")
        if state is not None:
            state.append(name)
        return "x" * 100

    def copy_state(self, state: list[str]) -> list[str]:
        return list(state)

    async def end(self, state: list[str]) -> None:
        self.ended.append(state)

    async def reward(self, task: Task, trajectory: Trajectory, state: list[str]) -> tuple[float, str | None]:
        return float(len(state)), None


def called(name: str, **arguments: object) -> ToolCall:
    return ToolCall("c", name, arguments, 0)


async def opened(sessions: Sessions, output_chars: int = 200) -> list[Any]:
    """Its tools, in the hands of one trajectory."""
    return [await tool.of("noted/0", "one").open("one") for tool in sessions.tools(output_chars)]  # type: ignore[union-attr]


async def rewarded(sessions: Sessions, trajectory: str = "one") -> float | None:
    tasks = EnvironmentTasks(sessions, evaluation_share=0, right_from=None)
    return (await tasks.grade(Task("noted/0", "", ""), Trajectory(trajectory, "noted/0", (), (Turn(()),)))).reward


def same(found: Sequence[object], wanted: Sequence[object]) -> bool:
    """Whether they are the very same objects, in any order."""
    return sorted(map(id, found)) == sorted(map(id, wanted))


def test_a_state_ends_once_all_of_its_tools_are_closed_and_is_graded_as_it_was_left() -> None:
    async def main() -> None:
        environment = Noted()
        sessions = Sessions(environment, "copy")
        say, look = await opened(sessions)
        await say(called("say"))
        await say.close()
        await look(called("look"))
        assert environment.ended == []
        await look.close()
        assert same(environment.ended, environment.begun)
        assert await rewarded(sessions) == 2.0
        assert len(environment.begun) == 1

    asyncio.run(main())


def test_a_state_that_calls_are_made_again_in_takes_the_place_of_one_that_ends() -> None:
    async def main() -> None:
        environment = Noted("impossible")
        sessions = Sessions(environment, "replay")
        say, look = await opened(sessions)
        await say(called("say"))
        kept = await say.checkpoint()
        await look(called("look"))
        await say.rollback(kept)
        first, second = environment.begun
        assert (first, second) == (["say", "look"], ["say"])
        assert same(environment.ended, [first])
        await say.close()
        await look.close()
        assert same(environment.ended, [first, second])
        assert await rewarded(sessions) == 1.0

    asyncio.run(main())


@pytest.mark.parametrize("rollback", ["copy", "unneeded"])
def test_what_a_tool_tells_is_cut_and_a_time_out_is_reported_as_one(rollback: Rollback) -> None:
    async def main() -> list[Observation]:
        sessions = Sessions(Noted(rollback), rollback)
        tools: Any = sessions.tools(60) if rollback == "unneeded" else await opened(sessions, 60)
        return [await tools[0](called("say")), await tools[0](called("say", wait=1))]

    long, late = asyncio.run(main())
    assert (long.status, len(long.text) <= 60) == ("ok", True)
    assert "characters cut" in long.text
    assert (late.status, late.error_type, late.text) == ("timeout", "TimeoutError", "too late")


class Hidden(Noted):
    """Begins each of its tasks with the same words. rows: of the tasks, where they are not all different."""

    def __init__(self, answers: Sequence[str], rows: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__()
        self.answers, self.rows = answers, rows

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"hidden/{n}", "Guess!", a) for n, a in enumerate(self.answers)] if split == "train" else []

    def row(self, task: str) -> Mapping[str, Any]:
        return self.rows[int(task.rpartition("/")[2])] if self.rows else super().row(task)


class Both(Hidden):
    """Has tasks for evaluation of its own. rows: of those that train, and then of those."""

    def tasks(self, split: Split) -> Sequence[Task]:
        half = len(self.answers) // 2
        own = [Task(f"hidden/{n}", "Guess!", answer) for n, answer in enumerate(self.answers)]
        return own[:half] if split == "train" else own[half:]


@pytest.mark.parametrize(
    ("answers", "rows", "trains"),
    [
        ([""] * 6, [{"word": word} for word in "abcdec"], ["hidden/0", "hidden/1"]),
        ([""] * 6, [{}] * 6, ["hidden/0", "hidden/1", "hidden/2"]),
        (["a", "b", "c", "d", "e", "a"], (), ["hidden/1", "hidden/2"]),
        (["a"] * 6, [{"n": n} for n in range(6)], []),
    ],
)
def test_tasks_that_all_begin_as_those_for_evaluation_do_are_distinguished_by_their_rows(
    answers: Sequence[str], rows: Sequence[Mapping[str, Any]], trains: Sequence[str]
) -> None:
    tasks = EnvironmentTasks(Sessions(Both(answers, rows), "copy"), evaluation_share=0.5, right_from=None)
    assert sorted(task.id for task in tasks.train(0)) == trains
    assert len(tasks.evaluation(9, 0)) == 3


# What `reset` of a user's class is called with.


def seeded(reset: Callable[[Any, random.Random], str]) -> Callable[..., str]:
    """Takes a seed, whatever the method that it wraps takes."""

    @wraps(reset)
    def begun(self: Any, seed: int) -> str:
        return reset(self, random.Random(seed))

    return begun


class Wrapped:
    @seeded
    def reset(self, draws: random.Random) -> str:
        return f"Count to {draws.randrange(9)}."

    def get_reward(self) -> float:
        return 1.0


class Compiled(dict[str, int]):
    reset = dict.update

    def get_reward(self) -> float:
        return 1.0


@pytest.mark.parametrize("kind", [Wrapped, Compiled])
def test_a_reset_that_does_not_say_what_it_takes_is_called(kind: type) -> None:
    environment = MethodEnvironment(Factory(f"{__name__}:{kind.__name__}"), [{"seed": 1}])
    assert len(environment.tasks("train")) == 1


# A user's setup that fails halfway.


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("why", [OSError("no room"), RecipeError("no runtime"), asyncio.CancelledError()])
def test_it_is_ended_and_what_failed_is_what_is_reported(why: BaseException, ends: bool) -> None:
    """A cancelled rollout is cancelled, and a wrong recipe is wrong, also where ending what was begun fails."""
    told: list[str] = []

    async def end() -> None:
        told.append("ended")
        if not ends:
            raise InfrastructureFault("its tools ended with KeyError")

    async def begun() -> None:
        async with cleanup_on_error(end):
            raise why

    with pytest.raises(type(why)) as raised:
        asyncio.run(begun())
    assert (raised.value is why, told) == (True, ["ended"])


def test_what_is_set_up_stays() -> None:
    async def end() -> None:
        raise AssertionError

    async def begun() -> str:
        async with cleanup_on_error(end):
            return "set up"

    assert asyncio.run(begun()) == "set up"
