"""OpenAI's messages with `tool_calls`, inspect_ai's, and verifiers' message graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import msgspec

from retcon.chat.types import REASONING
from retcon.core.errors import RecordError
from retcon.core.types import Status
from retcon.purify.offline import RepairResult
from retcon.transcripts.in_messages import ItemsReading
from retcon.transcripts.items import (
    APART,
    Thought,
    context_of,
    find_items,
    no_items,
    part_words,
    replace_at,
    text_of,
    with_part_words,
)
from retcon.transcripts.itemwise import objects, part_of, some_id
from retcon.transcripts.pieces import Call, Piece, PieceReading, RecordReading, ToolOutput, awaits_output, shown_call
from retcon.transcripts.types import NOT_JSON, Certainty, Format, Json, Reading, json_in
from retcon.transcripts.verdicts import EXIT_CODES, Verdict, error_type_of, looks_clean, outcome_of

Item = dict[str, Json]
_OUTPUT = ("tool", "function")  # no set: a role may be anything, where others say `from`
_ARGUMENTS = msgspec.json.Decoder(Mapping[str, msgspec.Raw])
_TYPES: dict[str, Status] = {"timeout": "timeout", "parsing": "malformed", "output_limit": "limit", "limit": "limit"}
_STATUSES: dict[str, Status] = {
    "ok": "ok", "success": "ok", "completed": "ok", "error": "error", "failed": "error", "failure": "error",
    "timeout": "timeout", "limit": "limit", "malformed": "malformed", "infrastructure": "infrastructure",
}  # fmt: skip
_REASONING_AGAIN = ("reasoning_details", "thinking_blocks")
"""Where OpenRouter and LiteLLM have the same once more, some of it signed or encrypted."""
_FIELDS = "provider_specific_fields"
"""Where LiteLLM has all of this once more."""
_THOUGHT = "thought"
_PART = "part"
"""Of a piece of words: the key of what is thought, or the place of a part of the content."""
_WEIGHT = "weight"
"""Whether a message is learned from (OpenAI's fine-tuning): it goes with the call."""
_LOGPROBS = "logprobs"
"""Of the tokens of a message: wrong where it has others now."""
_EXTRA, _ACTIONS, _REPLY = "extra", "actions", "response"
"""Where mini-swe-agent has the calls of a message once more, which go with them, and the reply that they came in."""
_TYPED = frozenset({"error", "is_error", "isError", "timed_out", "run_success", "status", *EXIT_CODES})
_NO_ARGUMENTS = frozenset({"id", "index", "type", "name", "function", "custom", "arguments", "parameters"})
"""What else a call has."""


class Messages:
    """tool_calls: each an object, or the JSON text of one; arguments: the JSON text of an object, or the object.

    A tool's message answers the call that its `tool_call_id` names, or the next one where it names none. Typed
    statuses are taken from the tool's message: `error` (inspect_ai), `is_error`, `isError`, `status`, exit codes.
    One message may answer several calls in `tool_responses` (AutoGen 0.2), and its content repeats them.
    The old `function_call` is read as one call. `reasoning_content`, `reasoning` and `thinking` are words as well, and
    so are parts of the content that are reasoning (inspect_ai)."""

    name = "messages"
    certainty = Certainty.CALLS
    aliases = ("inspect", "verifiers")
    marks = ("messages", "role", "tool_calls", "function", "tool_call_id", "assistant", "tool")

    def matches(self, record: Json) -> bool:
        found = find_items(record)
        return found is not None and any(
            "role" in i and (i.get("tool_calls") or i.get("function_call")) for i in found[1]
        )

    def clean(self, record: Json) -> int | None:
        found = find_items(record)
        if found is None:
            return None
        count = pending = 0
        called = False
        for item in found[1]:
            role = item.get("role")
            if role == "assistant":
                if pending:
                    return None  # what calls have no output yet takes a full reading
                calls = _listed(item)
                for call in calls:
                    if not _readable(call):
                        return None
                pending = len(calls)
                called = called or bool(calls)
            elif role in _OUTPUT:
                if called and (not pending or item.get("tool_responses")):
                    return None  # so do several outputs for one call, and one message for several calls
                if pending:
                    content = item.get("content")
                    if not looks_clean(content if isinstance(content, str) else text_of(content)):
                        return None
                    if not _TYPED.isdisjoint(item) and _typed(item)[0] is not None:
                        return None
                    pending -= 1
                    count += 1
            else:
                pending, called = 0, False
        return count

    def read(self, record: Json, id: str) -> Reading:
        found = find_items(record)
        if found is None:
            raise no_items()
        path, items = found
        context = context_of(record) if path == ("completion",) else ""
        pieces: list[Piece] = []
        for n, item in enumerate(_as_models(items)):
            pieces += pieces_of(item, n, after_call=item.get("role") in _OUTPUT and awaits_output(pieces))
        return ItemsReading(record, path, PieceReading(items, pieces, id, rebuild, context=context))


def _as_models(items: Sequence[Item]) -> Sequence[Item]:
    """Return messages with their roles as the model sees them. In AutoGen 0.2 the roles are those of the history's
    owner: in that of the one who runs the tools, its own messages are the assistant's, and the model's the user's."""
    runs = next((item["name"] for item in items if item.get("tool_responses") and item.get("name")), None)
    if runs is None or not any(item.get("name") == runs and _is_words(item, "assistant") for item in items):
        return items
    own = [item.get("name") == runs for item in items]
    return [
        {**item, "role": "user"}
        if mine and _is_words(item, "assistant")
        else {**item, "role": "assistant"}
        if not mine and _is_words(item, "user")
        else item
        for item, mine in zip(items, own, strict=True)
    ]


def _is_words(item: Item, role: str) -> bool:
    return item.get("role") == role and not _listed(item)


def pieces_of(item: Item, owner: int, *, after_call: bool) -> Sequence[Piece]:
    if item.get("role") == "assistant":
        spoken = _words(item.get("content"), owner)
        thought = [
            Piece("assistant", owner, Thought(value + APART), payload={_THOUGHT: key})
            for key in REASONING
            if key in item and isinstance(value := item[key], str) and value
        ]
        raw = [json_in(one) or one if isinstance(one, str) else one for one in _listed(item)]
        if not raw:
            return [*thought, *(spoken or [Piece("assistant", owner, "")])]
        shown: list[str] = []
        calls: list[Call] = []
        for one in raw:
            call = _call(one)
            calls.append(Call(call.name, call.arguments, sum(map(len, shown)), call.id))
            shown.append(shown_call(call))
        key = "tool_calls" if item.get("tool_calls") else "function_call"
        own = {name: item[name] for name in (key, _WEIGHT) if name in item}
        if _ACTIONS in part_of(item, _EXTRA):
            own[_EXTRA] = item[_EXTRA]
        call_piece = Piece("call", owner, "".join(shown), tuple(calls), payload=own)
        return [*thought, *spoken, call_piece]
    text = text_of(item.get("content"))
    if item.get("role") in _OUTPUT and after_call:
        return [Piece("result", owner, text, (), tuple(map(_output, _answers(item))))]
    return [Piece("context", owner, text)]


def _words(content: Json, owner: int) -> list[Piece]:
    """Return a message's words: one piece, or one for each part of its content that has words."""
    if isinstance(content, list):
        words = enumerate(map(part_words, content))
        return [Piece("assistant", owner, text, payload={_PART: n}) for n, text in words if text]
    text = text_of(content)
    return [Piece("assistant", owner, text)] if text else []


def _listed(item: Item) -> Sequence[Json]:
    """Return the calls of a message as they stand in it."""
    listed = item.get("tool_calls")
    if isinstance(listed, list) and listed:
        return listed
    return [item["function_call"]] if isinstance(item.get("function_call"), dict) else ()


def _readable(raw: Json) -> bool:
    """Whether a call's arguments are an object, or its JSON text."""
    if isinstance(raw, str):
        raw = json_in(raw)
    if not isinstance(raw, dict):
        return False
    function = raw.get("function", raw)
    arguments = function.get("arguments") if isinstance(function, dict) else raw.get("arguments")
    if not isinstance(arguments, str):
        return isinstance(arguments, dict)
    try:
        _ARGUMENTS.decode(arguments)
    except NOT_JSON:
        return False
    return True


def _call(raw: Json) -> Call:
    """Read a call; arguments that are no JSON object stay text.

    A custom tool's call has no arguments by that name (but its `input`): all its fields are taken, else any two
    would be equal."""
    if not isinstance(raw, dict):
        return Call("python", str(raw))
    function = raw.get("function") or raw.get("custom") or raw
    given = function if isinstance(function, dict) else raw
    name = function if isinstance(function, str) else given.get("name")
    arguments = given.get("arguments")
    if arguments is None:
        arguments = given.get("parameters")
    if arguments is None:  # also where it is null, as of a record of all fields that a call may have
        arguments = {key: value for key, value in given.items() if key not in _NO_ARGUMENTS and value is not None}
    if isinstance(arguments, str):
        read = json_in(arguments)
        arguments = read if isinstance(read, dict) else arguments
    if not isinstance(arguments, dict | str):
        arguments = {}
    return Call(name if isinstance(name, str) else "python", arguments, id=some_id(raw.get("id")))


def _answers(item: Item) -> Sequence[Item]:
    """Return a tool's answers to each call that its message answers."""
    return objects(item.get("tool_responses")) or [item]


def _output(answer: Item) -> ToolOutput:
    verdict, typed = (None, False) if _TYPED.isdisjoint(answer) else _typed(answer)
    return ToolOutput(text_of(answer.get("content")), some_id(answer.get("tool_call_id")), verdict, typed)


def _typed(item: Item) -> tuple[Verdict | None, bool]:
    """Read the status that a tool's message names: its verdict (None: success), and whether it has one."""
    error = item.get("error")
    if isinstance(error, dict) and isinstance(kind := error.get("type"), str):
        return Verdict(_TYPES.get(kind, "error"), "status", kind), True
    if isinstance(error, str) and error.strip():
        return Verdict("error", "status", error_type_of(error)), True
    typed, verdict = outcome_of(item, "status")
    status = item.get("status")
    if not typed and isinstance(status, str) and status.lower() in _STATUSES:
        known = _STATUSES[status.lower()]
        return (None if known == "ok" else Verdict(known, "status")), True
    return verdict, typed


def rebuild(item: Json, pieces: Sequence[Piece]) -> Json:
    if not isinstance(item, dict):
        raise RecordError("a message is not an object")
    spoken = [p for p in pieces if p.kind == "assistant" and _THOUGHT not in p.payload]
    moved = {key: value for p in pieces for key, value in p.payload.items() if key not in (_THOUGHT, _PART)}
    thought = {str(p.payload[_THOUGHT]): p.text.removesuffix(APART) for p in pieces if _THOUGHT in p.payload}
    # What was thought goes where the words go: of a message that has other words now, its own goes.
    gone = {key for key in REASONING if key not in thought and isinstance(value := item.get(key), str) and value}
    kept: Item = {key: thought.get(key, value) for key, value in item.items() if key not in gone}
    if any(p.kind == "call" for p in pieces) and _WEIGHT not in moved:
        kept.pop(_WEIGHT, None)
    if any(thought.get(key, value) != value for key, value in item.items()):
        for key in filter(kept.get, _REASONING_AGAIN):
            kept[key] = []
        if isinstance(fields := kept.get(_FIELDS), dict):
            kept[_FIELDS] = {
                key: None if key in thought else [] if value and key in _REASONING_AGAIN else value
                for key, value in fields.items()
            }
    if kept.get(_LOGPROBS) is not None:
        kept[_LOGPROBS] = None
    moved = {**{key: value for key, value in thought.items() if key not in kept}, **moved}
    content = _with_words(item.get("content"), spoken)
    new = {**kept, **({} if content == item.get("content") else {"content": content}), **moved}
    if _ACTIONS in (extra := part_of(new, _EXTRA)) and extra.get(_REPLY):
        new[_EXTRA] = {**extra, _REPLY: None}
    return new


def _with_words(content: Json, spoken: Sequence[Piece]) -> Json:
    """Return the content with these words; emptied parts go."""
    if not isinstance(content, list):
        text = "".join(piece.text for piece in spoken)
        return content if text_of(content) == text else text
    words = {piece.payload.get(_PART): piece.text for piece in spoken}
    parts = [
        part if part_words(part) == words.get(n, "") else with_part_words(part, words.get(n, ""))
        for n, part in enumerate(content)
        if words.get(n) or not part_words(part)
    ]
    return parts or [with_part_words(part, "") for part in content[:1]]


MESSAGES = Messages()


Node = dict[str, Json]
_LISTS = ("token_ids", "mask", "is_content", "logprobs")
_OPTIONAL = (
    "advantages", "reference_logprobs", "trainer_logprobs", "entropies", "loss_weights", "routed_experts",
    "sampling_mask",
)  # fmt: skip
"""Of the tokens of a message; they are taken out of a history that was repaired, as those after it are no longer what
the engine saw."""


class Traces(Format):
    """Message graphs of verifiers and prime-rl.

    A trace has `nodes`, each with a `message` and the place of the one before it (`parent`); an episode has several
    `traces`. A history is what follows a root. One that branches is left as it is: what its branches share could
    not be repaired in one of them alone. Messages that no model wrote (`sampled` is false) are context."""

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
                rebuild,
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

    def with_repairs(self, results: Sequence[RepairResult]) -> Json:
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
                trace = cast(Node, record["traces"][path[1]] if path else record)  # type: ignore[index]
                record = replace_at(record, path, _renumbered(trace, new, gone))
        return record


def _traces(record: Json) -> list[tuple[tuple[str | int, ...], list[Node]]]:
    """Yield the nodes of each trace, with the trace's place."""
    if not isinstance(record, dict):
        return []
    listed = record.get("traces")
    several = [(("traces", n), one) for n, one in enumerate(listed)] if isinstance(listed, list) else []
    places: list[tuple[tuple[str | int, ...], Json]] = [((), record), *several]
    found = [(path, one.get("nodes")) for path, one in places if isinstance(one, dict)]
    return [
        (path, nodes)
        for path, nodes in found
        if isinstance(nodes, list) and nodes and all(isinstance(_message(n).get("role"), str) for n in nodes)
    ]


def _message(node: Json) -> Item:
    return cast(Item, part_of(node, "message"))


def _unbranched(nodes: Sequence[Node]) -> list[list[int]]:
    """Return the histories that do not branch."""
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
            own = [Piece("context", owner, "".join(piece.text for piece in own), role="assistant")]
        pieces += own
    return pieces


def _without_tokens(node: Node) -> Node:
    kept = {name: value for name, value in node.items() if name not in _OPTIONAL}
    return {**kept, **{name: [] for name in _LISTS if name in kept}}


def _renumbered(trace: Node, new: Mapping[int, Node], gone: set[int]) -> Node:
    """Return the trace with new nodes, and references updated.

    A reference to a removed node becomes one to its parent (`parent`), or goes (the model's requests, which stay
    for their cost)."""
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
    """Replace a node's place by its new one; drop it if removed."""
    if not isinstance(value, dict) or not isinstance(node := value.get("node"), int):
        return value
    if node in places:
        return {**value, "node": places[node]}
    return {name: inner for name, inner in value.items() if name != "node"}


TRACES = Traces()
