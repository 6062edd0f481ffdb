"""Sessions: the conversation that a request continues, by name or messages."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from retcon.chat.chat import Chat
from retcon.chat.jsons import read_arguments
from retcon.core.errors import nearest
from retcon.core.seeds import derive
from retcon.core.texts import counted
from retcon.core.types import (
    Observation,
    Parent,
    Provenance,
    Relation,
    Segment,
    Stop,
    ToolCall,
    Trajectory,
    Turn,
    ids_of,
    token_count,
)
from retcon.http.endpoints import RETRY_AFTER_SECONDS, RequestRefused
from retcon.serve.errors import invalid_request
from retcon.transcripts.verdicts import judge

Role = Literal["system", "user", "assistant", "tool"]
Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MessageCall:
    """A call in a message; its arguments are text, JSON or not."""

    id: str
    name: str
    arguments: str

    @property
    def key(self) -> Key:
        """Key of equal calls, whatever their id and JSON spacing. Null arguments may be missing, as OpenHands does."""
        try:
            value = json.loads(self.arguments)
        except (ValueError, RecursionError):
            return (self.name, self.arguments)
        if isinstance(value, dict):
            value = {name: one for name, one in value.items() if one is not None}
        return (self.name, json.dumps(value, sort_keys=True))


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message. call_id: of a tool's, the call that it answers. failed: whether its sender reports a failed call, None
    if unknown. at: its index in the request."""

    role: Role
    text: str
    calls: tuple[MessageCall, ...] = ()
    call_id: str = ""
    failed: bool | None = None
    at: int = field(default=0, compare=False)

    @property
    def key(self) -> Key:
        """Key of equal messages. An assistant's white space does not count, as clients change it."""
        text = _remove_spaces(self.text) if self.role == "assistant" else self.text
        return (self.role, text, *(part for call in self.calls for part in call.key))


def message_keys(messages: Sequence[ChatMessage]) -> tuple[Key, ...]:
    return tuple(message.key for message in messages)


def text_after(count: int, text: str) -> str:
    """Return the text after its first `count` non-space characters."""
    spots = [n for n, char in enumerate(text) if not char.isspace()]
    return text[spots[count - 1] + 1 :] if count else text


def _remove_spaces(text: str) -> str:
    """Remove white space."""
    return "".join(text.split())


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request's part of a conversation.

    keys: of its new messages. given: their ids, from the end of the turn before (or the beginning) to where the model's
    opens; observations: of the calls of the turn before. turns: the model's; the next exchange's `given` follows them.
    shown: the message to the client. whole: its text with the stop string, which a client may put back. refused:
    whether a call of it does not fit the client's tools. added: text that the client added to the message before, see
    `added_text`.
    """

    keys: tuple[Key, ...]
    given: tuple[Segment, ...]
    observations: tuple[Observation, ...]
    turns: tuple[Turn, ...]
    shown: ChatMessage
    whole: str
    stop: Stop
    refused: bool = False
    added: str = ""
    _says: tuple[Key, ...] = field(init=False, repr=False, compare=False)  # in each request they are compared with all

    def __post_init__(self) -> None:
        object.__setattr__(self, "_says", (replace(self.shown, text=self.whole).key, self.shown.key))

    def added_text(self, message: ChatMessage, key: Key) -> str | None:
        """Return the text that a message adds to `shown`; None for another message.

        Some harnesses extend the model's message before they send it back: smolagents adds `Calling tools: …`, with the
        calls' ids in place of the calls; OpenHands closes the tag that a stop string cut. An invalid call comes back
        corrected, or as an error: its id identifies it. key: of the message.
        """
        if self.refused and [call.id for call in message.calls] == [call.id for call in self.shown.calls]:
            key = replace(message, calls=self.shown.calls).key
        if key in self._says:
            return ""
        if message.role != "assistant" or message.calls or not all(c.id in message.text for c in self.shown.calls):
            return None
        for _, begins, *_ in self._says:
            if key[1].startswith(begins) and (begins or self.shown.calls):
                return text_after(len(begins), message.text).rstrip() or None
        return None

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the model generated, including abandoned attempts."""
        return token_count(s for turn in self.turns for made in turn.raw() for s in made.generated)


@dataclass(slots=True, eq=False)
class Node:
    """An exchange after another one.

    Args:
        engine: the request's id that its keys and values are kept under.
        number: of the trajectory that it is a turn of: its parent's, unless another exchange followed that first.
        agent: whose URL it was asked at: names joined by `/`, empty for the URL of the session itself.
        above: of a conversation's first exchange, the one in whose turn an agent began it; None if unknown.
    """

    exchange: Exchange
    parent: Node | None
    engine: str
    number: int
    agent: str = ""
    above: Node | None = None
    children: list[Node] = field(default_factory=list)

    @property
    def path(self) -> list[Node]:
        """The exchanges from the conversation's first to this one."""
        found: list[Node] = []
        node: Node | None = self
        while node is not None:
            found.append(node)
            node = node.parent
        return found[::-1]

    def leaves(self) -> Iterator[Node]:
        """Yield the last exchange of each conversation through this one, in order."""
        left = [self]
        while left:
            node = left.pop()
            if not node.children:
                yield node
            left.extend(reversed(node.children))


def join_exchanges(exchanges: Sequence[Exchange]) -> tuple[tuple[Segment, ...], tuple[Turn, ...]]:
    """Join consecutive exchanges into a prompt and turns with their observations."""
    first, *others = exchanges
    turns = list(first.turns)
    for exchange in others:
        turns[-1] = continue_turn(turns[-1], exchange.observations, exchange.given)
        turns.extend(exchange.turns)
    return first.given, tuple(turns)


def continue_turn(turn: Turn, observations: Sequence[Observation], given: Sequence[Segment]) -> Turn:
    """Return a turn with other observations and following segments."""
    return replace(turn, segments=(*turn.generated, *given), observations=tuple(observations))


NOWHERE = -1
"""Turn of a `Parent` whose place in the rollout is not known."""
COMPACTION = "compaction"
"""Name of an agent that sums histories up."""


def build_trajectories(
    leaves: Iterable[Node], provenance: Provenance, *, task: str, name: Callable[[Node], str]
) -> Iterator[Trajectory]:
    """Yield the trajectories that end with these nodes.

    Each exchange is in the first of them; one that continues another's exchange has the history up to there in its
    prompt. `parent`: where an agent began a conversation, or, as a fork, where one left another.

    Args:
        name: returns a trajectory's id by its last node.
    """
    places: dict[Node, Parent] = {}  # of each exchange, its last turn
    for leaf in leaves:
        path, id = leaf.path, name(leaf)
        start = next((n + 1 for n in range(len(path) - 1, -1, -1) if path[n] in places), 0)
        parent = places[path[start - 1]] if start else None
        if not start and path[0].above in places:
            relation: Relation = "compaction" if path[0].agent.rpartition("/")[2] == COMPACTION else "subagent"
            parent = msgspec.structs.replace(places[path[0].above], relation=relation)
        prompt, turns = join_exchanges([node.exchange for node in path[start:]])
        if start:
            opening, before = join_exchanges([node.exchange for node in path[:start]])
            seen = (*opening, *(s for turn in before for s in turn.segments), *prompt)
            prompt = tuple(Segment("prompt", s.text, s.ids) for s in seen)
        made = 0
        for node in path[start:]:
            made += len(node.exchange.turns)
            calls = node.exchange.turns[-1].calls
            places[node] = Parent(id, made - 1, calls[0].id if len(calls) == 1 else "", "fork")
        yield Trajectory(id, task, prompt, turns, stop=leaf.exchange.stop, provenance=provenance, parent=parent)


def nest_trajectories(nodes: Iterable[Trajectory]) -> list[Trajectory]:
    """Return root trajectories with the others as children, by turn and id."""
    below = defaultdict[str, list[Trajectory]](list)
    for node in nodes:
        below[node.parent.trajectory if node.parent else ""].append(node)

    def whole(node: Trajectory) -> Trajectory:
        found = sorted(below.pop(node.id, ()), key=lambda child: (child.parent and child.parent.turn, child.id))
        return replace(node, children=tuple(map(whole, found))) if found else node

    return [whole(root) for root in below.pop("", ())]


SESSION = "x-retcon-session"
TASK = "x-retcon-task"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_LONGEST_TASK = 200


@dataclass(slots=True, eq=False)
class AgentSession:
    """Conversations of one id. task: what its trajectories are rollouts of; named: whether a request has named it.
    nameless: what it began with, where no request named the session. after: how many sessions had ended before it
    began. first: number of its first trajectory: those before are of sessions of its name that have ended. roots: first
    exchanges, by conversation key (`Place.first`). requests: answered ones; running: current ones. begun: number of the
    next trajectory. rewards: by trajectory, "" for all others. busy: ids of the engine's current requests; engines: of
    all that it keeps. numbered: the largest number of a request; freed: unused ones below it. latest: each agent's last
    answer; asking: its current requests; overlapped: agents with concurrent requests."""

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
    latest: dict[str, Node] = field(default_factory=dict)
    asking: Counter[str] = field(default_factory=Counter)
    overlapped: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.begun = self.first

    def nodes(self) -> Iterator[Node]:
        """Yield the last exchange of each trajectory."""
        for roots in self.roots.values():
            for root in roots:
                yield from root.leaves()

    def trajectories(self, provenance: Provenance) -> list[Trajectory]:
        """Return all trajectories without children, in order; an agent's come before their parent.

        Branches have no parent here."""
        leaves = sorted(self.nodes(), key=lambda node: node.number)
        made = build_trajectories(leaves, provenance, task=self.task, name=lambda leaf: f"{self.id}/{leaf.number}")
        roots = nest_trajectories(
            t if t.parent and t.parent.relation != "fork" else replace(t, parent=None) for t in made
        )
        return [
            replace(t, children=(), reward=self.rewards.get(t.id, self.rewards.get(""))) for r in roots for t in r.tree
        ]

    def exchanges(self) -> Iterator[Node]:
        """Yield all exchanges, each after the one that it follows."""
        left = [root for roots in self.roots.values() for root in roots][::-1]
        while left:
            node = left.pop()
            yield node
            left.extend(reversed(node.children))

    def take_number(self) -> int:
        """Take a request's number: the smallest free one, from 1. Failed requests free theirs (`freed`)."""
        if self.freed:
            number = min(self.freed)
            self.freed.remove(number)
            return number
        self.numbered += 1
        return self.numbered

    def engine_for(self, parent: Node | None) -> str:
        """Return the engine's id for an exchange after `parent`: the conversation's, unless another branch uses it. No
        earlier session of this name had it, as the engine may not have released that one's yet."""
        if parent is not None and not parent.children and parent.engine not in self.busy:
            return parent.engine
        self.branches += 1
        return f"{self.id}/{self.after}.{self.branches}"

    @contextmanager
    def asked_by(self, agent: str) -> Iterator[Node | None]:
        """Count an agent's request within the block; yield the exchange above a conversation that it begins: the last
        answer of the agent above, None if that one had concurrent requests."""
        above = agent.rpartition("/")[0]
        known = agent and above not in self.overlapped and not self.asking[above]
        self.asking[agent] += 1
        if self.asking[agent] > 1:
            self.overlapped.add(agent)
        try:
            yield self.latest.get(above) if known else None
        finally:
            self.asking[agent] -= 1

    def add(self, place: Place, exchange: Exchange, engine: str, above: Node | None = None) -> Node:
        number = self.begun if place.parent is None or place.parent.children else place.parent.number
        node = Node(exchange, place.parent, engine, number, place.agent, None if place.parent else above)
        self.latest[place.agent] = node
        self.begun = max(self.begun, number + 1)
        if place.parent is None:
            self.roots.setdefault(place.first, []).append(node)
        else:
            place.parent.children.append(node)
        self.tokens += exchange.sampled_tokens
        self.requests += 1
        return node

    def take_back(self, node: Node, first: str) -> None:
        """Undo the last `add`. first: the conversation's key (`Place.first`)."""
        (self.roots[first] if node.parent is None else node.parent.children).remove(node)
        if node.parent is None or node.parent.children:
            self.begun = node.number
        if node.parent is None:
            del self.latest[node.agent]
        else:
            self.latest[node.agent] = node.parent
        self.tokens -= node.exchange.sampled_tokens
        self.requests -= 1


@dataclass(frozen=True, slots=True)
class Place:
    """The place where a request continues: after `parent` (None: at the beginning), with its messages from `start` on.
    first: key of its conversation. added: text that the client added to the message before. same_calls: whether the
    calls in that have their original ids. agent: see `Node`."""

    session: AgentSession
    parent: Node | None
    start: int
    first: str
    added: str = ""
    same_calls: bool = False
    agent: str = ""


class Sessions:
    """Open sessions. most: their maximum. idle: seconds after which an unused one may end. numbers: of the next
    trajectory by session name, if sessions of that name have ended (`Record`)."""

    def __init__(self, most: int, idle: float, numbers: Mapping[str, int]) -> None:
        self._most, self._idle, self._numbers = most, idle, numbers
        self._open: OrderedDict[str, AgentSession] = OrderedDict()  # in order of last use
        self._nameless: dict[str, list[AgentSession]] = {}  # by conversation key
        self._ended = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[AgentSession]:
        return iter(list(self._open.values()))

    def get(self, id: str) -> AgentSession:
        """Return an open session. Raises RequestRefused (404)."""
        if id not in self._open:
            raise RequestRefused(404, "no_such_session", f"no session '{id}' is open", field="session")
        return self._open[id]

    def find(
        self, name: str | None, task: str | None, begins: Sequence[str], messages: Sequence[ChatMessage], agent: str
    ) -> Place:
        """Find the place where a request continues. name: of its session; None: one with the same messages and no other
        task, else a new one. begins: key parts of the conversation besides messages (tools, mode, agent). agent: see
        `Node`.

        Raises RequestRefused for an invalid name or task, another task than the session's, and too many open sessions.
        """
        if not all(map(_NAME.fullmatch, agent.split("/") if agent else ())):
            message = f"an agent's name is up to 100 letters, digits, '_', '-' and '.', not '{agent:.120}'"
            raise invalid_request("url", message)
        if agent and name is None:
            raise invalid_request(SESSION, f"the URL of an agent needs {SESSION}: the session that the agent works in")
        keys, first = message_keys(messages), conversation_key(begins, messages)
        named, task = task is not None, _task(task, first)
        if name is not None:
            if not _NAME.fullmatch(name):
                raise invalid_request(
                    SESSION, f"{SESSION}: up to 100 letters, digits, '_', '-' and '.', not '{name[:120]}'"
                )
            session = self._open.get(name) or self._new(name, task)
            if named and session.named and session.task != task:
                message = f"{TASK}: the session '{name}' is of the task '{session.task}', not of '{task}'"
                raise invalid_request(TASK, f"{message}: give each its own {SESSION}", "another_task")
            found = self._place(session, first, messages, keys)
        else:
            there = reversed(self._nameless.get(first, []))
            known = [one for one in there if one.task == task or not (named and one.named)]
            places = [place for one in known if (place := self._place(one, first, messages, keys)).parent is not None]
            if named:  # a session without a task's name takes this one, unless there is one of the name
                places = [place for place in places if place.session.named] or places
            found = max(places, key=_rank) if places else Place(self._new("", task, first), None, 0, first)
        if named:
            found.session.task, found.session.named = task, True
        self.touch(found.session)
        return replace(found, agent=agent)

    def idle(self) -> Iterator[AgentSession]:
        """Yield sessions that may be ended for new ones. Each is idle when it is yielded, as other requests may
        continue or end it while one before is ended."""
        since = time.monotonic() - self._idle
        for one in self:
            if one.used < since and not one.running and self._open.get(one.id) is one:
                yield one

    def touch(self, session: AgentSession) -> None:
        session.used = time.monotonic()
        if session.id in self._open:
            self._open.move_to_end(session.id)

    @staticmethod
    def check_not_running(session: AgentSession) -> None:
        """Raise RequestRefused (409) if a request of the session is running."""
        if session.running:
            raise RequestRefused(409, "busy", f"a request of the session '{session.id}' is running", field="session")

    def close(self, session: AgentSession) -> None:
        """Close a session, if it is open."""
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
    def _place(session: AgentSession, first: str, messages: Sequence[ChatMessage], keys: Sequence[Key]) -> Place:
        """Find the exchange that repeats most of the messages. keys: theirs."""
        found = [Place(session, None, 0, first)]
        ends = [(0, "", session.roots.get(first, []))]
        while ends:
            start, added, children = ends.pop()
            for child in children:
                end, exchange = start + len(child.exchange.keys), child.exchange
                if exchange.added != added or end >= len(keys) or keys[start:end] != exchange.keys:
                    continue
                if (more := exchange.added_text(messages[end], keys[end])) is not None:
                    same = [c.id for c in messages[end].calls] == [c.id for c in exchange.shown.calls]
                    found.append(Place(session, child, end + 1, first, more, same))
                    ends.append((end + 1, more, child.children))
        return max(found, key=_rank)


def _rank(place: Place) -> tuple[int, int, bool, bool, float]:
    """Rank places with the same messages: the longest, with the least added text (another answer may begin alike), the
    same call ids, not yet continued, last used."""
    free = place.parent is not None and not place.parent.children and place.parent.engine not in place.session.busy
    return (place.start, -len(place.added), place.same_calls, free, place.session.used)


def conversation_key(begins: Sequence[str], messages: Sequence[ChatMessage]) -> str:
    """Return a conversation's key. begins: see `Sessions.find`. Only messages before the model's first count."""
    spoken = next((n for n, message in enumerate(messages) if message.role == "assistant"), len(messages))
    return f"{derive(*begins, *(part for key in message_keys(messages[:spoken]) for part in key)):016x}"


def is_task_name(text: str) -> bool:
    """Whether a session may have this task."""
    return text.isprintable() and 0 < len(text) <= _LONGEST_TASK


def _task(task: str | None, first: str) -> str:
    if task is None:
        return f"asked/{first}"
    if not is_task_name(task):
        raise invalid_request(TASK, f"{TASK}: up to {_LONGEST_TASK} printable characters")
    return task


@dataclass(frozen=True, slots=True)
class _Block:
    """A message of the assistant (None: an earlier one, or none yet), and the messages after it."""

    assistant: ChatMessage | None
    tools: tuple[ChatMessage, ...]
    users: tuple[ChatMessage, ...]


@dataclass(frozen=True, slots=True)
class History:
    """The history that a request continues: all turns so far, and the new messages."""

    trajectory: Trajectory
    observations: tuple[Observation, ...]
    given: tuple[Segment, ...]


def render_history(place: Place, chat: Chat, messages: Sequence[ChatMessage]) -> History:
    """Render a request's history. Raises RequestRefused for an impossible order of messages."""
    session, new = place.session, messages[place.start :]
    if place.parent is None:
        given = render_opening(chat, new)
        return History(Trajectory(session.id, session.task, given, ()), (), given)
    prompt, (*turns, last) = join_exchanges([node.exchange for node in place.parent.path])
    observations, given = render_continuation(chat, last, messages[place.start - 1].calls, new, added=place.added)
    last = continue_turn(last, observations, given)
    return History(Trajectory(session.id, session.task, prompt, (*turns, last)), observations, given)


def render_opening(chat: Chat, messages: Sequence[ChatMessage]) -> tuple[Segment, ...]:
    """Render all messages before the model's turn. An assistant's were not sampled here: they are of kind `prompt` and
    not trained on. Raises RequestRefused, which names the message."""
    first, *others = _blocks(messages)
    head = [message for message in messages if message.role == "system"] + list(first.users)
    if not messages or first.tools or not first.users:
        raise invalid_request(
            "messages", "a conversation begins with a message of the user, after the system's if there is one"
        )
    segments = list(chat.render_prompt([(message.role, message.text) for message in head]))
    return (*segments, *_written_elsewhere(chat, others))


def render_continuation(
    chat: Chat, turn: Turn, called: Sequence[MessageCall], messages: Sequence[ChatMessage], *, added: str = ""
) -> tuple[tuple[Observation, ...], tuple[Segment, ...]]:
    """Render the messages after a turn: observations of its calls, and all segments up to the next turn.

    called: the turn's calls as the client was given them; none where they were run here. Whether a call failed is what
    the tool's message says (`is_error`); where it says nothing, what its text is taken for, by a rule that is named.
    added: text that the client added to the model's message: rendered as another message of the assistant, or in the
    same one if that was not ended. Raises RequestRefused.
    """
    first, *others = _blocks(messages)
    open_calls = () if added or turn.observations else turn.calls
    observations = _observations(open_calls, called if open_calls else (), first) or turn.observations
    last, new = ids_of(turn.generated)[-1:], [(message.role, message.text) for message in first.users]
    at_once, last_id = () if added else new, last[0] if last else None
    if turn.calls and observations:
        follows = chat.observations(turn.calls, observations, last_id=last_id, messages=at_once, written=turn.text)
    else:
        follows = chat.render_messages(at_once, last_id=last_id)
    if added:
        wrote = replace(chat.render_turn(added.strip()), kind="prompt")
        if not observations and last_id not in (None, *chat.stop_ids):
            follows, wrote = (), Segment("prompt", added, tuple(chat.tokenizer.encode(added)))
        follows = (*follows, wrote, *chat.render_messages(new, last_id=ids_of([wrote])[-1]))
    return observations, (*follows, *_written_elsewhere(chat, others))


def _written_elsewhere(chat: Chat, blocks: Sequence[_Block]) -> Iterator[Segment]:
    for block in blocks:
        assert block.assistant is not None
        calls = block.assistant.calls
        stand_ins = tuple(ToolCall(f"told.{n}", call.name, _arguments(call), 0) for n, call in enumerate(calls))
        wrote = chat.render_turn(block.assistant.text, [(call.name, call.arguments) for call in stand_ins])
        yield replace(wrote, kind="prompt")
        observations, last = _observations(stand_ins, calls, block), (wrote.ids or (None,))[-1]
        users = [(message.role, message.text) for message in block.users]
        if calls:
            yield from chat.observations(stand_ins, observations, last_id=last, messages=users, written=wrote.text)
        else:
            yield from chat.render_messages(users, last_id=last)


def _arguments(call: MessageCall) -> Mapping[str, object] | str:
    found = read_arguments(call.arguments)
    return call.arguments if found is None else found


def _observations(calls: Sequence[ToolCall], called: Sequence[MessageCall], block: _Block) -> tuple[Observation, ...]:
    """Return an observation for each call, in order; equal ids are answered in the messages' order."""
    known = [call.id for call in called]
    answers: dict[str, deque[ChatMessage]] = {id: deque() for id in known}
    for message in block.tools:
        if message.call_id not in known:
            error = f"no call '{message.call_id}' is open{nearest(message.call_id, known)}"
            raise invalid_request(f"messages[{message.at}].tool_call_id", error)
        if len(answers[message.call_id]) == known.count(message.call_id):
            error = f"the call '{message.call_id}' has been answered already"
            raise invalid_request(f"messages[{message.at}].tool_call_id", error)
        answers[message.call_id].append(message)
    if missing := [id for id in known if len(answers[id]) < known.count(id)]:
        raise invalid_request("messages", f"no message of a tool answers the call {missing[0]}")
    return tuple(_observation(call, answers[id].popleft()) for call, id in zip(calls, known, strict=True))


def _observation(call: ToolCall, message: ChatMessage) -> Observation:
    if message.failed is not None:
        return Observation(call.id, message.text, "error" if message.failed else "ok")
    verdict = judge(message.text, (call,))
    if verdict is None:
        return Observation(call.id, message.text, "ok")
    return Observation(
        call.id, message.text, verdict.status, verdict.error_type, rule=verdict.rule, line=verdict.line
    )  # fmt: skip


def _blocks(messages: Sequence[ChatMessage]) -> list[_Block]:
    """Split messages into blocks. Raises RequestRefused for an impossible order."""
    blocks = [_Block(None, (), ())]
    for n, message in enumerate(messages):
        last, where = blocks[-1], f"messages[{message.at}]"
        if message.role == "system":
            if any(m.role != "system" for m in messages[:n]) or message.at != n:
                raise invalid_request(f"{where}.role", "a message of the system stands before all others")
        elif message.role == "assistant":
            blocks.append(_Block(message, (), ()))
        elif message.role == "tool":
            if last.users:
                raise invalid_request(
                    f"{where}.role", "a tool's message stands right after the assistant's whose call it answers"
                )
            blocks[-1] = replace(last, tools=(*last.tools, message))
        else:
            blocks[-1] = replace(last, users=(*last.users, message))
    if not messages:
        raise invalid_request("messages", "no message follows the model's last one: its next turn answers one")
    return blocks
