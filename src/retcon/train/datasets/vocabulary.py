"""Whose ids these are: those of files are used as they stand, and mean something else to another model."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence

from retcon.chat.types import Tokenizer
from retcon.core.errors import RecordError

UNREADABLE = "\ufffd"
"""What stands for bytes that are no whole character: of one that is cut in two, each part says so."""
Said = tuple[str, Sequence[int]]
"""A stretch of text with its ids, (T,)."""


def vocabulary_of(tokenizer: Tokenizer) -> str:
    """Tells apart vocabularies: the same where every id says the same, whatever file the tokenizer was read from."""
    return hashlib.sha256(tokenizer.decode(range(tokenizer.size)).encode("utf-8", "replace")).hexdigest()[:16]


def refuse_other_vocabulary(ids: Sequence[int], vocabulary: int, where: str) -> None:
    """Raises RecordError where the model has not all of these ids."""
    least, most = min(ids, default=0), max(ids, default=0)
    if least < 0 or most >= vocabulary:
        wrong = least if least < 0 else most
        raise RecordError(f"{where}: id {wrong}, and the model has {vocabulary}, from 0 on: another model's")


def refuse_other_texts(said: Sequence[Said], tokenizer: Tokenizer, where: str) -> None:
    """Raises RecordError where ids do not say the text beside them.

    Space, case, control tokens and a character's form do not count, nor where the stretches meet: tokenizers may change
    them, and others may have written the texts.
    """
    size = tokenizer.size
    said = [(text, [i for i in ids if 0 <= i < size]) for text, ids in said]
    if all(tokenizer.decode(ids) == text for text, ids in said):
        return
    known = [(text, ids) for text, ids in said if text]
    text, read = "".join(text for text, _ in known), tokenizer.decode([i for _, ids in known for i in ids])
    for controls in ((), tokenizer.controls):  # some models have thousands, which are seldom left out
        if _says(_plain(read, controls), _plain(text, controls).split(UNREADABLE)):
            return
    first = next(((t, decoded) for t, ids in known if (decoded := tokenizer.decode(ids)) != t), (text, read))
    raise RecordError(
        f"{where}: the ids of {_begins(first[0])} are {_begins(first[1])} to this model: another model's, whose tokens "
        "are others; write the file anew with this one, or give the conversations as messages"
    )


def _plain(text: str, controls: Iterable[str]) -> str:
    """What of a text any tokenizer keeps."""
    for control in controls:
        text = text.replace(control, "")
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


def _says(read: str, parts: Sequence[str]) -> bool:
    """Whether `read` is these parts in their order, with anything in between."""
    first, *others = parts
    if not others:
        return read == first
    if not read.startswith(first):
        return False
    at = len(first)
    for part in others[:-1]:
        found = read.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return read[at:].endswith(others[-1])


def _begins(text: str, most: int = 40) -> str:
    return repr(text if len(text) <= most else f"{text[:most]}…")
