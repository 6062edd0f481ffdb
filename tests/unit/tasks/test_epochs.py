"""Task sets that end, and prompts that are too long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.errors import RecipeError
from retcon.rollout.lengths import PATIENCE, check_lengths, fitting, prompt_ids
from retcon.tasks.types import Task, epochs

CHAT = Chat(ByteTokenizer())


def tasks(*names: object) -> Iterator[Task]:
    return (Task(str(n), "", "") for n in names)


def drawn(orders: list[list[int]], apart: int, number: int) -> list[int]:
    stream = epochs(lambda epoch: tasks(*orders[epoch % len(orders)]), apart=apart)
    return [int(task.id) for task in islice(stream, number)]


def test_an_endless_stream_stays_as_it_is():
    stream = epochs(lambda epoch: tasks(*range(5000)) if epoch == 0 else tasks(), apart=7)
    assert [int(t.id) for t in islice(stream, 5000)] == list(range(5000))


def test_a_set_that_ends_is_gone_through_again_in_the_next_epochs_order():
    assert drawn([[0, 1, 2, 3], [3, 2, 1, 0]], 1, 8) == [0, 1, 2, 3, 3, 2, 1, 0]


def test_no_step_draws_a_task_twice():
    assert drawn([[0, 1, 2, 3], [3, 2, 1, 0]], 3, 8) == [0, 1, 2, 3, 1, 2, 3, 0]


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(st.lists(st.permutations(range(n)), min_size=1, max_size=4),
                                                     st.integers(1, n))))  # fmt: skip
def test_all_tasks_come_equally_often_and_none_too_soon(case):
    orders, apart = case
    found = drawn(orders, apart, 40)
    for n in range(len(found) - apart + 1):
        assert len(set(found[n : n + apart])) == apart
    often = [found.count(task) for task in orders[0]]
    assert max(often) - min(often) <= 2


def test_fewer_tasks_than_a_step_draws_are_refused_with_their_number():
    stream = epochs(lambda _: tasks(0, 1, 0), apart=3)
    assert [next(stream).id, next(stream).id] == ["0", "1"]
    with pytest.raises(RecipeError, match=r"ends after 2 different tasks, and a step can draw 3.*rl\.prompts"):
        next(stream)
    with pytest.raises(RecipeError, match="ends after 0 different tasks"):
        next(epochs(lambda _: tasks(), apart=1))


def worded(*lengths: int) -> list[Task]:
    return [Task(f"t{n}", "x" * length, "") for n, length in enumerate(lengths)]


def test_prompts_that_leave_no_room_are_left_out_or_refused():
    room = prompt_ids(CHAT, worded(5)[0]) + 1  # for one id after a question of 5 letters
    assert [t.id for t in fitting(worded(5, 6, 4), CHAT, room)] == ["t0", "t2"]
    with pytest.raises(RecipeError, match=rf"max_tokens = {room}.* 2 of 3 problems .*t2, has {room + 4} tokens"):
        check_lengths(worded(5, 6, 10), CHAT, room, "problems")
    check_lengths(worded(5, 4), CHAT, room, "problems")


def test_a_prompts_length_counts_its_system_message():
    (task,) = worded(5)
    assert prompt_ids(CHAT, replace(task, system="Be brief.")) > prompt_ids(CHAT, task)


def test_a_stream_of_which_nothing_fits_is_given_up():
    shortest = prompt_ids(CHAT, worded(7)[0])
    with pytest.raises(RecipeError, match=f"3 prompts in a row.* shortest has {shortest} tokens"):
        next(fitting(worded(9, 7, 8), CHAT, 10))
    endless = (Task(str(n), "x" * 20, "") for n in count())
    with pytest.raises(RecipeError, match=f"{PATIENCE:,} prompts in a row"):
        next(fitting(endless, CHAT, 10))


def test_a_stream_is_not_given_up_for_what_it_leaves_out_here_and_there(monkeypatch):
    monkeypatch.setattr("retcon.rollout.lengths.PATIENCE", 3)
    room = prompt_ids(CHAT, worded(5)[0]) + 1
    short, long = worded(5, 6)
    assert list(fitting([short, long, long, short, long, long], CHAT, room)) == [short, short]
    with pytest.raises(RecipeError, match="3 prompts in a row"):
        list(fitting([short, long, long, long, short], CHAT, room))
