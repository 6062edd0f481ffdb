"""Another model's tokenizer in place of one that a server does not show."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from retcon.chat.types import TURN_END, TURN_START, Tokenizer
from retcon.core.errors import CheckpointError, RecipeError, nearest

BEYOND = 1 << 24
"""The first control id: no vocabulary is as large."""
_CONTROLS = {TURN_START: BEYOND, TURN_END: BEYOND + 1}
START, END = _CONTROLS.values()
_NAMES = {i: text for text, i in _CONTROLS.items()}
_SPLIT = re.compile("(" + "|".join(map(re.escape, _CONTROLS)) + ")")
_PROBES = (" a", "a \n", "\ta\r\n\n", "e\u0301 é \u00a0 ﬁ ² 東京 🙂", "x  =  '<|im_end|>'")


class StandIn:
    """A `Tokenizer` whose words are another one's ids and whose control tokens are its own, beyond any vocabulary: they
    frame messages, no message can hold them, and whatever the tokenizer, they are there.

    name: of the tokenizer, for the record. Raises RecipeError where it changes text: the server would be told something
    else than was said.
    """

    def __init__(self, words: Tokenizer, name: str) -> None:
        self._words, self.name = words, name
        for probe in _PROBES:
            back = words.decode(words.encode(probe))
            if back != probe:
                raise RecipeError(
                    f"the tokenizer of {name} cannot stand in for a server's, as it changes text ({probe!r} comes back "
                    f"as {back!r}): use another model's, such as model.path = 'base'"
                )

    @property
    def controls(self) -> Sequence[str]:
        return tuple(_CONTROLS)

    @property
    def size(self) -> int:
        """Of the words' vocabulary."""
        return self._words.size

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        if not special:
            return self._words.encode(text)
        ids: list[int] = []
        for piece in _SPLIT.split(text):
            ids.extend([_CONTROLS[piece]] if piece in _CONTROLS else self._words.encode(piece))
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(_NAMES[i] if i >= BEYOND else self._words.decode(run) for i, run in _runs(ids))

    def special_id(self, text: str) -> int:
        if text not in _CONTROLS:
            raise CheckpointError(f"messages have no control token {text!r}{nearest(text, _CONTROLS)}")
        return _CONTROLS[text]

    def framed(self, ids: Sequence[int]) -> Iterator[str]:
        """What stands between a turn's start and its end, or the end of all; by ids: words cannot forge it."""
        body: list[int] | None = None
        for i in (*ids, END):
            if i in (START, END):
                if body is not None:
                    yield self._words.decode(body)
                body = [] if i == START else None
            elif body is not None:
                body.append(i)


def _runs(ids: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Each control id by itself, and what stands between two of them in one go, with its first id."""
    run: list[int] = []
    for i in ids:
        if i >= BEYOND:
            if run:
                yield run[0], run
            yield i, [i]
            run = []
        else:
            run.append(i)
    if run:
        yield run[0], run
