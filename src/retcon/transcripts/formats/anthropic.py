"""Anthropic's blocks, Bedrock's blocks, and sessions of Claude Code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import groupby, pairwise
from typing import cast

from msgspec.structs import replace

from retcon.transcripts.items import APART, Thought, as_text, role_of, text_of
from retcon.transcripts.itemwise import (
    Blockwise,
    Item,
    ItemList,
    exit_output,
    flagged_output,
    home_of,
    objects,
    part_of,
    read_call,
    silent_piece,
    some_id,
    string,
)
from retcon.transcripts.pieces import Call, Piece, PieceKind, ToolOutput
from retcon.transcripts.types import Json
from retcon.transcripts.verdicts import UNCLEAR, Verdict

_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")
_RESULT = "tool_result"
_LISTED = "tool_calls"


class Anthropic(Blockwise):
    """content: text, or blocks. A `tool_result` of the user (with some clients, of a tool) answers the call of its
    `tool_use_id`; `is_error` says whether it failed. Results of tools on the server stand in the model's own message,
    with a `return_code`."""

    name = "anthropic"
    marks: Sequence[str] = ("content", "tool_use", "tool_result", "tool_use_id", "input", "is_error")

    def has_calls(self, items: Sequence[Item]) -> bool:
        blocks = [self.blocks(item) for item in items]
        called = any(_is_call(block) for own in blocks for block in own)
        return called and all("role" in item for item in items) and not _is_of_openai(items, blocks)

    def kind(self, block: Json, item: Item) -> PieceKind:
        if _is_call(block):
            return "call"
        if is_result(block):
            return "result"
        return "assistant" if item.get("role") == "assistant" else "context"

    def call(self, block: Item) -> Call:
        return read_call(block, "name", "input", "id")

    def output(self, block: Item, item: Item) -> ToolOutput:
        own_id = some_id(block.get("tool_use_id"))
        ran = part_of(block, "content")
        if ran:  # of a tool on the server
            text = string(ran.get("stdout")) + string(ran.get("stderr")) or string(ran.get("error_code"))
            code = ran.get("return_code")
            if type(code) is int:
                return exit_output(text, own_id, code)
            failed = string(ran.get("type")).endswith("_error")
            return ToolOutput(text, own_id, Verdict("error", "status", text or None) if failed else None, typed=failed)
        says = block.get("is_error")
        return flagged_output(text_of(block.get("content")), own_id, failed=says if isinstance(says, bool) else None)

    def rebuild(self, pieces: Sequence[Piece]) -> list[Json]:
        new = super().rebuild(pieces)
        listed = [call for piece in pieces if piece.kind == "call" for call in _listed(piece)]
        return [{**one, _LISTED: listed} if isinstance(one, dict) and one.get(_LISTED) else one for one in new]


def is_result(block: Json) -> bool:
    """Whether a block is a result, of a client's or server's tool."""
    return isinstance(block, dict) and string(block.get("type")).endswith(_RESULT)


def _is_call(block: Json) -> bool:
    """Whether a block is a call; those of inspect_ai have a `tool_type`."""
    return isinstance(block, dict) and block.get("type") in _CALLS and "tool_type" not in block


def _is_of_openai(items: Sequence[Item], blocks: Sequence[Sequence[Json]]) -> bool:
    """Whether a message has OpenAI's shape: a tool's without a result block, or calls in `tool_calls` (where some
    clients have them too) that no result block answers. blocks: those of each."""
    answers = [any(part.get("type") == _RESULT for part in objects(own)) for own in blocks]
    if any(item["role"] == "tool" and not answer for item, answer in zip(items, answers, strict=True)):
        return True
    return not any(answers) and any(item.get(_LISTED) for item in items)


def _listed(piece: Piece) -> list[Json]:
    """Return what a call's message repeats under `tool_calls`."""
    listed, ids = home_of([piece]).get(_LISTED), {call.id for call in piece.calls}
    calls = listed if isinstance(listed, list) else []
    return [call for call in calls if isinstance(call, dict) and some_id(call.get("id")) in ids]


ANTHROPIC = Anthropic()


_CALL, _TOOL_RESULT = "toolUse", "toolResult"
_REASONING, _THOUGHT = "reasoningContent", "reasoningText"


class Bedrock(Blockwise):
    """Blocks of Bedrock's Converse API.

    A block is an object with one key, which names its kind. A `toolResult` of the user answers the call of its
    `toolUseId`; its `status` counts where it is "error" ("success" is its default). Reasoning counts as words
    unless it is signed."""

    name = "bedrock"
    aliases = ("strands",)
    needs = frozenset({"content"})
    marks = ("messages", "content", _CALL, _TOOL_RESULT, "toolUseId", _REASONING, _THOUGHT, "cachePoint")

    def has_calls(self, items: Sequence[Item]) -> bool:
        return any(part_of(block, _CALL) for item in items for block in self.blocks(item))

    def kind(self, block: Json, item: Item) -> PieceKind:
        if part_of(block, _CALL):
            return "call"
        if part_of(block, _TOOL_RESULT):
            return "result"
        return "assistant" if item.get("role") == "assistant" else "context"

    def call(self, block: Item) -> Call:
        return read_call(part_of(block, _CALL), "name", "input", "toolUseId")

    def output(self, block: Item, item: Item) -> ToolOutput:
        result = part_of(block, _TOOL_RESULT)
        given = objects(result.get("content"))
        text = "".join(
            as_text(one["json"]) if one.get("json") is not None else string(one.get("text")) for one in given
        )
        return flagged_output(text, some_id(result.get("toolUseId")), failed=result.get("status") == "error" or None)

    def words(self, block: Json) -> str:
        thought = _thought(block)
        if thought:
            text = string(thought.get("text"))
            return Thought(text + APART if text and not thought.get("signature") else "")
        return super().words(block)

    def with_words(self, block: Json, words: str) -> Json:
        thought = _thought(block)
        if not thought:
            return super().with_words(block, words)
        return {_REASONING: {_THOUGHT: {**thought, "text": words.removesuffix(APART)}}}


def _thought(block: Json) -> Item:
    return part_of(part_of(block, _REASONING), _THOUGHT)


BEDROCK = Bedrock()


_SPEAKERS = ("user", "assistant")
_PARENT = "parentUuid"
_LINKS = (_PARENT, "logicalParentUuid", "leafUuid")
"""Where a line names another that came before it."""
_SESSION = "sessionId"
_AHEAD = ("summary", "file-history-snapshot")
"""Lines without a session's name that stand before the first of a session."""
_REJECTED = "User rejected tool use"
_NOT_RUN = (
    "The user doesn't want to proceed with this tool use", "The user doesn't want to take this action right now",
    "[Request interrupted by user", "Claude requested permissions to", "Cancelled: parallel tool call",
    "<tool_use_error>Cancelled: parallel tool call", "<tool_use_error>Sibling tool call errored",
)  # fmt: skip
"""How the result of a call begins that was never made."""
_QUEUED = "queued_command"
_SYNTHETIC = "<synthetic>"
"""The model of messages that Claude Code itself wrote in the model's name, as when the API failed."""


class ClaudeCode(Anthropic):
    """Lines of a Claude Code session.

    A line has a `message`, or reports something else and stays with the line before it; a `queued_command` is what
    a user typed while tools ran. Lines with the `id` of one message are one, though the result of its first call
    may precede its second. Lines of a subagent (`isSidechain`), lines that a user went back from and the reply to a
    rejected call stay as they are. Lines whose parent is gone get that line's parent. No repair spans two sessions,
    unless one continues from a line of the other. A repeated `uuid` counts once. Events of `claude -p
    --output-format stream-json` are such lines too."""

    name = "claude-code"
    needs = frozenset({"message"})
    in_lines = True
    marks = (
        "uuid", _PARENT, "sessionId", "isSidechain", "message", "toolUseResult", "userType", "tool_use", "tool_result",
    )  # fmt: skip

    def has_calls(self, items: Sequence[Item]) -> bool:
        known = [item for item in items if "uuid" in item or _session(item)]
        return any(self.kind(block, item) == "call" for item in known for block in self.blocks(item))

    def is_plain(self, items: Sequence[Item]) -> bool:
        return any(_is_spoken(item) and _session(item) for item in items)

    def beginnings(self, items: Sequence[Json]) -> Sequence[int]:
        """Return where transcripts begin: at sessions that are apart.

        No other session stands before such a session's end or continues from it."""
        known = [item for item in items if isinstance(item, dict)]
        if len(known) < len(items):
            return [0]
        starts, begun = [0], False
        for start, stop in pairwise([*_parted(known), len(known)]):
            own = self.has_calls(known[start:stop]) or self.is_plain(known[start:stop])
            if start and begun and own:
                starts.append(start)
            begun = begun or own
        return starts

    def find(self, record: Json) -> ItemList | None:
        found = super().find(record)
        return found._replace(items=_together(_once(found.items))) if found else None

    def group(self, items: Sequence[Item]) -> list[Piece]:
        first = _first_sessions(items)
        pieces: list[Piece] = []
        for piece in super().group(items):
            if pieces:
                last, own = (first.get(_session(home_of([one]))) for one in (pieces[-1], piece))
                if last and own and last != own:
                    pieces.append(silent_piece(pieces[-1].owner, home_of(pieces[-1:])))
            pieces.append(piece)
        return pieces

    def blocks(self, item: Item) -> Sequence[Json]:
        if queued := part_of(item, "attachment"):
            return [queued] if queued.get("type") == _QUEUED else []
        return super().blocks(part_of(item, "message")) if _is_spoken(item) else []

    def blocks_of(self, items: Sequence[Item]) -> Sequence[Sequence[Json]]:
        spoken = [item for item in items if _is_spoken(item)]
        aside = not all(map(_is_subagents, spoken))
        left = set(_left(items))
        return [
            [] if n in left or (aside and _is_subagents(item)) else self.blocks(item) for n, item in enumerate(items)
        ]

    def goes_on(self, item: Item, last: Item) -> bool:
        own = part_of(item, "message").get("id")
        return bool(own) and own == part_of(last, "message").get("id")

    def with_blocks(self, item: Item, blocks: Sequence[Json]) -> dict[str, Json]:
        return {**item, "message": super().with_blocks(part_of(item, "message"), blocks)}

    def kind(self, block: Json, item: Item) -> PieceKind:
        return super().kind(block, part_of(item, "message"))

    def words(self, block: Json) -> str:
        queued = isinstance(block, dict) and block.get("type") == _QUEUED
        return text_of(block.get("prompt")) if queued and isinstance(block, dict) else super().words(block)

    def role(self, block: Json, item: Item) -> str:
        return role_of(part_of(item, "message"))

    def output(self, block: Item, item: Item) -> ToolOutput:
        output = super().output(block, item)
        if item.get("toolUseResult") == _REJECTED or (output.typed and output.text.startswith(_NOT_RUN)):
            return replace(output, verdict=Verdict("ok", UNCLEAR), typed=True)
        return output

    def rebuild(self, pieces: Sequence[Piece]) -> list[Json]:
        """Return the lines of the pieces, as those of one message."""
        own_id = part_of(home_of(pieces), "message").get("id")
        new: list[Json] = []
        for _, own in groupby(pieces, key=_line):
            line, *beside = super().rebuild(list(own))
            new += [_with_id(line, own_id), *beside]
        return new

    def update_references(self, items: Sequence[Json], before: Sequence[Item]) -> Sequence[Json]:
        kept = {string(item.get("uuid")) for item in items if isinstance(item, dict)}
        gone = {uuid: item.get(_PARENT) for item in before if (uuid := string(item.get("uuid"))) and uuid not in kept}
        return [_linked(item, gone) if isinstance(item, dict) else item for item in items]


def _session(item: Item) -> str:
    return string(item.get(_SESSION)) or string(item.get("session_id"))


def _is_subagents(item: Item) -> bool:
    return bool(item.get("isSidechain") or item.get("parent_tool_use_id"))


def _once(items: Sequence[Item]) -> list[Item]:
    """Drop lines whose `uuid` an earlier one has."""
    first: dict[str, int] = {}
    own = [string(item.get("uuid")) for item in items]
    return [item for n, item in enumerate(items) if not own[n] or first.setdefault(own[n], n) == n]


def _is_spoken(item: Item) -> bool:
    message = part_of(item, "message")
    spoken = item.get("type") in _SPEAKERS and "content" in message
    return spoken and message.get("model") != _SYNTHETIC and not item.get("isApiErrorMessage")


def _together(items: Sequence[Item]) -> list[Item]:
    """Move lines of one message together: its first call may be answered, and that written, before the second."""
    places: list[int] = []
    message: Json = None
    last, answered, parted = 0, False, False
    for n, item in enumerate(items):
        place = n
        if item.get("type") == "user" and _has_result(item):
            answered = True
        elif _is_spoken(item):
            own = part_of(item, "message").get("id")
            if not own or own != message:
                message, answered, parted = own, False, False
            parted = parted or answered
            last = place = last if parted else n
        places.append(place)
    return [items[n] for n in sorted(range(len(items)), key=places.__getitem__)]


def _first_sessions(items: Iterable[Item]) -> Mapping[str, str]:
    """Map each session to the first one that it continues."""
    first: dict[str, str] = {}
    has: dict[str, str] = {}  # by a line's uuid, its session
    for item in items:
        if not (own := _session(item)):
            continue
        first.setdefault(own, own)
        for link in _LINKS:
            before, after = first[has.get(string(item.get(link)), own)], first[own]
            if before != after:
                first = {name: before if one == after else one for name, one in first.items()}
        if uuid := string(item.get("uuid")):
            has[uuid] = own
    return first


def _parted(items: Sequence[Item]) -> Iterator[int]:
    """Return the places before which all sessions have ended."""
    first = _first_sessions(items)
    own = [first.get(_session(item), "") for item in items]
    last = {name: n for n, name in enumerate(own)}
    end = len(items)
    start = 0  # of the lines that are of the next session, if one begins
    seen: set[str] = set()
    yield 0
    for n, (item, name) in enumerate(zip(items, own, strict=True)):
        if name:
            if n > end:
                yield start
            end = last[name] if end == len(items) else max(end, last[name])
        if name or not _is_ahead(item, seen):
            start = n + 1
        seen.add(string(item.get("uuid")))


def _is_ahead(item: Item, seen: Set[str]) -> bool:
    """Whether a line is of the session after it: it names none that came before. seen: the `uuid`s of those."""
    named = (string(item.get(key)) for key in ("leafUuid", "messageId"))
    return item.get("type") in _AHEAD and seen.isdisjoint(filter(None, named))


def _left(items: Sequence[Item]) -> Iterable[int]:
    """Places of lines that a user went back from: from a prompt to the one that was given in its stead."""
    asked: dict[str, int] = {}
    for n, item in enumerate(items):
        parent = item.get(_PARENT)
        if item.get("type") != "user" or item.get("isSidechain") or item.get("isMeta") or not isinstance(parent, str):
            continue
        if "toolUseResult" in item or _has_result(item):
            continue
        if parent in asked:
            yield from range(asked[parent], n)
        asked[parent] = n


def _has_result(item: Item) -> bool:
    content = part_of(item, "message").get("content")
    return isinstance(content, list) and any(map(is_result, content))


def _line(piece: Piece) -> str:
    home = home_of([piece])
    return string(home.get("uuid")) or str(part_of(home, "message").get("id"))


def _with_id(item: Json, own_id: Json) -> Json:
    message = part_of(item, "message")
    if not own_id or message.get("id") in (None, own_id):
        return item
    return {**cast(dict[str, Json], item), "message": {**message, "id": own_id}}


def _linked(item: dict[str, Json], gone: Mapping[str, Json]) -> dict[str, Json]:
    """Return the line with its nearest remaining parent."""
    new: dict[str, Json] = {}
    for key in _LINKS:
        named = item.get(key)
        for _ in gone:  # at most as often
            if not isinstance(named, str) or named not in gone:
                break
            named = gone[named]
        if named != item.get(key):
            new[key] = named
    return {**item, **new} if new else item


CLAUDE_CODE = ClaudeCode()
