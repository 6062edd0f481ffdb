"""Stop strings: found in what is generated, id by id."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from retcon.chat.types import Tokenizer


class StopStrings:
    """Watches one generation for `strings`, none of them empty.

    Looks at no more tokens than the longest string has bytes: the cost of a token does not grow with the text. A
    character whose bytes are spread over ids, or not yet whole at the end, does no harm.
    """

    def __init__(self, tokenizer: Tokenizer, strings: Sequence[str]) -> None:
        self._tokenizer, self._strings = tokenizer, tuple(strings)
        # An id is one byte at least. One id more, because some tokenizers drop the space that a text begins with.
        longest = max((len(s.encode("utf-8", "replace")) for s in strings), default=0)
        self._tail: deque[int] = deque(maxlen=longest + 1)

    def completed_by(self, token: int) -> bool:
        """Whether `token`, the next id that was generated, completes one of the strings."""
        if not self._strings:
            return False
        if not self._tokenizer.decode((token, token)):  # beyond the vocabulary: it would push others out of the tail
            return False
        self._tail.append(token)
        text = self._tokenizer.decode(tuple(self._tail))
        return any(string in text for string in self._strings)
