"""Which conversation a request goes on with: by the session that it names, or by what it says again."""

from __future__ import annotations

import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from retcon.core.seeds import derive
from retcon.core.texts import counted
from retcon.core.types import Provenance, Trajectory
from retcon.http.gate import RETRY_AFTER_SECONDS
from retcon.http.refusal import RequestRefused
from retcon.serve.nodes import Exchange, Node, recorded
from retcon.serve.refusing import wrong
from retcon.serve.said import Key, Said, keys_of

SESSION = "x-retcon-session"
TASK = "x-retcon-task"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_LONGEST_TASK = 200


@dataclass(slots=True, eq=False)
class AgentSession:
    """Conversations of one id. task: what its trajectories are rollouts of; named: whether a request has named it.
    nameless: what it began with, where no request named the session. after: how many sessions had ended before it
    began. first: number of its first trajectory: those before are of sessions of its name that have ended. roots: first
    exchanges, by what was told before them (`Place.first`). requests: that were answered; running: that are being.
    begun: number of the next trajectory. rewards: by trajectory, and of all others under no name. busy: ids under which
    the engine is being asked; engines: that it keeps something for. numbered: the largest number of a request; freed:
    those below it that none has."""

    id: str
    task: str
    used: float
    nameless: str = ""
    after: int = 0
    first: int = 0
    named: bool = False
    roots: dict[str, list[Node]] = field(default_factory=dict)
    requests: int = 0
    running: int = 0
    branches: int = 0
    begun: int = field(init=False)
    tokens: int = 0
    rewards: dict[str, float] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    engines: set[str] = field(default_factory=set)
    numbered: int = 0
    freed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.begun = self.first

    def nodes(self) -> Iterator[Node]:
        """The last exchange of each of its trajectories."""
        for roots in self.roots.values():
            for root in roots:
                yield from root.leaves()

    def trajectories(self, provenance: Provenance) -> list[Trajectory]:
        """All of them, in the order in which they began."""
        leaves = sorted(self.nodes(), key=lambda node: node.number)
        return [self._trajectory(leaf, provenance) for leaf in leaves]

    def exchanges(self) -> Iterator[Node]:
        """All of them, each after the one that it follows, in the order in which those after the same were added."""
        left = [root for roots in self.roots.values() for root in roots][::-1]
        while left:
            node = left.pop()
            yield node
            left.extend(reversed(node.children))

    def _trajectory(self, leaf: Node, provenance: Provenance) -> Trajectory:
        id = f"{self.id}/{leaf.number}"
        reward = self.rewards.get(id, self.rewards.get(""))
        return recorded(leaf, id=id, task=self.task, reward=reward, provenance=provenance)

    def take_number(self) -> int:
        """A request's own: the smallest, from 1, that none has which is under way or was answered. It is `freed` of one
        that comes to nothing."""
        if self.freed:
            number = min(self.freed)
            self.freed.remove(number)
            return number
        self.numbered += 1
        return self.numbered

    def engine_for(self, parent: Node | None) -> str:
        """The id under which an exchange after `parent` asks the engine: the conversation's own, unless another branch
        of it has that. No session before of this name had it: the engine may not yet have let go of that one's."""
        if parent is not None and not parent.children and parent.engine not in self.busy:
            return parent.engine
        self.branches += 1
        return f"{self.id}/{self.after}.{self.branches}"

    def add(self, place: Place, exchange: Exchange, engine: str) -> Node:
        number = self.begun if place.parent is None or place.parent.children else place.parent.number
        node = Node(exchange, place.parent, engine, number)
        self.begun = max(self.begun, number + 1)
        if place.parent is None:
            self.roots.setdefault(place.first, []).append(node)
        else:
            place.parent.children.append(node)
        self.tokens += exchange.sampled_tokens
        self.requests += 1
        return node

    def take_back(self, node: Node, first: str) -> None:
        """Undoes the last `add`. first: what the conversation began with (`Place.first`)."""
        (self.roots[first] if node.parent is None else node.parent.children).remove(node)
        if node.parent is None or node.parent.children:
            self.begun = node.number
        self.tokens -= node.exchange.sampled_tokens
        self.requests -= 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request goes on: after `parent` (None: nowhere, it begins), with its messages from `start` on. first:
    names what its conversation began with. added: what the client added to the message before. same_calls: whether the
    calls in that have the ids that they were given."""

    session: AgentSession
    parent: Node | None
    start: int
    first: str
    added: str = ""
    same_calls: bool = False


class Sessions:
    """The sessions that are open; most: how many may be. idle: seconds after which an unused one may go. numbers: of
    the next trajectory of a name, where sessions of that name have ended (`Record`)."""

    def __init__(self, most: int, idle: float, numbers: Mapping[str, int]) -> None:
        self._most, self._idle, self._numbers = most, idle, numbers
        self._open: OrderedDict[str, AgentSession] = OrderedDict()  # the one that was used last, last
        self._nameless: dict[str, list[AgentSession]] = {}  # by what their conversations began with
        self._ended = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[AgentSession]:
        return iter(list(self._open.values()))

    def get(self, id: str) -> AgentSession:
        """Raises RequestRefused (404)."""
        if id not in self._open:
            raise RequestRefused(404, "no_such_session", f"no session '{id}' is open", field="session")
        return self._open[id]

    def find(self, name: str | None, task: str | None, begins: Sequence[str], messages: Sequence[Said]) -> Place:
        """Where a request goes on. name: of its session, None where it names none: one that has said the same, and has
        no other task than it names, else a new one. begins: what its conversation began with besides messages (tools,
        mode).

        Raises RequestRefused for a name or task that is none, a task that is not the session's, and where too many
        sessions are open.
        """
        keys, first = keys_of(messages), first_of(begins, messages)
        named, task = task is not None, _task(task, first)
        if name is not None:
            if not _NAME.fullmatch(name):
                raise wrong(SESSION, f"{SESSION}: up to 100 letters, digits, '_', '-' and '.', not '{name[:120]}'")
            session = self._open.get(name) or self._new(name, task)
            if named and session.named and session.task != task:
                said = f"{TASK}: the session '{name}' is one of the task '{session.task}', not of '{task}'"
                raise wrong(TASK, f"{said}: give each its own {SESSION}", "another_task")
            found = self._place(session, first, messages, keys)
        else:
            there = reversed(self._nameless.get(first, []))
            known = [one for one in there if one.task == task or not (named and one.named)]
            places = [place for one in known if (place := self._place(one, first, messages, keys)).parent is not None]
            if named:  # one that has no name yet takes this one, but where there is one of the name
                places = [place for place in places if place.session.named] or places
            found = max(places, key=_fit) if places else Place(self._new("", task, first), None, 0, first)
        if named:
            found.session.task, found.session.named = task, True
        self.touch(found.session)
        return found

    def idle(self) -> Iterator[AgentSession]:
        """Those that may be ended for new ones. Each is so when it is given: while one before is ended, other requests
        may go on with it, or end it."""
        since = time.monotonic() - self._idle
        for one in self:
            if one.used < since and not one.running and self._open.get(one.id) is one:
                yield one

    def touch(self, session: AgentSession) -> None:
        session.used = time.monotonic()
        if session.id in self._open:
            self._open.move_to_end(session.id)

    @staticmethod
    def refuse_running(session: AgentSession) -> None:
        """Raises RequestRefused (409) where a request of the session is running."""
        if session.running:
            raise RequestRefused(409, "busy", f"a request of the session '{session.id}' is running", field="session")

    def close(self, session: AgentSession) -> None:
        """It is open no more; nothing happens to one that is not."""
        self._ended += self._open.pop(session.id, None) is not None
        others = [one for one in self._nameless.get(session.nameless, ()) if one is not session]
        if others:
            self._nameless[session.nameless] = others
        else:
            self._nameless.pop(session.nameless, None)

    def _new(self, id: str, task: str, nameless: str = "") -> AgentSession:
        if len(self._open) >= self._most:
            raise RequestRefused(
                503,
                "busy",
                f"this server keeps {counted(len(self._open), 'session')}, and all are open: end some, or try again",
                headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
            )
        id = id or secrets.token_hex(8)
        first = self._numbers.get(id, 0)
        session = AgentSession(id, task, time.monotonic(), nameless, self._ended, first)
        self._open[session.id] = session
        if nameless:
            self._nameless.setdefault(nameless, []).append(session)
        return session

    @staticmethod
    def _place(session: AgentSession, first: str, messages: Sequence[Said], keys: Sequence[Key]) -> Place:
        """After the exchange that says the most of the messages again. keys: theirs."""
        found = [Place(session, None, 0, first)]
        ends = [(0, "", session.roots.get(first, []))]
        while ends:
            start, added, children = ends.pop()
            for child in children:
                end, exchange = start + len(child.exchange.keys), child.exchange
                if exchange.added != added or end >= len(keys) or keys[start:end] != exchange.keys:
                    continue
                if (more := exchange.goes_on(messages[end], keys[end])) is not None:
                    same = [c.id for c in messages[end].calls] == [c.id for c in exchange.shown.calls]
                    found.append(Place(session, child, end + 1, first, more, same))
                    ends.append((end + 1, more, child.children))
        return max(found, key=_fit)


def _fit(place: Place) -> tuple[int, int, bool, bool, float]:
    """Of places where the same was said: the longest, where the least was added (another answer may begin alike), whose
    calls have the same ids, that nobody went on from, the last that was used."""
    free = place.parent is not None and not place.parent.children and place.parent.engine not in place.session.busy
    return (place.start, -len(place.added), place.same_calls, free, place.session.used)


def first_of(begins: Sequence[str], messages: Sequence[Said]) -> str:
    """Names what a conversation began with: `begins` (see `Sessions.find`), and what was told before the model's first
    message."""
    spoken = next((n for n, message in enumerate(messages) if message.role == "assistant"), len(messages))
    return f"{derive(*begins, *(part for key in keys_of(messages[:spoken]) for part in key)):016x}"


def names_task(text: str) -> bool:
    """Whether a session may have this as its task."""
    return text.isprintable() and 0 < len(text) <= _LONGEST_TASK


def _task(task: str | None, first: str) -> str:
    if task is None:
        return f"asked/{first}"
    if not names_task(task):
        raise wrong(TASK, f"{TASK}: up to {_LONGEST_TASK} printable characters")
    return task
