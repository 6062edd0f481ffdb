"""Messages of foreign records as they are learnt: what the model says in one, and which are refused, as nothing of what
they say would be read, or as said by another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from retcon.chat.types import REASONING
from retcon.core.errors import RecordError, nearest
from retcon.transcripts.formats.messages import pieces_of
from retcon.transcripts.reading.items import find_items, text_of
from retcon.transcripts.reading.pieces import Piece
from retcon.transcripts.reading.roles import KINDS, ROLES
from retcon.transcripts.types import Json

_TEXT = ("content", "value")
_BESIDE = ("tool_calls", "function_call", "refusal", *REASONING)
"""What a message may say without a text."""
_NAMES = {"role", "from", "id", "tool_call_id", "name"}
"""What says of a tool's output only which it is."""
_BETWEEN = re.compile(r"reasoning|item_reference|compaction|mcp_\w+|\w+_(?:call|output)")
"""Types of the Responses API's items that are no messages."""
_UNSHOWN = frozenset(
    {"image", "image_url", "input_image", "audio", "audio_url", "input_audio", "video", "video_url", "input_video"}
    | {"file", "input_file", "document"}
)
"""Types of parts that have no text to be learnt from."""
_USUAL = ("assistant", "user", "system", "tool", "human")
"""Roles that are meant where one is nearly written so; others are names of people's own."""


def words_of(item: Mapping[str, Json]) -> str:
    """The text of a message, of OpenAI's shape or ShareGPT's."""
    return text_of(_content(item))


def pieces_in(item: Mapping[str, Json]) -> list[Piece]:
    """What the model says in a message of its own that has no calls, with what it thinks."""
    own: dict[str, Json] = {**item, "role": "assistant", "content": _content(item)}
    return [piece for piece in pieces_of(own, 0, after_call=False) if piece.kind == "said"]


def _content(item: Mapping[str, Json]) -> Json:
    return item.get("content", item.get("value"))


def refuse_unread(record: Json) -> None:
    """Raises RecordError for a message of the record that has neither text nor calls nor reasoning where these are
    looked for, for an image or the like, and for a role that is a misspelt one: the first would be learnt as silence,
    the second as what nobody showed, the third as the user's, as roles of other names are."""
    found = find_items(record)
    prompt = record.get("prompt") if isinstance(record, dict) else None
    for items in ([] if found is None else found[1], prompt if isinstance(prompt, list) else []):
        for number, item in enumerate(items, 1):
            if isinstance(item, dict) and not _is_between(item):
                _refuse_unread(item, f"message {number}")


def _is_between(item: Mapping[str, Json]) -> bool:
    """Whether it is no message, but an item that the Responses API has between messages."""
    role, kind = item.get("role", item.get("from")), item.get("type")
    return role is None and isinstance(kind, str) and _BETWEEN.fullmatch(kind) is not None


def _refuse_unread(item: Mapping[str, Json], which: str) -> None:
    role = item.get("role", item.get("from"))
    if isinstance(role, str) and (meant := _misspelt(role)):
        raise RecordError(f"{which}: the role '{role}' is not known (did you mean '{meant}'?)")
    text = _content(item)
    if (kind := next(_unshown(text), None)) is not None:
        raise RecordError(f"{which} ({role}) has a part of type '{kind}': images and the like are not read")
    # A tool may have put out nothing, which some leave out.
    silent = KINDS.get(role) == "output" and (item.keys() <= _NAMES or any(key in item for key in _TEXT))
    unsaid = text is None and not silent
    if not any(item.get(key) for key in _BESIDE) and (unsaid or not isinstance(text, str | list | dict | None)):
        hint = next((hint for key in item if key not in _TEXT and (hint := nearest(key, _TEXT))), "")
        has = next(
            (f"its {key} is null" for key in _TEXT if item.get(key, "") is None), f"it has {', '.join(item)}{hint}"
        )
        raise RecordError(f"{which} ({role}) has no text, which is read from {' or '.join(_TEXT)}: {has}")


def _unshown(content: Json) -> Iterator[str]:
    """Types of the parts that the model cannot be shown, those within a tool's result among them."""
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, dict) and isinstance(kind := part.get("type"), str):
            if kind in _UNSHOWN:
                yield kind
            elif kind == "tool_result":
                yield from _unshown(part.get("content"))


def _misspelt(role: str) -> str:
    """The usual role that is meant; none of what is known, or a name of people's own (`user_1`, `coder`)."""
    if role in ROLES or role.lower().startswith(_USUAL):
        return ""
    return next(iter(get_close_matches(role[:40].lower(), _USUAL, 1, 0.85)), "")
