"""Record of conversations: one file of ended ones, one for each open session."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from retcon.core.errors import RecordError
from retcon.core.types import Provenance, Trajectory, Turn
from retcon.serve.sessions import AgentSession, ChatMessage, Exchange, Node
from retcon.store import jsonl
from retcon.store.jsonl import all_ids
from retcon.store.whole import storage_errors

FILE = "trajectories.jsonl"
OPEN = "open"
AFTER = "after"
"""Field of a line in `open`: index of the exchange that it follows; None: it begins a conversation."""
ABOVE = "above"
"""Field of an agent's first exchange: index of `Node.above`."""
REWARDS = b'{"rewards":'


@dataclass(slots=True)
class _OpenRecord:
    """Content of `open/SESSION.jsonl`. size: bytes of whole lines. places: indices of exchanges."""

    size: int = 0
    places: dict[Node, int] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)


class Record:
    """Recorder of conversations in a folder; None records nothing.

    `FOLDER/trajectories.jsonl` has a line per trajectory, `FOLDER/open/SESSION.jsonl` of an open session a line per
    exchange or reward. The next server adopts the open sessions of a killed one. numbers: next trajectory's number by
    session name, if the record has some: about 200 bytes of memory a session. Raises RecordError, StorageError.
    """

    def __init__(self, folder: Path | None) -> None:
        self._open = None if folder is None else folder / OPEN
        self.file = None if folder is None else folder / FILE
        self.taken_in = 0
        self.numbers: dict[str, int] = {}
        self._kept: dict[str, _OpenRecord] = {}
        if self.file is not None and self.file.is_file():
            for id in all_ids(self.file):
                self._count(id)
        if self._open is not None:
            with storage_errors(self._open):
                self._open.mkdir(parents=True, exist_ok=True)
            for left in sorted(self._open.glob("[!.]*.jsonl")):
                self.taken_in += self.finish(left.stem, _read_open(left))

    def keep(self, session: AgentSession, provenance: Provenance, node: Node | None = None) -> None:
        """Append a session's new exchange, if any, and rewards. They survive a kill of this process; there is no sync,
        as each answer waits for this."""
        if self._open is None:
            return
        target = self._open / f"{session.id}.jsonl"
        kept = self._kept.get(session.id)
        with storage_errors(target):
            anew = kept is None or _size(target) < kept.size  # the session's first, or its file was removed
        if kept is None or anew:
            kept, new = _OpenRecord(), list(session.exchanges())
        else:
            new = [] if node is None else [node]
        places: dict[Node, int] = {}
        lines: list[bytes] = []
        for one in new:
            after = None if one.parent is None else kept.places.get(one.parent, places.get(one.parent))
            above = None if one.above is None else kept.places.get(one.above, places.get(one.above))
            lines.append(_line_of(one, session, provenance, after, above))
            places[one] = len(kept.places) + len(places)
        rewards = {name: value for name, value in session.rewards.items() if kept.rewards.get(name) != value}
        if rewards:
            lines.append(json.dumps({"rewards": rewards}, separators=(",", ":")).encode() + b"\n")
        added = b"".join(lines)
        with storage_errors(target):
            _append(target, kept.size, added)
        kept.size += len(added)
        kept.places |= places
        kept.rewards |= rewards
        self._kept[session.id] = kept

    def finish(self, session: str, trajectories: Sequence[Trajectory]) -> int:
        """Record an ended session; return the number of new trajectories. Some are there already if an earlier try was
        killed or hit a full disk."""
        left = [t for t in trajectories if _parts(t.id)[1] >= self.numbers.get(session, 0)]
        if self.file is not None:
            with jsonl.Appender(self.file) as file:
                for trajectory in left:
                    file.add(trajectory)
                    self._count(trajectory.id)
        self.drop(session)
        return len(left)

    def _count(self, id: str) -> None:
        name, number = _parts(id)
        self.numbers[name] = max(self.numbers.get(name, 0), number + 1)

    def drop(self, session: str) -> None:
        self._kept.pop(session, None)
        if self._open is not None:
            (self._open / f"{session}.jsonl").unlink(missing_ok=True)


def _parts(id: str) -> tuple[str, int]:
    """Split a trajectory's id into session and number."""
    name, _, number = id.rpartition("/")
    return name, int(number) if number.isdecimal() else 0


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else -1


def _append(file: Path, size: int, added: bytes) -> None:
    """Append after the first `size` bytes, over the rest of a failed write. Raises OSError."""
    with file.open("r+b" if size else "wb", buffering=0) as out:
        out.truncate(size)
        out.seek(size)
        rest = memoryview(added)
        try:
            while rest:
                rest = rest[out.write(rest) :]
        except OSError:
            with suppress(OSError):
                out.truncate(size)
            raise


def _line_of(node: Node, session: AgentSession, provenance: Provenance, after: int | None, above: int | None) -> bytes:
    """Encode an exchange as a trajectory; its first turn follows the turn before. Raises RecordError."""
    made = node.exchange
    turns = (Turn(made.given, observations=made.observations), *made.turns)
    id = f"{session.id}/{node.number}"
    extra = {AFTER: after} if above is None else {AFTER: after, ABOVE: above}
    return jsonl.line_of(
        Trajectory(id, session.task, (), turns, stop=made.stop, provenance=provenance, extra=extra)
    )  # fmt: skip


def _read_open(file: Path) -> list[Trajectory]:
    """Read the trajectories of a killed server's open session; lines of an earlier version are trajectories. A line
    without its end was not answered yet. Raises RecordError."""
    session, nodes, whole = AgentSession(file.stem, "", 0.0), list[Node](), list[Trajectory]()
    provenance = Provenance()
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{file}, line {number}"
            if not line.endswith(b"\n"):
                break
            if line.startswith(REWARDS):
                session.rewards |= _rewards(line, where)
                continue
            one = jsonl.read_line(line, where)
            if AFTER not in one.extra:
                whole.append(one)
                continue
            nodes.append(_node(one, nodes, where))
            if nodes[-1].parent is None:
                session.roots.setdefault("", []).append(nodes[-1])
            session.task, provenance = one.task, one.provenance
    return [*whole, *session.trajectories(provenance)]


def _node(one: Trajectory, before: Sequence[Node], where: str) -> Node:
    def named(key: str) -> Node | None:
        number = one.extra.get(key)
        if number is None:
            return None
        if not isinstance(number, int) or not 0 <= number < len(before):
            raise RecordError(f"{where}: not an exchange of a session")
        return before[number]

    if not one.turns:
        raise RecordError(f"{where}: not an exchange of a session")
    first, *turns = one.turns
    exchange = Exchange(
        (), first.segments, first.observations, tuple(turns), ChatMessage("assistant", ""), "", one.stop
    )
    node = Node(exchange, named(AFTER), "", _parts(one.id)[1], above=named(ABOVE))
    if node.parent is not None:
        node.parent.children.append(node)
    return node


def _rewards(line: bytes, where: str) -> Mapping[str, float]:
    try:
        return msgspec.json.decode(line, type=dict[str, dict[str, float]])["rewards"]
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError) as error:
        raise RecordError(f"{where}: not JSON: {error}") from error
