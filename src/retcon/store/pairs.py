"""Files of preference pairs: JSON Lines, one pair a line, as TRL's `DPOTrainer` reads them.

    {"prompt": …, "chosen": …, "rejected": …, "id": …, "tokens": {…}, …}

prompt, chosen and rejected: TRL's `preference` type with an explicit prompt; text (its standard format) or lists of
messages (its conversational format), the same in all three. id: where the pair is from. tokens: only where the ids are
known: `prompt`, `chosen`, `rejected`, `chosen_mask` and `rejected_mask`, lists of integers, a mask null where it is not
known. TRL encodes the text itself and counts all of a completion; a loss that is to count the calls alone, and on the
very ids that were sampled, takes them from here. All else comes from `Pair.about`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from retcon.core.errors import RecordError
from retcon.core.pair import Completion, Pair, Written
from retcon.store.jsonl import write_lines

COLUMNS = ("prompt", "chosen", "rejected", "id", "tokens")


def write_pairs(path: str | Path, pairs: Iterable[Pair]) -> int:
    """Write a whole file, atomically (see `write_lines`), compressed where its name ends in `.gz`. Returns the count.

    Raises RecordError where the file cannot be written, or a pair is no JSON.
    """
    return write_lines(path, map(pair_line, pairs))


def pair_line(pair: Pair) -> bytes:
    """One line of the file, its line end included. Raises RecordError for a pair that is no JSON."""
    taken = sorted(set(pair.about) & set(COLUMNS))
    if taken:
        raise RecordError(f"pair {pair.id}: 'about' has columns of the format's own: {', '.join(taken)}")
    row: dict[str, object] = {
        "prompt": _plain(pair.prompt),
        "chosen": _plain(pair.chosen.written),
        "rejected": _plain(pair.rejected.written),
        "id": pair.id,
    }
    if pair.prompt_ids is not None:
        row["tokens"] = {
            "prompt": pair.prompt_ids,
            **dict(_tokens("chosen", pair.chosen)),
            **dict(_tokens("rejected", pair.rejected)),
        }
    try:
        text = json.dumps(row | dict(pair.about), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError) as error:
        raise RecordError(f"pair {pair.id} cannot be written as JSON: {error}") from error
    return text.encode("utf-8", "replace") + b"\n"


def _plain(written: Written) -> str | list[dict[str, object]]:
    return written if isinstance(written, str) else [dict(message) for message in written]


def _tokens(name: str, completion: Completion) -> Iterator[tuple[str, object]]:
    yield name, completion.ids
    yield f"{name}_mask", completion.mask
