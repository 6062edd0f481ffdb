"""Find messages in records, read their text and roles, write them back."""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec
from rapidfuzz.distance import Postfix, Prefix

from retcon.core.errors import RecordError
from retcon.purify.words import cut_spans
from retcon.store.parquet import Record
from retcon.transcripts.types import Json, json_in

if TYPE_CHECKING:
    from retcon.transcripts.pieces import PieceKind

_PLACES = (
    ("messages",), ("conversations",), ("conversation",), ("completion",), ("trajectory",), ("traj",),
    ("debug_result",), ("state", "history"), ("history",), ("transcript",), ("chat_history",),
)  # fmt: skip
LISTS = tuple(place[0] for place in _PLACES if len(place) == 1)
"""Where a record has its list of messages, as itself or as JSON text."""
_LISTS = frozenset(LISTS)
TEXTS = ("text", "completion", "response", "output", "generation", "code", "solution", "answer", "content")
"""Where a record that is one text, or several samples of it, keeps that: the first in which calls are counts."""
_TEXTS = frozenset(TEXTS)
QUESTIONS = ("prompt", "question", "instruction", "problem", "input")
"""Where a record that has no list of messages, or only the model's, keeps what was asked."""
SYSTEMS = ("system", "system_prompt")
"""Where a record keeps the system prompt, if not in its list of messages."""
_ROLES = {str, type(None)}
_ONE_PART = {"type", "text"}
_THOUGHTS = ("reasoning", "thinking")
APART = "\n\n"
"""What stands between what a model thinks and its words, so that sentences end."""


class Thought(str):
    """Words that a model only thought."""


def find_items(record: Json) -> tuple[tuple[str, ...], list[dict[str, Json]]] | None:
    """Find a record's list of messages: path (empty for a bare list) and value."""
    for path in ((), *_PLACES) if isinstance(record, list) else _PLACES:
        value = record
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, list) and set(map(type, value)) == {dict}:
            items = cast(list[dict[str, Json]], value)
            key = "role" if "role" in items[0] else "from"
            if key in items[0] and {type(item.get(key)) for item in items} <= _ROLES:
                return path, items
    return None


def no_items() -> RecordError:
    """Build the error for a record without messages."""
    return RecordError(f"no list of messages: none of {', '.join(map('.'.join, _PLACES))} holds one")


def has_no_items(record: Json) -> bool:
    """Whether a record's list of messages is empty."""
    found = map(record.get, LISTS) if isinstance(record, dict) else ()
    return any(isinstance(value, list) and not value for value in found)


def replace_at(record: Json, path: Sequence[str | int], value: Json) -> Json:
    """Replace a record's value at a path; the rest is shared, nothing is changed."""
    if not path:
        return value
    first, rest = path[0], path[1:]
    if isinstance(first, int) and isinstance(record, list):
        return [replace_at(one, rest, value) if n == first else one for n, one in enumerate(record)]
    if isinstance(first, str) and isinstance(record, dict):
        return {**record, first: replace_at(record[first], rest, value)}
    raise RecordError(f"expected {'a list' if isinstance(first, int) else 'an object'} with {first!r}")


def text_of(content: Json) -> str:
    """Return the text of a message's content or of its parts; of an object, such as a tool's record of the execution,
    its JSON."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part(part) for part in content)
    if isinstance(content, dict) and content:
        return _part(content) if content.keys() == _ONE_PART else json.dumps(content, ensure_ascii=False)
    return ""


def as_text(value: Json) -> str:
    """Return a result as text: itself, JSON, or "" for null."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def _part(part: Json) -> str:
    if isinstance(part, str):
        return part
    key = _text_key(part)
    return cast(str, part[key]) if key is not None and isinstance(part, dict) else ""


def _text_key(part: Json) -> str | None:
    found = part if isinstance(part, dict) else {}
    return next((key for key in ("text", "content") if isinstance(found.get(key), str)), None)


def words_of(content: Json) -> str:
    """Return the words in a model's message: its text, and reasoning in parts of its own (inspect_ai's, or Anthropic's
    that are not signed)."""
    return "".join(map(part_words, content)) if isinstance(content, list) else text_of(content)


def part_words(part: Json) -> str:
    """Return the words of one part; a thought ends with `APART`."""
    key = _thought_key(part)
    if key is None or not isinstance(part, dict):
        return _part(part)
    value = cast(str, part[key])
    return Thought(value + APART if value else "")


def with_part_words(part: Json, words: str) -> Json:
    """Return a part with other words."""
    thought = _thought_key(part)
    if thought is None or not isinstance(part, dict):
        return _with_part(part, words)
    return {**part, thought: words.removesuffix(APART)}


def without_words(content: Json, cuts: Sequence[tuple[int, int]]) -> Json:
    """Cut spans, [start, end) of `words_of`, from a content, by `parts_without`."""
    if isinstance(content, list):
        return parts_without(content, cuts, part_words, with_part_words)
    left = cut_spans(text_of(content), cuts)
    return with_part_words(content, left) if isinstance(content, dict) and content.keys() == _ONE_PART else left


def parts_without(
    content: Sequence[Json], cuts: Sequence[tuple[int, int]], words_in: Callable[[Json], str],
    cut_words: Callable[[Json, str], Json],
) -> list[Json]:  # fmt: skip
    """Remove spans from the words of content parts.

    Emptied parts go, except the last part that is left; all others stay in place. words_in: the words of a part;
    cut_words: it with others."""
    parts: list[Json] = []
    at = 0
    for part in content:
        words = words_in(part)
        end = at + len(words)
        inside = [(max(s, at) - at, min(e, end) - at) for s, e in cuts if s < end and e > at]
        left = cut_spans(words, inside)
        if not inside:
            parts.append(part)
        elif left:
            parts.append(cut_words(part, left))
        at = end
    return parts or [cut_words(part, "") for part in content[:1]]


def _thought_key(part: Json) -> str | None:
    """Find a part's unsigned thought as plain text."""
    if not isinstance(part, dict) or part.get("type") not in _THOUGHTS or _text_key(part) is not None:
        return None
    if part.get("signature") or part.get("redacted") is True:
        return None
    return next((key for key in _THOUGHTS if isinstance(part.get(key), str)), None)


def with_text(content: Json, text: str) -> Json:
    """Return a content with another text. Parts change from the first difference to the last; new text goes where that
    begins, and a part that becomes empty goes."""
    if not isinstance(content, list):
        return text
    old = text_of(content)
    start = Prefix.similarity(old, text)
    rest = Postfix.similarity(old[start:], text[start:])
    stop, new = len(old) - rest, text[start : len(text) - rest]
    parts: list[Json] = []
    at, placed = 0, False
    for part in content:
        own = _part(part)
        end = at + len(own)
        left = own[: max(0, start - at)] + own[max(0, stop - at) :]
        if own and not placed and start <= end:
            left = own[: max(0, start - at)] + new + own[max(0, stop - at) :]
            placed = True
        if left == own:
            parts.append(part)
        elif left:
            parts.append(_with_part(part, left))
        at = end
    return parts if placed else [*parts, {"type": "text", "text": text}]


def _with_part(part: Json, text: str) -> Json:
    key = _text_key(part)
    return {**part, key: text} if key is not None and isinstance(part, dict) else text


def context_of(record: Json) -> str:
    """Return the context that a record keeps beside its items."""
    if not isinstance(record, dict):
        return ""
    prompt = record.get("prompt")
    if isinstance(prompt, list):
        return "\n\n".join(text_of(m.get("content")) for m in prompt if isinstance(m, dict))
    for key in QUESTIONS:
        if isinstance(value := record.get(key), str) and value:
            return value
    return ""


def system_of(record: Json) -> str:
    """Return the system prompt beside the items; "" for none."""
    values = [record.get(name) for name in SYSTEMS] if isinstance(record, dict) else []
    return next((text for value in values if not isinstance(value, dict) and (text := text_of(value)).strip()), "")


_OF_TEXT = frozenset({
    "tokens", "token_ids", "response_ids", "response_length", "loss_mask", "rollout_log_probs", "completion_ids",
    "completion_mask", "completion_logprobs", "response_mask", "rollout_routed_experts", "teacher_log_probs",
    "mopd_teacher_log_probs", "rollout_top_p_token_ids", "rollout_top_p_token_offsets", "payload_text",
})  # fmt: skip
"""Ids, masks and log-probs of what the model wrote (slime, verl, TRL, prime-rl), and slime's prompt and response in one
text."""
_IDS = "input_ids"
_BESIDE_IDS = ("labels", "attention_mask", "position_ids", "token_type_ids", "assistant_masks", "special_tokens_mask")
"""As a tokenizer or a collator gives them: so many numbers as there are ids."""
_RENDERED = "text"
_STEPS = "trajectory"
"""Beside verifiers' `completion`: each request to the model, with its prompt and its ids."""
_EVENTS = "events"
"""Of inspect_ai's samples: each request to the model and each call, as they were made."""
_OF_EVENTS = ("events_data", "message_pool", "call_pool")
"""Beside these: the messages and calls that they point to."""
_TELLING = 20
"""Characters of a message from which on a text that has them repeats it, and of a text that is part of another."""


def renew_record(record: Json, path: Sequence[str | int], value: Json) -> Json:
    """Return a repaired record with another value at `path`. Fields that repeat the old one are emptied, to an empty
    list or text, 0 for a number, null for an object; a list or text that is the same, or its end, becomes the new one,
    as does a text within another. The record itself stays as it is."""
    new = replace_at(record, path, value)
    if not isinstance(record, dict) or not isinstance(new, dict):
        return new
    stale = [*(_OF_TEXT & record.keys())]
    if tuple(path) == ("completion",) and isinstance(record.get(_STEPS), list):
        stale.append(_STEPS)
    if tuple(path) == ("messages",) and any(
        isinstance(one, dict) and one.get("event") in ("model", "tool") for one in _listed(record.get(_EVENTS))
    ):
        stale += [_EVENTS, *(n for n in _OF_EVENTS if n in record)]
    ids = record.get(_IDS)
    if _is_numbers(ids):
        stale += [
            _IDS,
            *(n for n in _BESIDE_IDS if len(_listed(record.get(n))) == len(_listed(ids)) and _is_numbers(record[n])),
        ]
    old: Json = record
    for key in path:
        old = old.get(key) if isinstance(old, dict) and isinstance(key, str) else None
    again: dict[str, Json] = {}
    if isinstance(old, list) and isinstance(value, list):
        kept = set(map(id, value))
        gone = [item for item in old if id(item) not in kept]
        text = record.get(_RENDERED)
        if isinstance(text, str) and any(one in text for one in _long_texts(gone)):
            stale.append(_RENDERED)
        again = dict(_copies(record, path, old, value, gone))
    if len(path) == 1 and len(record) > 1:
        again |= _texts_again(record, path[0], [*zip(_texts(old), _texts(value), strict=False)])
    return {**new, **{n: _empty(record[n]) for n in stale}, **again}


def _copies(
    record: dict[str, Json], path: Sequence[str | int], old: list[Json], new: list[Json], gone: Sequence[Json]
) -> Iterator[tuple[str, Json]]:
    """Yield other lists that hold a removed message, and their new value."""
    wrong: set[str] = set()
    for name in _LISTS & record.keys():
        other = record[name]
        if (name,) == tuple(path) or not isinstance(other, list):
            continue
        wrong = wrong or set(map(repr, gone))
        if wrong.isdisjoint(map(repr, other)):
            continue
        before = len(old) - len(other)
        same = before >= 0 and other == old[before:] and old[:before] == new[:before]
        yield name, new[before:] if same else []


def _texts_again(record: dict[str, Json], place: str | int, changed: Sequence[tuple[str, str]]) -> dict[str, Json]:
    """Map texts that repeat a changed one to their new value."""
    again: dict[str, Json] = {}
    for name in (_TEXTS & record.keys()) - {place}:
        other = record[name]
        texts = _texts(other)
        new: list[Json] = [_again(text, changed) for text in texts]
        if new != texts:
            again[name] = new if isinstance(other, list) else new[0]
    return again


def _again(text: str, changed: Sequence[tuple[str, str]]) -> str:
    """Return the new value of a text that contains a changed one."""
    for old, new in changed:
        if old == new or not old:
            continue
        if old in text:
            return text.replace(old, new)
        if len(text) < _TELLING or text not in old:
            continue
        lead = old.removesuffix(text)
        if lead != old and new.startswith(lead):
            return new[len(lead) :]
        if text not in new:
            return ""
    return text


def _texts(value: Json) -> list[str]:
    """Return a text, or each of a list of nothing else."""
    every = value if isinstance(value, list) else [value]
    texts = [one for one in every if isinstance(one, str)]
    return texts if len(texts) == len(every) else []


def _long_texts(items: Sequence[Json]) -> Iterator[str]:
    for item in items:
        text = text_of(item.get("content", item.get("value"))).strip() if isinstance(item, dict) else ""
        if len(text) >= _TELLING:
            yield text


def _listed(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _is_numbers(value: Json) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) in (int, float) for one in value)


def _empty(value: Json) -> Json:
    if isinstance(value, list | str):
        return value[:0]
    return 0 if isinstance(value, int | float) and not isinstance(value, bool) else None


_MODEL = ("assistant", "gpt", "model", "chatgpt", "bot", "ai")
_TOOL = (
    "tool", "function", "observation", "ipython", "execution", "environment",
    "tool_response", "function_response", "function-response", "tool_result",
)  # fmt: skip
_CALL = ("function_call", "function-call", "tool_call")
_KEYS = ("role", "from", "type", "kind", "action")
_INSIDE = ("data", "kwargs", "llm_message", "payload")
"""Where LangChain, OpenHands and Codex have the message of an item."""


def _spellings(names: Iterable[str]) -> Iterable[str]:
    for name in names:
        yield from (name, name.capitalize(), name.upper(), name.title().replace("gpt", "GPT"))


ASSISTANT = frozenset(_spellings(_MODEL))
SYSTEM = frozenset(_spellings(("system", "developer")))
KINDS: dict[Json, PieceKind] = {
    **dict.fromkeys(ASSISTANT, "assistant"),
    **dict.fromkeys(_spellings(_TOOL), "result"),
    **dict.fromkeys(_spellings(_CALL), "call"),
}
"""Kinds of messages by role; those of other roles are context."""
_BLOCKS = ("text", "code", "thought", "reasoning")
"""MathCoder's, beside `execution`."""
ROLES: frozenset[str] = SYSTEM.union(_spellings((*_MODEL, *_TOOL, *_CALL, "user", "human", *_BLOCKS)))
"""All that messages are known to have."""
_SYSTEMS = SYSTEM | {"SystemMessage", "SystemMessageChunk", "SystemPromptEvent"}


def role_of(item: Json) -> str:
    """Return the role of an input item, or of a group's first."""
    if isinstance(item, list):
        return role_of(item[0]) if item else "user"
    if not isinstance(item, dict):
        return "user"
    places = (item, *(inner for name in _INSIDE if isinstance(inner := item.get(name), dict)))
    names = (place.get(key) for place in places for key in _KEYS)
    known = {"system" if name in _SYSTEMS else KINDS.get(name, "user") for name in names if isinstance(name, str)}
    alone = isinstance(item.get("system_prompt"), str) and not any(isinstance(item.get(key), str) for key in _KEYS)
    if "system" in known or alone:  # the key alone makes a step of smolagents
        return "system"
    return "tool" if "result" in known else "user"


def speaker_of(message: Json) -> str:
    """Return the speaker of a message: `system`, `assistant`, `tool` or `user`."""
    role = message.get("role", message.get("from")) if isinstance(message, dict) else None
    return "assistant" if isinstance(role, str) and role in ASSISTANT else role_of(message)


def is_unlearnt(item: Json) -> bool:
    """Whether a message, or one of a group, is excluded from training.

    Its `weight` is 0, as in OpenAI's fine-tuning; a step of ATIF was copied from another trajectory, or no model
    was asked for it."""
    if isinstance(item, list):
        return any(map(is_unlearnt, item))
    if not isinstance(item, dict):
        return False
    return item.get("weight") == 0 or item.get("is_copied_context") is True or item.get("llm_call_count") == 0


_INDENT = re.compile(rb"[\[{](?:[ \t]*\r?\n)(?P<indent>[ \t]*)")
_COLON = re.compile(rb'(?<!\\)":(?P<space>\s?)')
_SPACED = re.compile(r'(?<!\\)": ')
_HUGE = re.compile(rb"\d[eE]\+?\d{3}")
_EXPONENT = re.compile(rb"\d[eE][-+]\d")
"""Of a number that Python's own writer gives so, and msgspec otherwise."""
_HEAD = 4096
_IN_TEXT = b'[{\\"'
"""How a list of objects begins that is JSON text; only records that are written anew are searched for it."""
SESSION = "session"
"""The kind of a record that is all lines of a file."""
_T = TypeVar("_T")


def decode(record: Record) -> Json:
    """Decode a record's value; a session's is a list.

    NaN and lone surrogates, which no standard knows, are read, and so is a list of messages that is JSON text.
    Raises RecordError."""
    return decode_with_standard(record)[0]


def decode_with_standard(record: Record) -> tuple[Json, bool]:
    """Decode a record, and say whether it is surely standard JSON."""
    if record.kind == SESSION:
        return [decode(line) for line in _lines_of(record)], False
    try:
        value: Json = msgspec.json.decode(record.data)
        unpacked = _unpacked(value)
        return unpacked, unpacked is value
    except RecursionError:
        raise RecordError(f"{record.where}: nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        try:
            return _unpacked(json.loads(record.data)), False
        except (ValueError, RecursionError):
            raise RecordError(f"{record.where}: not JSON: {error}") from error


def encode(value: Json, like: Record) -> bytes:
    """Encode a record's new value in the record's style.

    Indentation, spaces, escapes, ends of lines; NaN stays, as do numbers beyond all floats. Lines of a session
    whose values stay keep their bytes."""
    if like.kind == SESSION:
        return _session(value, like)
    like = like._replace(data=like.data.removeprefix(codecs.BOM_UTF8))
    if _IN_TEXT in like.data:
        value = _packed(value, like.data)
    head = like.data.lstrip()[:_HEAD]
    broken = _INDENT.match(head)
    colon = _COLON.search(head)
    spaced = colon is not None and colon["space"] != b""
    ascii_only = like.data.isascii() and b"\\u" in like.data
    newline = "\r\n" if like.data.endswith(b"\r\n") or (broken is not None and b"\r" in broken[0]) else "\n"
    end = newline.encode() if like.kind == "line" else like.data[len(like.data.rstrip()) :]
    exponents = spaced and (b"e-" in like.data or b"e+" in like.data) and _EXPONENT.search(like.data)
    if broken is None and not ascii_only and not exponents:
        try:
            data = msgspec.json.encode(value)
            if b"null" not in data or is_finite(like.data) or not has_nan(value):
                return (msgspec.json.format(data, indent=0) if spaced else data) + end
        except (UnicodeEncodeError, OverflowError, msgspec.MsgspecError):
            pass  # a lone surrogate, a whole number of more than 64 bits
    separators = (", ", ": ") if spaced else (",", ":")
    base, step = "", None
    if broken is not None:
        base = (like.lead.rpartition(b"\n")[2] if b"\n" in like.lead else b"").decode()
        step = broken["indent"].decode().removeprefix(base) or " "
        separators = (",", separators[1])
    text = _text(value, ascii_only, separators, step)
    if "Infinity" in text and b"Infinity" not in like.data:
        beyond = _beyond(like.data)
        text = _text(_spelt(value, beyond), ascii_only, separators, step)
        text = text.replace(f'"{beyond}"', beyond).replace(f'"-{beyond}"', f"-{beyond}")
    return text.replace("\n", newline + base).encode("utf-8", "replace") + end


def _unpacked(value: Json) -> Json:
    """Return the record with JSON text of messages decoded (SWE-smith's rows)."""
    if not (texts := _written(value)) or not isinstance(value, dict):
        return value
    lists = {name: listed for name, text in texts if find_items({name: (listed := json_in(text))}) is not None}
    return {**value, **lists} if lists else value


def _packed(value: Json, data: bytes) -> Json:
    """Return the record with lists as JSON text where `data` has them so."""
    if not isinstance(value, dict) or not any(isinstance(value.get(name), list) for name in LISTS):
        return value
    texts = {name: text for name, text in _written(json.loads(data)) if isinstance(value.get(name), list)}
    again = {
        name: _text(value[name], text.isascii(), (", ", ": ") if _SPACED.search(text[:_HEAD]) else (",", ":"), None)
        for name, text in texts.items()
    }
    return {**value, **again}


def _written(value: Json) -> list[tuple[str, str]]:
    """List a record's texts that begin like messages, by their keys."""
    if not isinstance(value, dict):
        return []
    texts = [(name, text) for name in _LISTS.intersection(value) if isinstance(text := value[name], str)]
    return [(name, text) for name, text in texts if text[:_HEAD].lstrip().startswith('[{"')]


def _lines_of(record: Record) -> list[Record]:
    """Return the lines of a session, each as a record."""
    lines = enumerate(record.data.splitlines(keepends=True), record.number)
    return [Record(line, number, record.file) for number, line in lines if not line.isspace()]


def _session(value: Json, like: Record) -> bytes:
    lines = _lines_of(like)
    kept = {repr(decode(line)): line.data for line in lines}
    items = value if isinstance(value, list) else [value]
    written = [kept.get(repr(item)) or encode(item, lines[0]) for item in items]
    return b"".join(line if line.endswith(b"\n") else line + b"\n" for line in written)


def _text(value: Json, ascii_only: bool, separators: tuple[str, str], indent: str | None) -> str:
    text = json.dumps(value, ensure_ascii=ascii_only, separators=separators, indent=indent)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate is kept as the escape that it came as
        text = json.dumps(value, ensure_ascii=True, separators=separators, indent=indent)
    return text


def _beyond(data: bytes) -> str:
    """Return a number beyond all floats that the data lacks."""
    beyond = "1e999"
    while beyond.encode() in data:
        beyond += "9"
    return beyond


def _spelt(value: Json, beyond: str) -> Json:
    """Replace infinite numbers by the text of such a number."""
    if isinstance(value, dict):
        return {key: _spelt(one, beyond) for key, one in value.items()}
    if isinstance(value, list):
        return [_spelt(one, beyond) for one in value]
    if isinstance(value, float) and math.isinf(value):
        return beyond if value > 0 else f"-{beyond}"
    return value


def is_finite(data: bytes) -> bool:
    """Whether a record's bytes surely hold finite numbers alone."""
    return b"NaN" not in data and b"Infinity" not in data and _HUGE.search(data) is None


def has_nan(value: Json) -> bool:
    """Whether a number in it is not finite."""
    if isinstance(value, dict):
        return any(map(has_nan, value.values()))
    if isinstance(value, list | tuple):
        return any(map(has_nan, value))
    return isinstance(value, float) and not math.isfinite(value)


def without_nan(value: _T) -> _T:
    """Return a value with None for numbers that are not finite."""
    if isinstance(value, dict):
        return cast(_T, {key: without_nan(one) for key, one in value.items()})
    if isinstance(value, list | tuple):
        return cast(_T, type(value)(without_nan(one) for one in value))
    return cast(_T, None) if isinstance(value, float) and not math.isfinite(value) else value
