"""Traces of verifiers' v1 (its `traces.jsonl`, the rollouts that prime-rl keeps): graphs of messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, cast

from retcon.core.errors import RecordError
from retcon.purify.offline import Purified
from retcon.transcripts.formats.messages import pieces_of, rebuilt
from retcon.transcripts.reading.pieces import Piece, PieceReading, RecordReading, awaits_output
from retcon.transcripts.types import Certainty, Format, Json, Reading

Node = dict[str, Json]
_LISTS = ("token_ids", "mask", "is_content", "logprobs")
_OPTIONAL = (
    "advantages", "reference_logprobs", "trainer_logprobs", "entropies", "loss_weights", "routed_experts",
    "sampling_mask",
)  # fmt: skip
"""Of the tokens of a message; they are taken out of a history that was repaired, as those after it are no longer what
the engine saw."""


class Traces(Format):
    """A trace has `nodes`, each with a `message` and the place of the one before it (`parent`); an episode has several
    `traces`. A history is what follows a root. One that branches is left as it is: what its branches share could not
    be repaired in one of them alone. Messages that no model wrote (`sampled` is false) are told."""

    name = "traces"
    certainty = Certainty.LAYOUT
    aliases: Sequence[str] = ("verifiers", "prime-rl")
    marks = ("traces", "nodes", "message", "sampled", "parent", "calls", "token_ids")

    def matches(self, record: Json) -> bool:
        return bool(_traces(record))

    def read(self, record: Json, id: str) -> Reading:
        histories = [
            _History(path, nodes, chain) for path, nodes in _traces(record) for chain in _unbranched(nodes)
        ]  # fmt: skip
        readings = [
            PieceReading(
                [_message(one.nodes[n]) for n in one.chain], _pieces(one), id if len(histories) == 1 else f"{id}.{at}",
                rebuilt,
            )
            for at, one in enumerate(histories)
        ]  # fmt: skip
        return _TracesReading(record, histories, readings)


class _History(NamedTuple):
    """path: of the trace in the record. chain: which of its nodes, from a root on."""

    path: tuple[str | int, ...]
    nodes: Sequence[Node]
    chain: Sequence[int]


class _TracesReading(RecordReading):
    def __init__(self, record: Json, histories: Sequence[_History], readings: Sequence[PieceReading]) -> None:
        super().__init__(record, readings)
        self._histories = histories

    def purified(self, results: Sequence[Purified]) -> Json:
        record = self._record
        for path in dict.fromkeys(history.path for history in self._histories):
            new: dict[int, Node] = {}
            gone: set[int] = set()
            for history, reading, result in zip(self._histories, self.readings, results, strict=True):
                if history.path != path or not result.splices:
                    continue
                kept = dict.fromkeys(history.chain[piece.owner] for piece in reading.spliced(result))
                gone |= set(history.chain) - kept.keys()
                for at, message in zip(kept, reading.items(result), strict=True):
                    new[at] = _without_tokens({**history.nodes[at], "message": message})
            if new:
                record = _with(record, path, partial(_renumbered, new=new, gone=gone))
        return record


def _traces(record: Json) -> list[tuple[tuple[str | int, ...], list[Node]]]:
    """The nodes of each trace of a record, with the place of the trace."""
    if not isinstance(record, dict):
        return []
    listed = record.get("traces")
    several = [(("traces", n), one) for n, one in enumerate(listed)] if isinstance(listed, list) else []
    places: list[tuple[tuple[str | int, ...], Json]] = [((), record), *several]
    found = [(path, one.get("nodes")) for path, one in places if isinstance(one, dict)]
    return [(path, nodes) for path, nodes in found if isinstance(nodes, list) and nodes and all(map(_is_node, nodes))]


def _is_node(value: Json) -> bool:
    message = value.get("message") if isinstance(value, dict) else None
    return isinstance(message, dict) and isinstance(message.get("role"), str)


def _message(node: Node) -> dict[str, Json]:
    return cast(dict[str, Json], node["message"])


def _unbranched(nodes: Sequence[Node]) -> list[list[int]]:
    """The histories in which each message has one that follows it, or none."""
    chains: list[list[int] | None] = []
    chain_of: list[int] = []
    followed: set[int] = set()
    for n, node in enumerate(nodes):
        parent = node.get("parent")
        if parent is None:
            chain_of.append(len(chains))
            chains.append([n])
            continue
        if type(parent) is not int or not 0 <= parent < n:
            raise RecordError(f"nodes[{n}].parent: expected the place of a node before it, found {parent!r}")
        chain_of.append(chain_of[parent])
        chain = chains[chain_of[n]]
        if parent in followed:
            chains[chain_of[n]] = None
        elif chain is not None:
            chain.append(n)
        followed.add(parent)
    return [chain for chain in chains if chain is not None]


def _pieces(history: _History) -> list[Piece]:
    pieces: list[Piece] = []
    for owner, n in enumerate(history.chain):
        node = history.nodes[n]
        own = pieces_of(_message(node), owner, after_call=awaits_output(pieces))
        if node.get("sampled") is False and _message(node)["role"] == "assistant":
            own = [Piece("told", owner, "".join(piece.text for piece in own), role="assistant")]
        pieces += own
    return pieces


def _without_tokens(node: Node) -> Node:
    kept = {name: value for name, value in node.items() if name not in _OPTIONAL}
    return {**kept, **{name: [] for name in _LISTS if name in kept}}


def _renumbered(trace: Node, new: Mapping[int, Node], gone: set[int]) -> Node:
    """The trace with some nodes anew and some gone; what points to a node that is gone points to the one before it
    (`parent`), or to none (the calls of the model, which stay for their cost)."""
    nodes = cast(list[Node], trace["nodes"])
    places = {n: at for at, n in enumerate(n for n in range(len(nodes)) if n not in gone)}
    out = [_linked(new.get(n, node), nodes, places) for n, node in enumerate(nodes) if n not in gone]
    renumbered = {**trace, "nodes": out}
    if isinstance(calls := trace.get("calls"), list):
        renumbered["calls"] = [_pointing(call, places) for call in calls]
    return renumbered


def _linked(node: Node, nodes: Sequence[Node], places: Mapping[int, int]) -> Node:
    parent = node.get("parent")
    while parent is not None and parent not in places:
        parent = nodes[cast(int, parent)].get("parent")
    linked = node
    if node.get("parent") is not None:
        linked = {**node, "parent": None if parent is None else places[cast(int, parent)]}
    if isinstance(links := node.get("semantic_parents"), list):
        inside = [link for link in links if not isinstance(link, dict) or link.get("node") in places]
        linked = {**linked, "semantic_parents": [_pointing(link, places) for link in inside]}
    return linked


def _pointing(value: Json, places: Mapping[int, int]) -> Json:
    """What has the place of a node, with the node's new one; without it where the node is gone."""
    if not isinstance(value, dict) or not isinstance(node := value.get("node"), int):
        return value
    if node in places:
        return {**value, "node": places[node]}
    return {name: inner for name, inner in value.items() if name != "node"}


def _with(value: Json, path: Sequence[str | int], new: Callable[[Node], Node]) -> Json:
    """The value with another trace at `path`; nothing is changed."""
    if not path:
        return new(cast(Node, value))
    if isinstance(value, list):
        return [_with(inner, path[1:], new) if n == path[0] else inner for n, inner in enumerate(value)]
    record = cast(dict[str | int, Json], value)
    return {**record, path[0]: _with(record[path[0]], path[1:], new)}


FORMAT = Traces()
