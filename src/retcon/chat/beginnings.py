"""Which id begins at a character of a decoded text."""

from __future__ import annotations

from collections.abc import Sequence

from retcon.chat.types import Tokenizer


class Beginnings:
    """Finds the ids that begin at given characters of `text`, the decoded `ids`, (T,); asked in ascending order.

    Each search begins where the one before ended, and looks twice as far ahead at each step: what all of them decode
    together grows with the tokens, however many calls a reply is full of.
    """

    def __init__(self, tokenizer: Tokenizer, ids: Sequence[int], text: str) -> None:
        self._decode, self._ids, self._text = tokenizer.decode, ids, text
        self._id = self._char = 0  # an id begins at that character

    def of(self, char: int) -> int | None:
        """Index of the id that begins at text[char], which is ASCII; None where no id does.

        Being ASCII, whether a prefix of the ids has it cannot change as ids are added, not even where a character is
        spread over several of them: the shortest such prefix can be found by bisection.
        """
        target = self._text[self._char : char + 1]
        low, high = self._id, self._id + 1  # the ids up to `low` lack the character, those up to `high` have it
        while high < len(self._ids) and not self._between(high).startswith(target):
            low, high = high, high + (high - self._id)
        high = min(high, len(self._ids))
        while high - low > 1:
            middle = (low + high) // 2
            if self._between(middle).startswith(target):
                high = middle
            else:
                low = middle
        before = self._between(low)
        begins = before == target[:-1]
        self._go_on_from(low, before)
        return low if begins else None

    def _between(self, end: int) -> str:
        return self._decode(self._ids[self._id : end])

    def _go_on_from(self, index: int, before: str) -> None:
        """Not from within a character that ids share, nor from a space that some tokenizers drop at a start."""
        char = self._char + len(before)
        following = self._decode(self._ids[index : index + 1])
        if following and self._text.startswith(before, self._char) and self._text.startswith(following, char):
            self._id, self._char = index, char
