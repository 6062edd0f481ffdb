"""Stop strings in what is generated: where they are found, and that only what was generated is looked at."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retcon.chat.tokenizer import ByteTokenizer
from retcon.chat.types import TURN_END
from retcon.engine.types import StopStrings

BYTES = ByteTokenizer()


class Pieces:
    """A tokenizer of the given pieces of bytes; any other id is beyond its vocabulary."""

    def __init__(self, *pieces: str | bytes) -> None:
        self._pieces = [p.encode() if isinstance(p, str) else p for p in pieces]

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        raise NotImplementedError

    def decode(self, ids: tuple[int, ...] | list[int]) -> str:
        return b"".join(self._pieces[i] for i in ids if i < len(self._pieces)).decode("utf-8", "replace")

    def special_id(self, text: str) -> int:
        raise NotImplementedError


def end(watch: StopStrings, ids: list[int]) -> int | None:
    """Number of ids after which the watch ends the generation."""
    return next((n for n, token in enumerate(ids, start=1) if watch.completed_by(token)), None)


def first(text: str, strings: tuple[str, ...]) -> int | None:
    """Length of the shortest prefix of `text` that has one of the strings."""
    ends = [text.index(s) + len(s) for s in strings if s in text]
    return min(ends, default=None)


@settings(max_examples=80)
@given(
    text=st.text("ab€\n", max_size=40),
    strings=st.lists(st.text("ab€\n", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_the_id_that_completes_a_string_ends_it(text: str, strings: list[str]) -> None:
    expected = first(text, tuple(strings))
    found = end(StopStrings(BYTES, strings), BYTES.encode(text))
    assert found == (None if expected is None else len(text[:expected].encode()))


@settings(max_examples=80)
@given(st.lists(st.integers(0, 5), max_size=30))
def test_a_string_over_and_within_ids(ids: list[int]) -> None:
    tokenizer = Pieces("x", "``", "`\n", "\n``", "`", "`python")
    strings = ("\n```", "```\n")
    expected = next((n for n in range(1, len(ids) + 1) if first(tokenizer.decode(ids[:n]), strings)), None)
    assert end(StopStrings(tokenizer, strings), ids) == expected


def test_characters_that_are_not_whole_do_no_harm() -> None:
    tokenizer = Pieces(b"\xe2", b"\x82", b"\xac", "END", b"\xac END")
    assert end(StopStrings(tokenizer, ["€"]), [0, 1, 2]) == 3
    assert end(StopStrings(tokenizer, ["€ END"]), [0, 1, 0, 1, 4]) == 5
    assert end(StopStrings(tokenizer, ["END"]), [2, 0, 1, 3]) == 4
    assert end(StopStrings(tokenizer, ["END"]), [0, 1]) is None


def test_ids_beyond_the_vocabulary_are_not_in_the_way() -> None:
    tokenizer = Pieces("a", "b", "c")
    assert end(StopStrings(tokenizer, ["abc"]), [0, *[7] * 20, 1, *[8] * 20, 2]) == 43


def test_a_string_is_found_though_a_tokenizer_drops_the_space_that_a_text_begins_with() -> None:
    class Dropping(Pieces):
        def decode(self, ids: tuple[int, ...] | list[int]) -> str:
            return super().decode(ids).removeprefix(" ")

    assert end(StopStrings(Dropping(" ", "a", "b"), [" b"]), [1, 0, 2]) == 3


def test_a_control_token_is_text() -> None:
    ids = BYTES.encode(f"yes{TURN_END}", special=True)
    assert end(StopStrings(BYTES, ["s<|im_end|>"]), ids) == len(ids) == 4


def test_without_strings_nothing_is_decoded() -> None:
    class Refusing(Pieces):
        def decode(self, ids: tuple[int, ...] | list[int]) -> str:
            pytest.fail("decoded")

    assert end(StopStrings(Refusing(), []), [1, 2, 3]) is None
