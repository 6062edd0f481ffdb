"""Replicas, trajectories, their tools and a policy, in simulated time."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from parts.fleet.costs import Costs
from parts.fleet.loads import Job
from parts.fleet.replica import Call, SimulatedReplica
from retcon.engine.pool.policy import Action, Evict, Send


@dataclass(frozen=True, slots=True)
class Restart:
    """Request to cancel a trajectory; its next first call starts it anew."""

    id: Hashable


def number_of(id: Hashable) -> int:
    """Here trajectories are numbers; to a policy they are anything."""
    assert isinstance(id, int)
    return id


class Policy(Protocol):
    """`retcon.engine.pool.policy.Policy`, or one to compare it with."""

    def ask(self, id: Hashable, tokens: int, limit: int, now: float, group: Hashable = None) -> None: ...
    def answered(self, id: Hashable, generated: int, now: float) -> None: ...
    def failed(self, id: Hashable, now: float) -> None: ...
    def released(self, id: Hashable, now: float) -> None: ...
    def due(self, now: float) -> Sequence[Action | Restart]: ...
    def wake(self, now: float) -> float | None: ...


class Reading(Protocol):
    """A policy that looks at the engines' gauges every `interval` seconds: (share of memory in use, calls that run,
    calls that wait, preemptions so far) of each that is up."""

    interval: float

    def read(self, gauges: Sequence[tuple[float, int, int, int]], now: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Fault:
    """A replica is down from `at` on, for so many seconds."""

    replica: int
    at: float
    seconds: float


@dataclass(slots=True)
class Outcome:
    """Of one step. makespan: seconds until the last trajectory ended. idle: share of the replicas' time in which they
    computed nothing. decoded, lost: tokens decoded, and those of them that were thrown away and decoded again.
    prefilled, again: tokens of histories computed, and those of them that had been computed before. preempted: times
    that a replica's memory overflowed. evicted: calls given up by the policy; restarted: trajectories; failed: calls
    that a replica's end cost. events: simulated; decisions: events passed to the policy, and the seconds that it
    took for them and for what it did."""

    makespan: float = 0.0
    idle: float = 0.0
    decoded: int = 0
    lost: int = 0
    prefilled: int = 0
    again: int = 0
    preempted: int = 0
    evicted: int = 0
    restarted: int = 0
    failed: int = 0
    events: int = 0
    decisions: int = 0
    policy_seconds: float = 0.0


@dataclass(slots=True)
class _State:
    job: Job
    turn: int = 0
    tokens: int = 0
    known: int = 0
    sampled: int = 0
    at: int | None = None  # the replica that has its call
    epoch: int = 0  # a tool that belongs to an earlier one is not waited for
    done: bool = False


class World:
    """Runs jobs to their ends. slow: factors on the times of some replicas. began: when, by the policy's clock; the
    faults' times count from then. timed: whether to measure the policy's own time. engine: makes a
    replica of its costs and a factor on its times."""

    def __init__(
        self,
        jobs: Sequence[Job],
        costs: Costs,
        replicas: int,
        policy: Policy,
        *,
        slow: dict[int, float] | None = None,
        faults: Sequence[Fault] = (),
        began: float = 0.0,
        timed: bool = False,
        engine: Callable[[Costs, float], SimulatedReplica] = SimulatedReplica,
    ) -> None:
        self.policy, self._began, self._timed = policy, began, timed
        self.replicas = [engine(costs, (slow or {}).get(n, 1.0)) for n in range(replicas)]
        self.states = [_State(job, tokens=job.prompt) for job in jobs]
        self.outcome = Outcome()
        self._heap: list[tuple[float, int, int, int, int]] = []  # time, order, kind, number, version
        self._order = 0
        self._versions = [0] * replicas
        self._touched: set[int] = set()
        self._left = len(jobs)
        self._wake: float | None = None
        for fault in faults:
            self._push(began + fault.at, _DOWN, fault.replica)
            self._push(began + fault.at + fault.seconds, _UP, fault.replica)
        if isinstance(interval := getattr(policy, "interval", None), float):
            self._push(began + interval, _READ, 0)

    def run(self) -> Outcome:
        """To the end of the last job."""
        outcome, now = self.outcome, self._began
        for id in range(len(self.states)):
            self._ask(id, now)
        self._act(now)
        while self._left:
            now, *_ = self._heap[0]
            while self._heap and self._heap[0][0] <= now:
                _, _, kind, number, version = heapq.heappop(self._heap)
                outcome.events += 1
                self._happen(kind, number, version, now)
            self._act(now)
        outcome.makespan = now - self._began
        counts = [replica.counts for replica in self.replicas]
        outcome.idle = 1 - sum(c.busy for c in counts) / (outcome.makespan * len(counts))
        outcome.decoded, outcome.prefilled = sum(c.decoded for c in counts), sum(c.prefilled for c in counts)
        outcome.again, outcome.preempted = sum(c.again for c in counts), sum(c.preempted for c in counts)
        return outcome

    def _happen(self, kind: int, number: int, version: int, now: float) -> None:
        if kind == _BOUNDARY:
            if version == self._versions[number]:
                self._advance(number, now)
        elif kind == _TOOL:
            if version == self.states[number].epoch:
                self._ask(number, now)
        elif kind == _DOWN:
            self._versions[number] += 1
            for call, made in self.replicas[number].kill(now):
                self._failed(number_of(call.id), made, now)
        elif kind == _UP:
            self.replicas[number].up = True
        elif kind == _READ:
            self._read(now)
        elif kind == _WAKE and self._wake == now:
            self._wake = None

    def _advance(self, number: int, now: float) -> None:
        for call, generated in self.replicas[number].advance(now):
            id = number_of(call.id)
            state = self.states[id]
            state.at = None
            state.sampled += generated
            state.tokens += generated
            state.known = state.tokens
            self._tell(self.policy.answered, id, generated, now)
            turn = state.job.turns[state.turn]
            state.turn += 1
            if state.turn == len(state.job.turns):
                state.done = True
                self._left -= 1
                self.replicas[number].forget(id)
                self._tell(self.policy.released, id, now)
            else:
                state.tokens += turn.shown
                self._push(now + turn.seconds, _TOOL, id, state.epoch)
        self._touched.add(number)

    def _act(self, now: float) -> None:
        """Do what the policy says, until it has nothing more to say."""
        while True:
            began = time.process_time() if self._timed else 0.0
            actions = self.policy.due(now)
            if self._timed:
                self.outcome.policy_seconds += time.process_time() - began
            if not actions:
                break
            for action in actions:
                if isinstance(action, Send):
                    self._send(number_of(action.id), action.replica, now)
                elif isinstance(action, Evict):
                    if action.running:
                        self._abort(number_of(action.id), now)
                        self.outcome.evicted += 1
                    self.replicas[action.replica].forget(action.id)
                else:
                    self._restart(number_of(action.id), now)
        for number in self._touched:
            replica = self.replicas[number]
            boundary = replica.boundary()
            if boundary is None and (replica.waiting or replica.calls):
                boundary = now
            self._versions[number] += 1
            if boundary is not None:
                self._push(boundary, _BOUNDARY, number, self._versions[number])
        self._touched.clear()
        wake = self.policy.wake(now)
        if wake is not None and (self._wake is None or wake < self._wake):
            self._wake = max(now + 1e-6, wake)
            self._push(self._wake, _WAKE, 0)

    def _ask(self, id: int, now: float) -> None:
        state = self.states[id]
        self._tell(self.policy.ask, id, state.tokens, state.job.limit - state.tokens, now, state.job.group)

    def _send(self, id: int, number: int, now: float) -> None:
        state, replica = self.states[id], self.replicas[number]
        assert state.at is None, f"{id} has two calls"
        if not replica.up:
            self.outcome.failed += 1
            self._tell(self.policy.failed, id, now)
            return
        job = state.job
        state.at = number
        wanted = job.turns[state.turn].sampled
        replica.submit(Call(id, state.tokens, wanted, job.group, job.prompt, state.known), now)
        self._touched.add(number)

    def _abort(self, id: int, now: float) -> None:
        state = self.states[id]
        if state.at is None:
            return
        made = self.replicas[state.at].abort(id, now)
        self._touched.add(state.at)
        self.outcome.lost += made
        state.at = None
        if made:
            state.known = max(state.known, state.tokens)

    def _failed(self, id: int, made: int, now: float) -> None:
        state = self.states[id]
        state.at = None
        self.outcome.lost += made
        self.outcome.failed += 1
        if made:
            state.known = max(state.known, state.tokens)
        self._tell(self.policy.failed, id, now)

    def _restart(self, id: int, now: float) -> None:
        self._abort(id, now)
        state = self.states[id]
        self.outcome.lost += state.sampled
        self.outcome.restarted += 1
        state.epoch += 1
        state.turn = state.sampled = 0
        state.tokens = state.job.prompt

    def _read(self, now: float) -> None:
        policy: Reading = self.policy  # type: ignore[assignment]
        gauges = [
            (r.used / r.costs.capacity, len(r.calls) - len(r.waiting), len(r.waiting), r.counts.preempted)
            for r in self.replicas
            if r.up
        ]
        policy.read(gauges, now)
        self._push(now + policy.interval, _READ, 0)

    def _tell(self, what: Callable[..., None], *about: object) -> None:
        self.outcome.decisions += 1
        if not self._timed:
            what(*about)
            return
        began = time.process_time()
        what(*about)
        self.outcome.policy_seconds += time.process_time() - began

    def _push(self, at: float, kind: int, number: int, version: int = 0) -> None:
        self._order += 1
        heapq.heappush(self._heap, (at, self._order, kind, number, version))


_BOUNDARY, _TOOL, _DOWN, _UP, _READ, _WAKE = range(6)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds that no policy can be below: of the longest trajectory alone, and of all work shared out evenly."""

    longest: float
    work: float

    @property
    def best(self) -> float:
        return max(self.longest, self.work)


@dataclass(slots=True)
class _Work:
    decoded: int = 0
    attended: int = 0
    fed: int = 0
    prompts: dict[int, int] = field(default_factory=dict)


def bounds(jobs: Sequence[Job], costs: Costs, replicas: int) -> Bounds:
    """Of a load. A forward holds `capacity` tokens and `rows` sequences at most, each group's prompt is computed once
    at least, and nothing else twice."""
    work, longest = _Work(), 0.0
    for job in jobs:
        tokens, alone, fed = job.prompt, 0.0, job.prompt
        for turn in job.turns:
            later = turn.sampled - 1  # the forward that ends the prefill gives the first one
            alone += costs.base + costs.steps(later, 1, tokens + 1) + costs.prefill * fed
            work.decoded += later
            work.attended += later * (tokens + 1) + later * (later - 1) // 2
            tokens += turn.sampled + turn.shown
            fed = turn.shown
            work.fed += turn.shown
        alone += sum(turn.seconds for turn in job.turns[:-1])
        work.fed -= job.turns[-1].shown
        work.prompts[job.group] = job.prompt
        longest = max(longest, alone - costs.prefill * job.prompt)
    forwards = max(work.attended / costs.capacity, work.decoded / costs.rows)
    seconds = (
        forwards * costs.base + work.decoded * costs.row + work.attended * costs.context
        + (work.fed + sum(work.prompts.values())) * costs.prefill
    )  # fmt: skip
    return Bounds(longest, seconds / replicas)
