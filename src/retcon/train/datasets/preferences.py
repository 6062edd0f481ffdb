"""Preference pairs as samples, from files of `retcon purify --dpo` or TRL."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from retcon.chat.chat import Chat
from retcon.chat.template import RenderError
from retcon.core.errors import RecordError, TaskWarning, as_record_error
from retcon.core.texts import counted
from retcon.core.types import Sample, Trajectory, ids_of
from retcon.store.records import open_source
from retcon.train.datasets.demonstrations import (
    EncodedText,
    check_ids,
    check_texts,
    drop_too_long,
    render_record,
)
from retcon.transcripts.detector import Detector
from retcon.transcripts.items import SYSTEMS, decode
from retcon.transcripts.types import Json

SIDES = ("chosen", "rejected")


@dataclass(frozen=True, slots=True)
class Preference:
    """Two samples with one prompt; masks are 1 on the compared tokens."""

    chosen: Sample
    rejected: Sample


def both_sides(pairs: Sequence[Preference]) -> list[Sample]:
    """Return chosen and rejected of each pair, one after the other: (2B,)."""
    return [sample for pair in pairs for sample in (pair.chosen, pair.rejected)]


def read_preferences(file: Path, chat: Chat, *, vocabulary: int, max_tokens: int | None = None) -> list[Preference]:
    """Read the pairs of a file: ids, messages or texts.

    Ids come with the file's masks; messages go through the chat's template, after the record's system prompt, and the
    last turn from its first call on is compared; text is encoded unchanged and compared whole. Pairs with a side longer
    than max_tokens are left out, which a TaskWarning counts; another one counts those with equal sides. Raises
    RecordError, which begins with the file and line, for an invalid record, ids of another model, or an empty file.
    """
    found: list[Preference] = []
    for record in open_source(file).records:
        try:
            value = decode(record)
            pair = _pair(value, chat, record.where)
        except (RecordError, RenderError) as error:
            raise as_record_error(error, record.where) from error
        check_ids((*pair.chosen.ids, *pair.rejected.ids), vocabulary, record.where)
        check_texts(_own(value), chat.tokenizer, record.where)
        found.append(pair)
    if not found:
        raise RecordError(f"{file} holds no pair")
    if alike := sum(pair.chosen.ids == pair.rejected.ids for pair in found):
        text = f"{file}: both sides of {alike:,} of {counted(len(found), 'pair')} are the same"
        warnings.warn(f"{text}: nothing is learnt from them", TaskWarning, stacklevel=2)
    return drop_too_long(found, _length, max_tokens, file, "pairs")


def check_pairs(file: Path) -> None:
    """Check the keys of a file's first pair, without a model. Raises RecordError."""
    for record in open_source(file).records:
        try:
            _check_keys(decode(record))
        except RecordError as error:
            raise as_record_error(error, record.where) from error
        return
    raise RecordError(f"{file} holds no pair")


def _length(pair: Preference) -> int:
    return max(len(pair.chosen.ids), len(pair.rejected.ids))


def _check_keys(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict) or not {"prompt", *SIDES} <= value.keys():
        raise RecordError("not a pair: it needs prompt, chosen and rejected; `retcon purify --dpo FILE` writes pairs")
    return cast(dict[str, Json], value)


def _pair(value: Json, chat: Chat, where: str) -> Preference:
    row = _check_keys(value)
    if isinstance(tokens := row.get("tokens"), dict):
        chosen, rejected = (_of_tokens(tokens, side) for side in SIDES)
    elif all(isinstance(row[key], list) for key in ("prompt", *SIDES)):
        chosen, rejected = (_of_messages(row, side, chat, where) for side in SIDES)
    elif all(isinstance(row[key], str) for key in ("prompt", *SIDES)):
        if name := next((name for name in SYSTEMS if row.get(name)), None):
            raise RecordError(
                f"'{name}' beside a prompt that is text, which is encoded unchanged: put it into the prompt, in the "
                "model's template, or give prompt, chosen and rejected as lists of messages"
            )
        chosen, rejected = (_of_text(str(row["prompt"]), str(row[side]), chat) for side in SIDES)
    else:
        raise RecordError("prompt, chosen and rejected must all be text, or all be lists of messages")
    if not any(chosen.mask) or not any(rejected.mask):
        raise RecordError("a side of the pair is empty: there is nothing to compare")
    return Preference(chosen, rejected)


def _own(value: Json) -> list[EncodedText]:
    """Return the texts of a pair that have ids."""
    tokens = value.get("tokens") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(tokens, dict):
        return []
    texts = [(value[key], tokens[key]) for key in ("prompt", *SIDES)]
    return [(text, cast(list[int], ids)) for text, ids in texts if isinstance(text, str)]


def _of_tokens(tokens: Mapping[str, Json], side: str) -> Sample:
    prompt, ids, mask = tokens.get("prompt"), tokens.get(side), tokens.get(f"{side}_mask")
    if not (isinstance(prompt, list) and isinstance(ids, list)):
        raise RecordError(f"tokens.prompt and tokens.{side} must be lists of ids")
    if not isinstance(mask, list):
        mask = [1] * len(ids)
    if len(mask) != len(ids) or not all(type(i) is int for i in (*prompt, *ids, *mask)):
        raise RecordError(
            f"tokens.prompt, tokens.{side} and tokens.{side}_mask must hold whole numbers, and the last two as many: "
            f"{len(ids)} tokens, a mask of {len(mask)}"
        )
    return _sample(prompt, ids, mask)


def _of_messages(row: Mapping[str, Json], side: str, chat: Chat, where: str) -> Sample:
    prompt, *sides = (cast(list[Json], row[key]) for key in ("prompt", *SIDES))
    whole = all(one[: len(prompt)] == prompt for one in sides)  # each side is the conversation from its beginning
    written = cast(list[Json], row[side])[len(prompt) if whole else 0 :]
    # Some formats read a call as one only if an output follows; blocks have their own roles.
    in_blocks = any(isinstance(m, dict) and m.get("role") == "code" for m in written)
    closing = {"role": "execution" if in_blocks else "tool", "content": "-"}
    beside = {name: row[name] for name in (*SYSTEMS, "tools") if name in row}
    # The last turn is compared, whatever weight its messages have for fine-tuning.
    messages = [_unweighed(message) for message in (*prompt, *written)]
    record: Json = {**beside, "messages": [*messages, closing]}
    (trajectory,) = render_record(record, Detector(), chat, where)
    return _of_last_turn(trajectory)


def _unweighed(message: Json) -> Json:
    return {key: value for key, value in message.items() if key != "weight"} if isinstance(message, dict) else message


def _of_last_turn(trajectory: Trajectory) -> Sample:
    if not trajectory.turns:
        raise RecordError("no message of the model in it")
    *_, last = trajectory.turns
    ids = ids_of(last.generated)
    everything = ids_of(trajectory.segments)
    start = last.calls[0].start if last.calls else 0
    return _sample(everything[: -len(ids)], ids, [int(n >= (start or 0)) for n in range(len(ids))])


def _of_text(prompt: str, completion: str, chat: Chat) -> Sample:
    before, ids = (chat.tokenizer.encode(text, special=True) for text in (prompt, completion))
    return _sample(before, ids, [1] * len(ids))


def _sample(prompt: Sequence[int], ids: Sequence[int], mask: Sequence[int]) -> Sample:
    count = len(prompt) + len(ids)
    learnt = (*(0 for _ in prompt), *mask)
    # Nothing predicts the first id of all.
    return Sample((*prompt, *ids), (0, *learnt[1:]), (None,) * count, (0,) * count)
