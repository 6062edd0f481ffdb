"""What of a record repeats its transcript in another form, and is wrong once that is repaired: it is emptied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from retcon.transcripts.reading.items import TEXTS, other_lists, replaced, text_of
from retcon.transcripts.types import Json

_OF_TEXT = (
    "tokens", "token_ids", "response_ids", "response_length", "loss_mask", "rollout_log_probs", "completion_ids",
    "completion_mask", "completion_logprobs", "response_mask", "rollout_routed_experts", "teacher_log_probs",
    "mopd_teacher_log_probs", "rollout_top_p_token_ids", "rollout_top_p_token_offsets", "payload_text",
)  # fmt: skip
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


def renewed(record: Json, path: Sequence[str | int], value: Json) -> Json:
    """The record with another value at `path`, where its transcript was repaired. What repeats the one before is
    emptied, to an empty list or text, 0 for a number, null for an object; a list or text that is the same, or
    its end, becomes the new one, as does a text within another. The record itself stays as it is."""
    new = replaced(record, path, value)
    if not isinstance(record, dict) or not isinstance(new, dict):
        return new
    stale = [n for n in _OF_TEXT if n in record]
    if tuple(path) == ("completion",) and isinstance(record.get(_STEPS), list):
        stale.append(_STEPS)
    if tuple(path) == ("messages",) and any(_is_made(one) for one in _listed(record.get(_EVENTS))):
        stale += [_EVENTS, *(n for n in _OF_EVENTS if n in record)]
    ids = record.get(_IDS)
    if _is_numbers(ids):
        stale += [_IDS, *(n for n in _BESIDE_IDS if _is_numbers(record.get(n)) and _as_long(record[n], ids))]
    old: Json = record
    for key in path:
        old = old.get(key) if isinstance(old, dict) and isinstance(key, str) else None
    again: dict[str, Json] = {}
    if isinstance(old, list) and isinstance(value, list):
        kept = set(map(id, value))
        gone = [item for item in old if id(item) not in kept]
        text = record.get(_RENDERED)
        if isinstance(text, str) and any(said in text for said in _said(gone)):
            stale.append(_RENDERED)
        again = dict(_copies(record, path, old, value, gone))
    if len(path) == 1:
        again |= _texts_again(record, path[0], [*zip(_texts(old), _texts(value), strict=False)])
    return {**new, **{n: _empty(record[n]) for n in stale}, **again}


def _copies(
    record: dict[str, Json], path: Sequence[str | int], old: list[Json], new: list[Json], gone: Sequence[Json]
) -> Iterator[tuple[str, Json]]:
    """Other lists of messages that have one which is gone, and what becomes of them."""
    wrong = set(map(repr, gone))
    for name, other in other_lists(record, path):
        if wrong.isdisjoint(map(repr, other)):
            continue
        before = len(old) - len(other)
        same = before >= 0 and other == old[before:] and old[:before] == new[:before]
        yield name, new[before:] if same else []


def _texts_again(record: dict[str, Json], place: str | int, changed: Sequence[tuple[str, str]]) -> dict[str, Json]:
    """Other texts that repeat one which is another now, and what becomes of them. changed: each before and after."""
    again: dict[str, Json] = {}
    for name in TEXTS:
        other = record.get(name)
        if name == place or not (texts := _texts(other)):
            continue
        new: list[Json] = [_again(text, changed) for text in texts]
        if new != texts:
            again[name] = new if isinstance(other, list) else new[0]
    return again


def _again(text: str, changed: Sequence[tuple[str, str]]) -> str:
    """What becomes of a text that has one which is another now in it, is its end, or is another part of it."""
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
    """A text, or each of a list of nothing else."""
    every = value if isinstance(value, list) else [value]
    texts = [one for one in every if isinstance(one, str)]
    return texts if len(texts) == len(every) else []


def _said(items: Sequence[Json]) -> Iterator[str]:
    for item in items:
        said = text_of(item.get("content", item.get("value"))).strip() if isinstance(item, dict) else ""
        if len(said) >= _TELLING:
            yield said


def _is_made(event: Json) -> bool:
    return isinstance(event, dict) and event.get("event") in ("model", "tool")


def _listed(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _is_numbers(value: Json) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) in (int, float) for one in value)


def _as_long(value: Json, ids: Json) -> bool:
    return len(_listed(value)) == len(_listed(ids))


def _empty(value: Json) -> Json:
    if isinstance(value, list | str):
        return value[:0]
    return 0 if isinstance(value, int | float) and not isinstance(value, bool) else None
