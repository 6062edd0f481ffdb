"""The simulator: loads whose makespan is known, every token counted, and the pool's policy in it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retcon.engine.pool.policy import Policy as Pool
from retcon.engine.pool.policy import PoolSettings

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from parts.fleet.costs import Costs
from parts.fleet.loads import Job, Turn
from parts.fleet.rivals import Aimd, LeastRequests, PrefixAffinity, Reserving, Static, Sticky
from parts.fleet.world import Fault, Outcome, Policy, World, bounds

STEP = 0.125
PLAIN = Costs(capacity=10_000, base=STEP, row=0.0, context=0.0, prefill=0.0, chunk=1000, rows=64)
REAL = Costs(capacity=10_000, base=0.5, row=0.01, context=1e-4, prefill=2e-3, chunk=1000, rows=64)


def job(*turns: tuple[int, int, float], prompt: int = 10, group: int = 0, limit: int = 1000) -> Job:
    return Job(group, prompt, tuple(Turn(*turn) for turn in turns), limit)


def simulate(
    jobs: list[Job], costs: Costs, replicas: int = 1, policy: Policy | None = None, **about: object
) -> Outcome:
    return World(jobs, costs, replicas, policy or LeastRequests(replicas), **about).run()  # type: ignore[arg-type]


def pool(costs: Costs, replicas: int) -> Pool:
    return Pool([costs.capacity] * replicas, settings=PoolSettings(fastest=1 / costs.base))


def policies(jobs: list[Job], replicas: int, costs: Costs) -> dict[str, Policy]:
    longest = max(one.limit for one in jobs)
    return {
        "static": Static(replicas, len(jobs)), "least": LeastRequests(replicas), "sticky": Sticky(replicas),
        "affinity": PrefixAffinity(replicas), "reserving": Reserving(replicas, costs.capacity, longest),
        "aimd": Aimd(replicas, costs.capacity, longest),
        "pool": pool(costs, replicas),
    }  # fmt: skip


def test_one_trajectory_takes_its_prefill_its_forwards_and_its_tools() -> None:
    """The forward that ends a prefill gives the first token; the k-th after it attends to the prompt and k tokens."""
    one = job((40, 20, 3.0), (30, 0, 0.0), prompt=100)
    first = 0.5 + 100 * 2e-3 + sum(0.5 + 0.01 + 1e-4 * (101 + k) for k in range(39))
    second = 0.5 + 20 * 2e-3 + sum(0.5 + 0.01 + 1e-4 * (161 + k) for k in range(29))
    outcome = simulate([one], REAL)
    assert outcome.makespan == pytest.approx(first + 3.0 + second)
    assert outcome.prefilled == 120
    assert outcome.idle == pytest.approx(3.0 / outcome.makespan)


def test_equal_trajectories_share_their_forwards() -> None:
    assert simulate([job((80, 0, 0.0))] * 50, PLAIN).makespan == pytest.approx(80 * STEP)
    assert simulate([job((80, 0, 0.0))] * 50, PLAIN, 5).makespan == pytest.approx(80 * STEP)
    assert simulate([job((80, 0, 0.0))] * 128, PLAIN).makespan >= 160 * STEP  # 64 at a time


def test_an_overflow_puts_the_last_one_back_and_no_token_is_decoded_twice() -> None:
    tight = Costs(capacity=300, base=STEP, row=0.0, context=0.0, prefill=0.0)
    jobs = [job((180, 0, 0.0), prompt=20, group=n) for n in range(2)]
    outcome = simulate(jobs, tight)
    assert outcome.preempted == 1
    assert outcome.decoded == 360
    assert outcome.again > 0
    # Both reach 150 tokens, where one goes on alone for 50 more; the other has its 151 computed again.
    assert outcome.makespan == pytest.approx((180 + 50) * STEP, abs=2 * STEP)


TURNS = st.lists(st.tuples(st.integers(1, 120), st.integers(0, 60), st.floats(0, 20)), min_size=1, max_size=5)
JOBS = st.lists(st.tuples(st.integers(0, 3), TURNS), min_size=1, max_size=40)


def made(drawn: list[tuple[int, list[tuple[int, int, float]]]]) -> list[Job]:
    return [job(*turns, prompt=20 + 25 * group, group=group) for group, turns in drawn]


@settings(max_examples=25, deadline=None)
@given(JOBS, st.integers(1, 4), st.booleans())
def test_every_policy_ends_and_every_token_is_decoded_once_but_for_those_that_were_lost(
    drawn: list[tuple[int, list[tuple[int, int, float]]]], replicas: int, dies: bool
) -> None:
    jobs = made(drawn)
    tight = Costs(capacity=2500, base=STEP, row=0.001, context=1e-5, prefill=1e-4, chunk=256, rows=16)
    wanted = sum(turn.sampled for one in jobs for turn in one.turns)
    for name, policy in policies(jobs, replicas, tight).items():
        outcome = simulate(jobs, tight, replicas, policy, faults=[Fault(0, 7.0, 5.0)] if dies else [])
        assert outcome.decoded == wanted + outcome.lost, name
        assert outcome.makespan >= bounds(jobs, tight, replicas).best - 1e-6, name


@settings(max_examples=25, deadline=None)
@given(JOBS, st.integers(1, 3))
def test_the_pool_never_lets_keys_and_values_overflow(
    drawn: list[tuple[int, list[tuple[int, int, float]]]], replicas: int
) -> None:
    """Where a forward takes as long as the policy thinks, at least."""
    costs = Costs(capacity=2500, base=STEP, row=0, context=0, prefill=0)
    outcome = simulate(made(drawn), costs, replicas, pool(costs, replicas))
    assert outcome.preempted == 0
