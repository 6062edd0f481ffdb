"""From pieces of a conversation to ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from retcon.chat.types import Piece, Tokenizer


class Encoding(Protocol):
    """Ids of each piece, (T,) each."""

    def __call__(self, pieces: Sequence[Piece]) -> list[list[int]]: ...


class Apart:
    """Every piece on its own."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encode = tokenizer.encode

    def __call__(self, pieces: Sequence[Piece]) -> list[list[int]]:
        return [self._encode(piece.text, special=piece.sort == "glue") for piece in pieces]


class Together:
    """As the whole text is encoded: what stands between two control tokens of the glue in one go, as plain text.

    So a full stop that ends an observation and the line end that the glue goes on with are one id where the model has
    one for both. An id that belongs to two pieces is the first one's.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        longest_first = sorted(tokenizer.controls, key=len, reverse=True)
        self._controls = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if longest_first else None

    def __call__(self, pieces: Sequence[Piece]) -> list[list[int]]:
        ids: list[list[int]] = [[] for _ in pieces]
        stretch: list[tuple[int, str]] = []
        for n, piece in enumerate(pieces):
            parts = self._controls.split(piece.text) if piece.sort == "glue" and self._controls else [piece.text]
            for odd, part in enumerate(parts):
                if odd % 2 == 0:
                    stretch.append((n, part))
                else:
                    self._add(stretch, ids)
                    stretch = []
                    ids[n].append(self._tokenizer.special_id(part))
        self._add(stretch, ids)
        return ids

    def _add(self, stretch: Sequence[tuple[int, str]], ids: Sequence[list[int]]) -> None:
        """Encode a stretch, and give each of its pieces what is its own."""
        parts = [(n, part) for n, part in stretch if part]
        whole = self._tokenizer.encode("".join(part for _, part in parts))
        taken, over = 0, 0  # ids that are given away, and how many characters of the next piece are in them
        for n, part in parts[:-1]:
            if over >= len(part):
                over -= len(part)
                continue
            end, over = self._covering(whole, taken, part[over:])
            ids[n].extend(whole[taken:end])
            taken = end
        if parts:
            ids[parts[-1][0]].extend(whole[taken:])

    def _covering(self, ids: Sequence[int], start: int, text: str) -> tuple[int, int]:
        """Where the ids from `start` on have said `text`, and how much more they say; the end, where they never do."""
        low, high = start, start + 1
        while high < len(ids) and not self._says(ids[start:high], text):
            low, high = high, high + (high - start)
        high = min(high, len(ids))
        while high - low > 1:
            middle = (low + high) // 2
            if self._says(ids[start:middle], text):
                high = middle
            else:
                low = middle
        return high, max(0, len(self._tokenizer.decode(ids[start:high])) - len(text))

    def _says(self, ids: Sequence[int], text: str) -> bool:
        return self._tokenizer.decode(ids).startswith(text)
