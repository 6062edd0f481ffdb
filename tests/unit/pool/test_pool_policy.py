"""Which replica answers what, when, and who gives way."""

from __future__ import annotations

from typing import Any

import pytest

from retcon.engine.pool.policy import Action, Evict, Policy, PoolSettings, Send

RATE = 10.0
"""Tokens a second of one call, in all of these."""


def pool(*capacities: float | None, **settings: Any) -> Policy:
    about: dict[str, Any] = {"admit": 1.0, "full": 1.0, "margin": 0.0, "fastest": RATE, "prefill": 100.0} | settings
    return Policy(capacities, settings=PoolSettings(**about))


def sent(policy: Policy, now: float) -> dict[object, int]:
    """Trajectories that go to a replica now; nobody gives way."""
    actions = policy.due(now)
    assert all(isinstance(action, Send) for action in actions)
    return {action.id: action.replica for action in actions}


def ended(policy: Policy, name: str, tokens: int, now: float, group: object = None) -> None:
    """A trajectory of one call comes and goes."""
    policy.ask(name, tokens - 1, 1, now, group)
    assert name in sent(policy, now)
    policy.answered(name, 1, now)
    policy.released(name, now)


def test_calls_are_spread_and_a_trajectory_stays_where_its_keys_and_values_lie() -> None:
    policy = pool(1000, 1000)
    for name in "abcd":
        policy.ask(name, 50, 50, 0.0)
    first = sent(policy, 0.0)
    assert sorted(first.values()) == [0, 0, 1, 1]
    for name in "abcd":
        policy.answered(name, 10, 1.0)
        policy.ask(name, 70, 30, 2.0)
    assert sent(policy, 2.0) == first


def test_once_lengths_are_known_more_are_let_in() -> None:
    policy = pool(1000)
    policy.ask("longest", 100, 800, 0.0)
    sent(policy, 0.0)
    policy.answered("longest", 1, 0.1)
    policy.released("longest", 0.1)
    for n in range(200):
        ended(policy, f"short {n}", 120, 0.2)
    for n in range(8):
        policy.ask(n, 100, 800, 1.0)
    assert len(sent(policy, 1.0)) >= 6  # at full length one fits


def test_trajectories_that_are_still_open_count_where_the_short_ones_have_ended() -> None:
    """Ten ended at 110 tokens, as forty did that are at 500 now and have not: a new one may well get longer."""
    seen, blind = pool(None), pool(None)
    for policy in (seen, blind):
        policy.ask("x", 1, 899, 0.0)
    for n in range(40):
        seen.ask(f"open {n}", 500, 400, 0.0)
    for policy in (seen, blind):
        for n in range(40):
            ended(policy, f"short {n}", 110, 0.0)
    assert seen.lengths.remaining(50) > 1.5 * blind.lengths.remaining(50)


def test_nobody_loses_room_that_nobody_waits_for() -> None:
    policy = pool(1000)
    policy.ask("away", 600, 100, 0.0)
    sent(policy, 0.0)
    policy.answered("away", 50, 1.0)
    assert policy.wake(1.0) is None or policy.due(policy.wake(1.0) or 0.0) == []
    assert policy.due(1e6) == []
    policy.ask("away", 700, 10, 1e6)
    assert sent(policy, 1e6) == {"away": 0}


def expecting_little() -> Policy:
    """A pool of one replica of 1,000 tokens, which has seen 300 trajectories end at 210."""
    policy = pool(1000, admit=0.99)
    policy.ask("longest", 1, 899, 0.0)
    sent(policy, 0.0)
    policy.answered("longest", 1, 0.0)
    policy.released("longest", 0.0)
    for n in range(300):
        ended(policy, f"short {n}", 210, 0.0)
    return policy


def next_due(policy: Policy, now: float) -> tuple[list[Action], float]:
    """What is due next though nothing happens, and when."""
    while not (actions := policy.due(now)):
        wake = policy.wake(now)
        assert wake is not None
        assert wake > now
        now = wake
    return actions, now


def test_where_estimates_fell_short_the_one_with_the_least_to_lose_gives_way_and_never_the_oldest() -> None:
    """Three of 200 tokens, thought to end soon, grow by 10 a second from 0, 0.1 and 20 s on: 1,000 are full at 33 s."""
    policy = expecting_little()
    for name, at in (("oldest", 0.0), ("long at it", 0.1), ("just begun", 20.0)):
        policy.ask(name, 200, 700, at)
        assert sent(policy, at) == {name: 0}
    now = 20.0
    actions, now = next_due(policy, now)
    assert actions == [Evict("just begun", 0, running=True)]
    assert 20.0 < now <= 33.5
    assert policy.waiting == 1
    for name in ("long at it", "oldest"):
        policy.answered(name, 700, 70.0)
        policy.released(name, 70.0)
    assert sent(policy, 70.0) == {"just begun": 0}


def test_a_full_replica_takes_calls_where_none_is_out_that_could_end() -> None:
    """Both calls of a replica came back, longer than its clock said, just before it was thought to be full."""
    policy = pool(1000)
    for name in ("first", "second"):
        policy.ask(name, 400, 100, 0.0)
    assert sent(policy, 0.0) == {"first": 0, "second": 0}
    full = policy.wake(0.0)
    assert full is not None
    for name in ("first", "second"):
        policy.answered(name, 150, full - 0.01)
    assert policy.due(full) == [Evict("first", 0, running=False)]
    policy.ask("new", 300, 100, full)
    assert sent(policy, full) == {"new": 0}


def test_nothing_is_due_while_no_replica_takes_a_call_however_long_a_tool_runs() -> None:
    policy = Policy([1000.0, 1000.0], max_requests=1, settings=PoolSettings(prefill=100.0, fastest=RATE))
    policy.ask("away", 100, 100, 0.0)
    place = sent(policy, 0.0)["away"]
    policy.answered("away", 10, 1.0)
    for name in "abc":
        policy.ask(name, 100, 100, 1.0)
    assert len(sent(policy, 1.0)) == 2
    assert policy.waiting == 1
    assert policy.due(500.0) == []
    wake = policy.wake(500.0)
    assert wake is None or wake > 500.0, "its room alone is no help"
    ending = next(name for name in "ab" if policy.replicas[place].residents.get(name))
    policy.answered(ending, 10, 501.0)
    assert sent(policy, 501.0) == {"c": place}


def test_calls_of_a_dead_replica_go_elsewhere_and_it_is_tried_again_later() -> None:
    policy = pool(None, None)
    policy.ask("a", 10, 10, 0.0)
    policy.ask("b", 10, 10, 0.0)
    first = sent(policy, 0.0)
    dead = first["a"]
    policy.failed("a", 1.0)
    assert sent(policy, 1.0) == {"a": 1 - dead}
    policy.ask("c", 10, 10, 1.05)
    assert sent(policy, 1.05) == {"c": 1 - dead}
    assert policy.down_since(1.05) is None
    policy.ask("d", 10, 10, 1.2)  # the pause was 0.1 s
    assert sent(policy, 1.2) == {"d": dead}
    policy.failed("d", 1.3)
    policy.ask("e", 10, 10, 1.45)  # it has doubled
    assert sent(policy, 1.45)["e"] == 1 - dead


def test_where_all_are_down_calls_wait_for_the_first_to_be_tried_again() -> None:
    policy = pool(None)
    policy.ask("a", 10, 10, 0.0)
    sent(policy, 0.0)
    policy.failed("a", 1.0)
    assert policy.down_since(1.0) == 1.0
    assert policy.due(1.0) == []
    assert policy.wake(1.0) == pytest.approx(1.1)
    assert sent(policy, 1.1) == {"a": 0}
    policy.failed("a", 2.0)
    assert policy.down_since(2.0) == 1.0, "it was tried in between, and did not answer"
    assert sent(policy, 3.0) == {"a": 0}
    policy.answered("a", 1, 4.0)
    policy.ask("a", 11, 10, 4.0)
    sent(policy, 4.0)
    policy.failed("a", 5.0)
    assert policy.down_since(5.0) == 5.0


def test_a_trajectory_leaves_a_straggler_when_what_is_left_ends_sooner_elsewhere() -> None:
    """Turns of 100 tokens take 2 s on one replica and 20 s on the other."""
    policy = pool(100_000, 100_000, fastest=100.0, prefill=10_000.0)
    for name in ("a", "b"):
        policy.ask(name, 100, 9_900, 0.0)
    place = sent(policy, 0.0)
    now, tokens = {"a": 0.0, "b": 0.0}, {"a": 100, "b": 100}
    for _ in range(4):
        for name, seconds in (("b", 2.0), ("a", 20.0)):
            now[name] = max(now.values()) + seconds
            tokens[name] += 100
            policy.answered(name, 100, now[name])
            if name == "b" or _ < 3:
                policy.ask(name, tokens[name], 10_000 - tokens[name], now[name])
                assert sent(policy, now[name]) == {name: place[name]}
    policy.ask("a", tokens["a"], 10_000 - tokens["a"], now["a"])
    assert policy.due(now["a"]) == [Evict("a", place["a"], running=False), Send("a", place["b"])]


def test_longer_groups_go_first_once_some_of_each_have_told() -> None:
    policy = pool(400)
    for n in range(6):
        policy.ask(("short", n), 50, 150, 0.0, group="short")
    for n in range(6):
        policy.ask(("long", n), 50, 150, 0.0, group="long")
    order: list[object] = []
    now = 0.0
    while len(order) < 12:
        for name in sent(policy, now):
            order.append(name)
            policy.answered(name, 140 if name[0] == "long" else 10, now + 1)  # type: ignore[index]
            policy.released(name, now + 1)
        now += 1
    kinds = [name[0] for name in order]  # type: ignore[index]
    assert kinds[:4].count("long") == 2
    assert kinds[4:] == ["long"] * 4 + ["short"] * 4


def test_a_caller_that_is_gone_leaves_nothing_behind() -> None:
    policy = pool(1000)
    for n in range(8):
        policy.ask(n, 100, 200, 0.0)
    sent(policy, 0.0)
    for n in range(8):
        policy.released(n, 1.0)
        policy.released(n, 1.0)
    assert policy.waiting == 0
    assert all(not replica.residents and replica.calls == 0 for replica in policy.replicas)
    policy.ask("again", 100, 900, 2.0)
    assert sent(policy, 2.0) == {"again": 0}


def with_a_slow_one() -> Policy:
    """Replicas for 8 calls each; the first gives a call 10 tokens a second, the second 40."""
    policy = Policy([1e6, 1e6], max_requests=8)
    for n in range(8):
        policy.ask(n, 100, 1_000, 0.0)
    places = sent(policy, 0.0)
    for seconds, replica in ((10.0, 1), (40.0, 0)):
        for n in (name for name, place in places.items() if place == replica):
            policy.answered(n, 400, seconds)
            policy.released(n, seconds)
    return policy


def test_a_slow_replica_that_has_its_share_keeps_nothing_from_the_others() -> None:
    policy = with_a_slow_one()
    for n in range(20):
        policy.ask(f"new {n}", 100, 1_000, 50.0)
    places = list(sent(policy, 50.0).values())
    assert places.count(1) == 8, "all that the quick one takes"
    assert 1 <= places.count(0) < 8


def test_a_call_that_ends_on_a_slow_replica_makes_room_there_at_once() -> None:
    policy = with_a_slow_one()
    for n in range(20):
        policy.ask(f"new {n}", 100, 1_000, 50.0)
    ending = next(name for name, place in sent(policy, 50.0).items() if place == 0)
    policy.answered(ending, 5, 51.0)
    assert list(sent(policy, 51.0).values()) == [0]


def test_nothing_is_kept_of_groups_that_are_gone_before_they_were_let_in() -> None:
    policy = pool(100)
    policy.ask("first", 50, 50, 0.0, "a group")
    assert sent(policy, 0.0) == {"first": 0}
    for n in range(20):
        policy.ask(n, 50, 50, 1.0, group=n)
    for n in range(20):
        policy.released(n, 2.0)
    policy.answered("first", 1, 3.0)
    policy.released("first", 3.0)
    assert policy.due(3.0) == []
    assert policy._waiting._groups == {}
