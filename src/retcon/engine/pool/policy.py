"""Routing policy of calls over replicas: admission, stickiness, eviction, faults.

It decides from the events and times it is given. Nothing here waits or measures, so that a simulator drives the object
that serves (`benchmarks/scheduling.py`).

- **Admission.** A trajectory is admitted where the keys and values of all residents are expected to fit, now and at
  every later moment, as they grow and end (`Lengths`; in the spirit of the Past-Future scheduler, arXiv 2507.10150). A
  trajectory under way goes before new ones.
- **Stickiness.** Its next call goes where its keys and values lie, unless that replica is down, or another one is so
  much faster that computing the history again pays.
- **Tools.** While its tool runs, a trajectory keeps its room. If others wait for room, it keeps it for as long as
  computing the history again would cost, room and time weighed against each other: at most twice the cost of a policy
  that knows how long the tool takes (the ski-rental rule).
- **Eviction.** If estimates fell short and a replica would overflow, whole trajectories are evicted, first those that
  lose the least work; never the oldest one that is computed, so that there is always progress.
- **Faults.** A replica that fails gets no calls for a while that doubles, then one as a probe (`CircuitBreaker`); its
  trajectories are computed again elsewhere.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from retcon.http.client import CircuitBreaker


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Settings of a pool. admit: share of a replica's keys and values for admitted trajectories, with `margin` standard
    deviations. full: share from which on some are evicted. prefill: a replica's tokens a second of history. fastest:
    most tokens a second of one call, until answers show it. pause, longest_pause: seconds without calls after a
    failure, doubled with each."""

    admit: float = 0.94
    margin: float = 0.5
    full: float = 0.97
    prefill: float = 10_000.0
    fastest: float = 200.0
    pause: float = 0.1
    longest_pause: float = 2.0


@dataclass(frozen=True, slots=True)
class Send:
    """Action: send a trajectory's waiting call to a replica now."""

    id: Hashable
    replica: int


@dataclass(frozen=True, slots=True)
class Evict:
    """Action: evict a trajectory from a replica, which may drop its cache. running: its call there is cancelled, and
    waits for a place again."""

    id: Hashable
    replica: int
    running: bool


Action = Send | Evict


RATIO = 1.1
"""Ratio of successive bin edges."""
LEAST, BINS = 16, 128
EDGES = [0.0, *(LEAST * RATIO**n for n in range(BINS - 1)), math.inf]
"""Tokens; the last finite edge is at about 2.6 million."""
_EDGES = np.array(EDGES)
HORIZONS = 16
"""Future points at which the trajectories' room is estimated."""
FRESH = 32
"""Least trajectories that end before the table is made anew."""
REMEMBERED = 16_384
"""Ended trajectories that count in full; older ones count less, as a model in training changes."""


class Lengths:
    """Kaplan–Meier estimate of trajectories' final tokens (prompt, sampled and observed).

    Those that end first are short. An average of the ended ones ignores that the others are longer already; this
    estimate counts them (Kaplan and Meier 1958: an open trajectory is a censored observation). Before any ended, the
    estimate is the worst case.
    """

    def __init__(self) -> None:
        self._ended = [0.0] * BINS
        self._open = [0] * BINS
        self._ceiling = 0
        self._changed = True
        self._ends = self._since = 0.0
        self._rest = np.zeros(BINS)
        self._lives = np.ones((BINS, HORIZONS))
        self._ahead = np.zeros(HORIZONS)

    def moved(self, before: int | None, tokens: int | None) -> None:
        """Move an open trajectory from `before` to `tokens` (None: not there)."""
        if before is not None:
            self._open[_bin(before)] -= 1
        if tokens is not None:
            self._open[_bin(tokens)] += 1

    def ended(self, tokens: int) -> None:
        """Count a trajectory that ended with so many tokens."""
        self._ended[_bin(tokens)] += 1
        self._ends += 1
        self._since += 1

    def can_reach(self, tokens: int) -> None:
        """Raise the most tokens that a trajectory may reach."""
        if tokens > self._ceiling:
            self._ceiling, self._changed = tokens, True

    def remaining(self, tokens: float) -> float:
        """Return the tokens that a trajectory of `tokens` is expected to add."""
        self._refresh()
        return min(max(0.0, self._ceiling - tokens), float(self._rest[_bin(tokens)]))

    def room(self, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return mean and variance of trajectories' future tokens: sizes (N,) → (2, HORIZONS).

        Each horizon has every open one add so many tokens, with the chance that it gets so long. Two sets add up."""
        self._refresh()
        lives = self._lives[np.searchsorted(_EDGES, sizes, side="right") - 1]
        then = sizes[:, None] + self._ahead
        return np.stack(((lives * then).sum(0), (lives * (1 - lives) * then**2).sum(0)))

    def _refresh(self) -> None:
        if not self._changed and self._since <= max(FRESH, self._ends / 16):
            return
        if self._ends > 2 * REMEMBERED:
            self._ended = [count / 2 for count in self._ended]
            self._ends /= 2
        survives = np.interp(self._points(), np.minimum(EDGES, self._ceiling + 1.0), self._survival())
        now = np.maximum(survives[:, :1], 1e-12)
        self._lives = np.where(self._points() <= self._ceiling, np.minimum(1.0, survives / now), 0.0)
        self._lives[:, 0] = 1.0  # they are there
        self._rest = np.asarray(np.trapezoid(self._lives, self._ahead, axis=1))
        self._changed, self._since = False, 0.0

    def _points(self) -> NDArray[np.float64]:
        """Return (BINS, HORIZONS) tokens: each bin's middle plus added tokens. Sets the horizons."""
        self._ahead = self._ceiling * np.linspace(0, 1, HORIZONS) ** 1.5
        edges = np.minimum(EDGES, self._ceiling)
        return np.asarray((edges[:-1] + edges[1:])[:, None] / 2 + self._ahead)

    def _survival(self) -> list[float]:
        """Return the share of trajectories that get longer than each edge, (BINS + 1,)."""
        risk = sum(self._ended) + sum(self._open)
        lives = [1.0]
        for ended, open_ in zip(self._ended, self._open, strict=True):
            lives.append(lives[-1] * (1 - ended / risk) if ended else lives[-1])
            risk -= ended + open_
        return lives


def _bin(tokens: float) -> int:
    return min(BINS - 1, bisect_right(EDGES, tokens) - 1)


RATES = 16
"""Answers from which a replica's decoding rate is taken."""
TELLING = 32
"""Least generated tokens of an answer that counts for the rate: short ones are mostly prefill."""
BACK = 0.3
"""Share by which the clock goes back where a call has fewer tokens than it shows: it may have been computed first."""


@dataclass(slots=True, eq=False)
class Trajectory:
    """A trajectory in the pool. id: its request id. group: shared by siblings, whose lengths predict each other.
    arrived: its number. tokens: of its history at the last event. limit: tokens that the call may add. home: replica
    with its cache. sent: when its call was given to `home`; None while it waits, or its tool runs. began: the replica's
    clock then. away: since when its tool runs. admitted: whether it ever had a place."""

    id: Hashable
    group: Hashable
    arrived: int
    tokens: int = 0
    limit: int = 0
    home: int | None = None
    sent: float | None = None
    began: float = 0.0
    away: float | None = None
    admitted: bool = False

    def size(self, clock: float) -> float:
        """Return its tokens at a time of its replica's clock."""
        if self.sent is None:
            return self.tokens
        return self.tokens + min(self.limit, clock - self.began)


@dataclass(slots=True)
class Replica:
    """A replica and its load. capacity: tokens of keys and values; inf where unknown. max_requests: calls at a time.
    fastest: most tokens a second of one call. calls: those under way.

    breaker: whether it is in rotation. rates: tokens a second of one call, of the last answers; rate: their mean, at
    first `fastest`. clock: forwards so far, estimated from answers, by `clock_at`: every forward gives every call a
    token. room: expected need of its residents (`Lengths.room`), as estimated at `weighed`. version: of its load.
    relieved: whether it evicted some for calls none of which has ended since."""

    number: int
    capacity: float
    max_requests: int
    fastest: float
    breaker: CircuitBreaker
    residents: dict[Hashable, Trajectory] = field(default_factory=dict)
    calls: int = 0
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=RATES))
    clock: float = 0.0
    clock_at: float = 0.0
    room: NDArray[np.float64] = field(default_factory=lambda: np.zeros((2, HORIZONS)))
    weighed: float = 0.0
    version: int = 0
    relieved: bool = False
    rate: float = field(init=False)

    def __post_init__(self) -> None:
        self.rate = self.fastest

    def closed(self, now: float) -> bool:
        """Return whether it takes no calls, whatever its load."""
        return not self.breaker.allows(now) or self.relieved or self.calls >= self.max_requests

    def tick(self, now: float) -> float:
        """Advance the clock to `now` and return it."""
        if now > self.clock_at:
            if self.calls:
                self.clock += (now - self.clock_at) * self.rate
            self.clock_at = now
        return self.clock

    def answered(self, one: Trajectory, generated: int, now: float) -> None:
        """Set rate and clock by a call that came back: there were as many forwards as it has tokens, or a few more for
        its prefill."""
        assert one.sent is not None
        if generated < TELLING or now <= one.sent:
            return
        self.rates.append(generated / (now - one.sent))
        self.rate = min(self.fastest, sum(self.rates) / len(self.rates))
        behind = one.began + generated - self.tick(now)
        self.clock += behind if behind > 0 else behind * BACK

    def sizes(self, now: float) -> NDArray[np.float64]:
        """Return the tokens of its residents by now, (N,)."""
        clock = self.tick(now)
        return np.fromiter((one.size(clock) for one in self.residents.values()), float, len(self.residents))

    def used(self, now: float) -> float:
        """Return the tokens of its residents by now, together."""
        return float(self.sizes(now).sum())

    def growing(self) -> float:
        """Return the tokens a second that its calls add."""
        return self.calls * self.rate


PROBES = 2
"""Trajectories of each group that are admitted before others: their lengths predict their siblings'."""


@dataclass(slots=True)
class _Group:
    """A group of siblings. admitted, left: counts. ended, tokens: those that ended by themselves, and their tokens
    together. waiting: those that wait."""

    admitted: int = 0
    left: int = 0
    ended: int = 0
    tokens: int = 0
    waiting: deque[Trajectory] = field(default_factory=deque)
    version: int = 0


class Waiting:
    """Queue of calls without a place. Trajectories under way go first, by age; then new ones: first some of each group,
    then groups with the longest trajectories, as what starts last ends last."""

    def __init__(self) -> None:
        self._again: list[tuple[int, Trajectory]] = []
        self._groups: dict[Hashable, _Group] = {}
        self._order: list[tuple[bool, float, int, int, Hashable]] = []
        self._gone: set[int] = set()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def new(self, one: Trajectory) -> None:
        """Add a trajectory's first call."""
        group = self._groups.setdefault(one.group, _Group())
        group.waiting.append(one)
        self._count += 1
        self._rank(one.group, group)

    def again(self, one: Trajectory) -> None:
        """Add a call of a trajectory under way."""
        heapq.heappush(self._again, (one.arrived, one))
        self._count += 1

    def remove(self, one: Trajectory) -> None:
        """Remove a call that was not placed."""
        self._gone.add(one.arrived)
        self._count -= 1

    def left(self, one: Trajectory, *, ended: bool) -> None:
        """Count a placed one that is gone; if it ended by itself, its siblings may get as long."""
        group = self._groups[one.group]
        group.left += 1
        if ended:
            group.ended += 1
            group.tokens += one.tokens
        if group.waiting:
            self._rank(one.group, group)
        else:
            self._drop(one.group, group)

    def first(self) -> Trajectory | None:
        """Return the next to be placed."""
        while self._again:
            if self._again[0][0] not in self._gone:
                return self._again[0][1]
            self._gone.remove(heapq.heappop(self._again)[0])
        while self._order:
            *_, version, name = self._order[0]
            group = self._groups.get(name)
            if group is None or group.version != version or not group.waiting:
                heapq.heappop(self._order)
                continue
            one = group.waiting[0]
            if one.arrived not in self._gone:
                return one
            self._gone.remove(group.waiting.popleft().arrived)
            self._rank(name, group)
            self._drop(name, group)
        return None

    def placed(self, one: Trajectory) -> None:
        """Remove `first`, which has a place now."""
        self._count -= 1
        if self._again and self._again[0][1] is one:
            heapq.heappop(self._again)
            return
        group = self._groups[one.group]
        group.waiting.popleft()
        group.admitted += 1
        self._rank(one.group, group)

    def _drop(self, name: Hashable, group: _Group) -> None:
        """Forget the group if all of it is gone."""
        if not group.waiting and group.left == group.admitted:
            del self._groups[name]

    def _rank(self, name: Hashable, group: _Group) -> None:
        group.version += 1
        if group.waiting:
            mean = group.tokens / group.ended if group.ended else 0.0
            entry = (group.admitted >= PROBES, -mean, group.waiting[0].arrived, group.version, name)
            heapq.heappush(self._order, entry)


STALE = 2.0
"""Seconds after which a replica's load is estimated anew at its next event."""
SLACK = 0.005
"""Share of a replica's room that may be added before the next check: a call at its limit is assumed to grow until it
comes back."""
FASTER = 1.5
"""How much faster another replica must be for a trajectory to move there."""


class Policy:
    """Router of calls over replicas. capacities: tokens of keys and values of each; None where unknown.

    Report events, then do the actions of `due`; `wake` returns when to ask again without an event. Times are seconds of
    any clock that never goes back.
    """

    def __init__(
        self, capacities: Sequence[float | None], *, max_requests: int = 256, settings: PoolSettings | None = None
    ) -> None:
        self.settings = settings or PoolSettings()
        self.lengths = Lengths()
        about = self.settings
        self.replicas = [
            Replica(number, math.inf if capacity is None else capacity, max_requests, about.fastest,
                    CircuitBreaker(about.pause, about.longest_pause))
            for number, capacity in enumerate(capacities)
        ]  # fmt: skip
        self._open: dict[Hashable, Trajectory] = {}
        self._waiting = Waiting()
        self._away: OrderedDict[Hashable, Trajectory] = OrderedDict()  # those longest away first
        self._arrivals = 0
        self._actions: list[Action] = []
        self._stale: set[int] = set()
        self._blocked: Trajectory | None = None  # the first that waits, for which there was no room
        self._failed: list[Replica] = []
        self._loads: list[tuple[float, int, int]] = [(0.0, r.number, 0) for r in self.replicas]
        self._checks: list[tuple[float, int]] = []  # when a replica may be full
        self._bounds = [(0.0, 0.0)] * len(self.replicas)  # (when, tokens at most)
        self._check_at = [math.inf] * len(self.replicas)

    def anew(self) -> Policy:
        """Return a new policy for the same replicas, with the learnt lengths."""
        capacities = [None if math.isinf(r.capacity) else r.capacity for r in self.replicas]
        policy = Policy(capacities, max_requests=self.replicas[0].max_requests, settings=self.settings)
        policy.lengths = self.lengths
        return policy

    # --- events ---

    def ask(self, id: Hashable, tokens: int, limit: int, now: float, group: Hashable = None) -> None:
        """Take a call: a trajectory of `tokens` wants up to `limit` more. One call at a time."""
        one = self._open.get(id)
        self.lengths.can_reach(tokens + limit)
        if one is None:
            self._arrivals += 1
            one = self._open[id] = Trajectory(id, group, self._arrivals, tokens, limit)
            self.lengths.moved(None, tokens)
            self._waiting.new(one)
            return
        self.lengths.moved(one.tokens, tokens)
        one.tokens, one.limit, one.away = tokens, limit, None
        self._away.pop(id, None)
        home = None if one.home is None else self.replicas[one.home]
        if home is None or not home.breaker.allows(now) or home.calls >= home.max_requests:
            self._leave(one)
            self._waiting.again(one)
        elif (other := self._better(one, home, now)) is not None:
            self._actions.append(Evict(id, home.number, running=False))
            self._leave(one)
            self._enter(one, other, now)
        else:
            self._send(one, home, now)

    def answered(self, id: Hashable, generated: int, now: float) -> None:
        """Record an answer of so many tokens; its tool runs now, or it will be released."""
        one = self._open[id]
        replica = self._stop(one, now)
        replica.relieved = False
        if one.sent is not None:
            replica.breaker.record_success(now)
            clock = replica.tick(now)
            replica.answered(one, generated, now)
            self._settle(replica, now, max(0.0, replica.clock - clock) * replica.calls)
        self.lengths.moved(one.tokens, one.tokens + generated)
        one.tokens += generated
        one.sent, one.away = None, now
        self._away[id] = one
        if now - replica.weighed > STALE:
            self._stale.add(replica.number)

    def failed(self, id: Hashable, now: float) -> None:
        """Record a failed call: its replica is down, and it waits for another place."""
        one = self._open[id]
        replica = self._stop(one, now)
        replica.breaker.record_failure(now)
        one.sent = None
        self._rest(replica, now)
        for other in list(replica.residents.values()):
            if other.sent is None:  # the calls that are out fail by themselves, or come back
                self._away.pop(other.id, None)
                self._leave(other)
        self._waiting.again(one)

    def released(self, id: Hashable, now: float) -> None:
        """Record that a trajectory is over or its caller gone. Unknown ids are ignored."""
        one = self._open.pop(id, None)
        if one is None:
            return
        if one.sent is not None:
            self._stop(one, now)
        elif one.away is None:
            self._waiting.remove(one)
        else:
            self.lengths.ended(one.tokens)
        if one.admitted:
            self._waiting.left(one, ended=one.away is not None)
        self.lengths.moved(one.tokens, None)
        self._away.pop(id, None)
        self._leave(one)

    def resized(self, number: int, capacity: float | None) -> None:
        """Set a replica's capacity in tokens."""
        self.replicas[number].capacity = math.inf if capacity is None else capacity
        self._stale.add(number)

    # --- actions ---

    def due(self, now: float) -> list[Action]:
        """Return the actions to be done now, in order."""
        while self._checks and self._checks[0][0] <= now:
            at, number = heapq.heappop(self._checks)
            if at == self._check_at[number]:
                self._relieve(self.replicas[number], now)
        for replica in [r for r in self._failed if r.breaker.allows(now)]:
            self._failed.remove(replica)
            self._stale.add(replica.number)  # it is tried again
        while (one := self._waiting.first()) is not None:
            if one is self._blocked and not self._stale and now < self._next_room(now):
                break
            place = self._place_for(one, now)
            if place is None:
                self._blocked = one
                break
            self._waiting.placed(one)
            self._enter(one, place, now)
        actions, self._actions = self._actions, []
        return actions

    def wake(self, now: float) -> float | None:
        """Return when `due` may have actions without an event; None for never."""
        times = [at for at, _ in self._checks[:1]]
        if len(self._waiting):
            times.append(self._next_room(now))
        return min((at for at in times if at < math.inf), default=None)

    @property
    def waiting(self) -> int:
        """Number of calls without a place."""
        return len(self._waiting)

    def down_since(self, now: float) -> float | None:
        """Return since when all replicas are down; None if one takes calls or is probed."""
        down = all(replica.breaker.is_resting(now) for replica in self.replicas)
        return max(replica.breaker.since for replica in self.replicas) if down else None

    # --- places ---

    def _place_for(self, one: Trajectory, now: float) -> Replica | None:
        """Find the replica for a waiting call: the lightest, or the next if that is slow and has its share."""
        while True:
            full: list[Replica] = []
            while (replica := self._lightest(now, besides=full)) is not None:
                if self._load(replica, one) <= self._allowed(replica) or not replica.residents:
                    return replica
                full.append(replica)
                if not self._slow(replica):  # no other one has room
                    break
            if not full or not self._forget_away(now):
                return None

    def _lightest(self, now: float, besides: Collection[Replica] = ()) -> Replica | None:
        """Return the replica with the smallest load among those that take calls."""
        for number in self._stale:
            replica = self.replicas[number]
            replica.room, replica.weighed = self.lengths.room(replica.sizes(now)), now
            self._rank(replica)
        self._stale.clear()
        closed: list[tuple[float, int, int]] = []
        found = None
        while self._loads and found is None:
            entry = self._loads[0]
            replica = self.replicas[entry[1]]
            if entry[2] != replica.version:
                heapq.heappop(self._loads)
            elif replica.closed(now) or any(replica is one for one in besides):
                closed.append(heapq.heappop(self._loads))
            else:
                found = replica
        for entry in closed:
            heapq.heappush(self._loads, entry)
        return found

    def _rank(self, replica: Replica) -> None:
        """Queue the replica by its changed load."""
        replica.version += 1
        heapq.heappush(self._loads, (self._load(replica), replica.number, replica.version))

    def _load(self, replica: Replica, new: Trajectory | None = None) -> float:
        """Return the share of the replica that its residents, and a new one, are expected to take at worst."""
        calls = self.settings.admit * (replica.calls + (new is not None)) / replica.max_requests
        if math.isinf(replica.capacity):
            return calls
        room = replica.room if new is None else replica.room + self.lengths.room(np.array([float(new.tokens)]))
        worst = float((room[0] + self.settings.margin * np.sqrt(room[1])).max())
        return max(calls, worst / replica.capacity)

    def _allowed(self, replica: Replica) -> float:
        """Return the admissible load; a replica that is slower than others takes less, so that it does not end last."""
        slow = replica.rates and self._slow(replica)
        return self.settings.admit * (max(0.25, FASTER * replica.rate / self._middle(replica)) if slow else 1.0)

    def _middle(self, replica: Replica) -> float:
        """Return the median tokens a second of one call on other replicas; 0 where unknown."""
        rates = sorted(other.rate for other in self._sample(replica) if other.rates and other is not replica)
        return rates[len(rates) // 2] if rates else 0.0

    def _sample(self, replica: Replica) -> Iterator[Replica]:
        """Yield some other replicas, the same each time."""
        count = len(self.replicas)
        step = max(1, count // 9)
        return (self.replicas[(replica.number + n * step) % count] for n in range(1, min(10, count)))

    def _better(self, one: Trajectory, home: Replica, now: float) -> Replica | None:
        """Return a better replica, if none waits for room, its own is a straggler, and its expected rest ends so much
        sooner on the lightest one that computing its history again is worth it."""
        if len(self._waiting) or len(home.rates) < 4 or not self._slow(home):
            return None
        other = self._lightest(now, besides=(home,))
        if other is None or (other.rates and self._slow(other)) or self._load(other, one) > self.settings.admit:
            return None
        rest = self.lengths.remaining(one.tokens)
        return other if rest / home.rate * (1 - 1 / FASTER) > 2 * one.tokens / self.settings.prefill else None

    def _slow(self, replica: Replica) -> bool:
        """Return whether its calls get clearly fewer tokens a second than those of others."""
        return self._middle(replica) > FASTER * replica.rate

    def _enter(self, one: Trajectory, replica: Replica, now: float) -> None:
        """Make the trajectory a resident of the replica and send its call."""
        one.home, one.admitted = replica.number, True
        replica.residents[one.id] = one
        replica.room = replica.room + self.lengths.room(np.array([float(one.tokens)]))
        self._send(one, replica, now)
        self._rank(replica)

    def _send(self, one: Trajectory, replica: Replica, now: float) -> None:
        one.sent, one.began = now, replica.tick(now)
        self._settle(replica, now, one.tokens)
        replica.calls += 1
        replica.breaker.record_request(now)
        self._rest(replica, now)
        self._watch(replica)
        self._actions.append(Send(one.id, replica.number))

    def _rest(self, replica: Replica, now: float) -> None:
        """Note a replica that takes no calls for now, to look at it again later."""
        if not replica.breaker.allows(now) and replica not in self._failed:
            self._failed.append(replica)

    def _stop(self, one: Trajectory, now: float) -> Replica:
        """Take the trajectory's call off its replica."""
        assert one.home is not None
        replica = self.replicas[one.home]
        self._settle(replica, now)
        full = replica.calls >= replica.max_requests or self._slow(replica)
        if math.isinf(replica.capacity) or (len(self._waiting) and full):
            self._stale.add(replica.number)  # its load is its calls, or they were all that it is to have
        replica.calls -= 1
        return replica

    def _leave(self, one: Trajectory) -> None:
        if one.home is not None:
            replica = self.replicas[one.home]
            replica.residents.pop(one.id, None)
            replica.relieved = False
            self._stale.add(one.home)
            one.home = None

    # --- room ---

    def _next_room(self, now: float) -> float:
        """Return when there may be room without an event: a replica is tried again, or a tool took too long."""
        times = [replica.breaker.until for replica in self._failed]
        if self._away and not all(replica.closed(now) for replica in self.replicas):  # else room alone is no help
            oldest = next(iter(self._away.values()))
            assert oldest.away is not None
            times.append(oldest.away + self._hold(oldest))
        return min(times, default=math.inf)

    def _hold(self, one: Trajectory) -> float:
        """Return the seconds for which keeping room costs as much as computing it again: the room's share of the
        replica, times seconds, against tokens over prefill; both grow with the tokens, so that all have the same."""
        capacity = self.replicas[one.home].capacity if one.home is not None else 0.0
        return capacity / self.settings.prefill

    def _forget_away(self, now: float) -> bool:
        """Evict the trajectory whose tool has run longest, if that is long enough."""
        while self._away:
            one = next(iter(self._away.values()))
            assert one.home is not None
            if one.away is None or now < one.away + self._hold(one):
                return False
            del self._away[one.id]
            self._actions.append(Evict(one.id, one.home, running=False))
            self._leave(one)
            return True
        return False

    def _settle(self, replica: Replica, now: float, tokens: float = 0.0) -> None:
        """Update the bound of the residents' tokens, by now and with so many more."""
        at, bound = self._bounds[replica.number]
        self._bounds[replica.number] = (now, bound + (now - at) * replica.growing() + tokens)

    def _watch(self, replica: Replica, not_before: float = 0.0) -> None:
        """Note when the replica may be full."""
        if math.isinf(replica.capacity):
            return
        at, bound = self._bounds[replica.number]
        room = self.settings.full * replica.capacity - bound
        when = max(not_before, at + max(0.0, room) / replica.growing()) if replica.calls else math.inf
        self._check_at[replica.number] = when
        if when < math.inf:
            heapq.heappush(self._checks, (when, replica.number))

    def _relieve(self, replica: Replica, now: float) -> None:
        """Evict as many as needed, and check again when the replica may be full."""
        full = self.settings.full * replica.capacity
        used = replica.used(now)
        if used >= full:
            oldest = min((one.arrived for one in replica.residents.values() if one.sent is not None), default=None)
            goal = (self.settings.admit + self.settings.full) / 2 * replica.capacity
            by_cost = sorted(
                (self._lost(one, replica, now), one.arrived, one)
                for one in replica.residents.values()
                if one.arrived != oldest
            )
            for *_, one in by_cost:
                used -= one.size(replica.tick(now))
                self._evict(one, replica, now)
                if used <= goal:
                    break
            replica.relieved = replica.calls > 0
        self._bounds[replica.number] = (now, used)
        self._watch(replica, not_before=now + SLACK * replica.capacity / max(1e-9, replica.growing()))

    def _lost(self, one: Trajectory, replica: Replica, now: float) -> float:
        """Return the seconds of work lost by an eviction, per token of room."""
        size = one.size(replica.tick(now))
        return 1 / self.settings.prefill + (size - one.tokens) / max(1e-9, replica.growing()) / max(1.0, size)

    def _evict(self, one: Trajectory, replica: Replica, now: float) -> None:
        running = one.sent is not None
        if running:
            self._stop(one, now)
            one.sent = None
            self._waiting.again(one)
        elif one.away is not None:
            self._away.pop(one.id, None)
        self._actions.append(Evict(one.id, replica.number, running))
        self._leave(one)
