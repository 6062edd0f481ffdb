from __future__ import annotations

from retcon.sandbox.pool.fleet import WaitQueue

ALL = {"a", "b"}


def queued(*profiles: str, patience: int = 2) -> WaitQueue[int]:
    waiting: WaitQueue[int] = WaitQueue(patience)
    for number, profile in enumerate(profiles):
        waiting.push(profile, number)
    return waiting


def served(waiting: WaitQueue[int], profile: str, ready: set[str] = ALL) -> list[int]:
    """What one place serves, a worker of another profile put in it whenever it is that one's turn."""
    order = []
    while (turn := waiting.next(profile, ready)) is not None:
        profile = turn
        item = waiting.pop(profile)
        assert item is not None
        order.append(item)
    return order


def test_calls_of_one_profile_are_served_in_order() -> None:
    assert served(queued("a", "a", "a"), "a") == [0, 1, 2]


def test_a_worker_keeps_to_its_profile_for_a_bounded_number_of_calls() -> None:
    assert served(queued("b", "a", "a", "a", "a"), "a") == [1, 2, 0, 3, 4]
    assert served(queued("b", "a", "a", "a", "a", patience=0), "a") == [0, 1, 2, 3, 4]


def test_nobody_is_overtaken_more_often_than_that() -> None:
    order = served(queued(*"ab" * 50, patience=3), "a")
    assert sorted(order) == list(range(100))
    for number in range(100):
        before = order[: order.index(number)]
        later_ones_while_oldest = [
            n for i, n in enumerate(before) if n > number and set(range(number)) <= set(before[:i])
        ]
        assert len(later_ones_while_oldest) <= 3


def test_a_profile_that_is_not_ready_waits_without_stopping_others() -> None:
    waiting = queued("b", "a")
    assert served(waiting, "a", {"a"}) == [1]
    assert len(waiting) == 1
    assert served(waiting, "a") == [0]


def test_a_call_that_was_taken_out_is_not_served() -> None:
    waiting = queued("a")
    ticket = waiting.push("a", 7)
    waiting.push("a", 8)
    waiting.remove(ticket)
    waiting.remove(ticket)
    assert waiting.count("a") == 2
    assert served(waiting, "a") == [0, 8]


def test_calls_that_move_keep_the_place_of_their_arrival() -> None:
    waiting = queued("a", "b", "a", "b")
    waiting.move("b", "a")
    assert waiting.profiles() == ["a"]
    assert served(waiting, "a") == [0, 1, 2, 3]


def test_clearing_returns_all_in_order() -> None:
    waiting = queued("a", "b", "a")
    assert waiting.clear() == [0, 1, 2]
    assert len(waiting) == 0
