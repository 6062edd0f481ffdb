"""The tasks that demonstrations are made of, where a task set gives some of them more than once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, cycle, islice

from retcon.core.types import Trajectory
from retcon.rollout.lengths import PATIENCE
from retcon.tasks.types import Task
from retcon.train.demos.rolling import drawn_tasks


class Given:
    """A task set whose stream is of these names. left: what nobody has asked for yet."""

    name, system = "given", None

    def __init__(self, names: Iterable[str]) -> None:
        self.left = iter(names)

    def train(self, seed: int) -> Iterator[Task]:
        return (Task(name, "Q", "A") for name in self.left)

    def evaluation(self, count: int, seed: int) -> list[Task]:
        raise NotImplementedError

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        raise NotImplementedError


def drawn(tasks: Given) -> list[str]:
    return [task.id for task in drawn_tasks(tasks, 0)]


def test_a_task_is_drawn_once_however_late_another_one_comes() -> None:
    assert drawn(Given(chain(islice(cycle("ab"), PATIENCE), "cac"))) == ["a", "b", "c"]


def test_a_stream_that_goes_through_the_same_tasks_without_end_comes_to_an_end() -> None:
    tasks = Given(islice(cycle("ab"), 2 * PATIENCE))
    assert drawn(tasks) == ["a", "b"]
    assert next(tasks.left, None) is not None, "without end it would be asked for ever"


def test_as_many_may_come_again_in_a_row_except_for_one() -> None:
    again = ["a"] * PATIENCE  # the first of which is new
    assert drawn(Given([*again, "b", *again, "c"])) == ["a", "b"]
    assert drawn(Given([*again, "b", *again[1:], "c"])) == ["a", "b", "c"], "counted anew after each that is new"
