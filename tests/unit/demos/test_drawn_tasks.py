"""The tasks that demonstrations are made of, where a task set gives some of them more than once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, cycle, islice

from retcon.core.seeds import derive
from retcon.core.types import Trajectory
from retcon.rollout.lengths import PATIENCE
from retcon.tasks.types import Task
from retcon.train.demos.rolling import Drawn, drawn_tasks


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


def test_demonstrations_are_of_a_stream_of_their_own() -> None:
    seeds: list[int] = []

    class Noting(Given):
        def train(self, seed: int) -> Iterator[Task]:
            seeds.append(seed)
            return super().train(seed)

    assert [task.id for task in drawn_tasks(Noting("ab"), 5)] == ["a", "b"]
    assert seeds == [derive("demonstrations", 5)]


def test_a_stream_is_drawn_no_further_than_it_is_asked_for() -> None:
    left = iter("abcdef")
    drawn = Drawn(left)
    assert (drawn.part(1, 3), drawn.part(0, 2), drawn.part(2, 4)) == (["b", "c"], ["a", "b"], ["c", "d"])
    assert next(left) == "e"
    assert drawn.part(3, 9) == ["d", "f"], "fewer where it ends"
