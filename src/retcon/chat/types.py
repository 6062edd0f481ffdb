"""The Tokenizer protocol, the pieces that a conversation is put together from, and what parsing a generation gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from retcon.core.types import ToolCall

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
CONTROLS: tuple[str, ...] = (END_OF_TEXT, TURN_START, TURN_END)

REASONING = ("reasoning_content", "reasoning", "thinking")
"""Where servers and templates have what a model thinks before it speaks (DeepSeek, vLLM, OpenRouter, gpt-oss)."""

Told = tuple[str, str]
"""A message: its role (`system`, `user`, `assistant`) and text."""


class Tokenizer(Protocol):
    """Text to token ids and back. `decode` undoes `encode`; neither adds anything of its own (no BOS, no padding)."""

    @property
    def controls(self) -> Sequence[str]:
        """The control tokens, as text."""
        ...

    @property
    def size(self) -> int:
        """Number of tokens, added ones among them."""
        ...

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`, (T,).

        With special=False, markup such as `<|im_end|>` is plain text and never becomes a control id: this is how
        everything is encoded that a user or a tool wrote. special=True is for the template's own glue. Lone
        surrogates, which UTF-8 cannot hold, become `?`.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, control tokens written out.

        Bytes that are no UTF-8 become U+FFFD. An id beyond the vocabulary (models pad theirs) is empty text.
        """
        ...

    def special_id(self, text: str) -> int:
        """Id of the control token `text`. Raises CheckpointError where the tokenizer has none."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a conversation, as text.

    sort: `glue` is the template's own, and the control tokens in it are meant; `words` are somebody's, `observation`
    a tool's: what looks like a control token in them is plain text.
    """

    sort: Literal["glue", "words", "observation"]
    text: str


def glue(text: str) -> Piece:
    return Piece("glue", text)


def words(text: str) -> Piece:
    return Piece("words", text)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool answered to a call: the call's name and `FoundCall.label`, and the observation's text."""

    name: str
    text: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A generation, read: its whole text (a stop token's among it) and the calls in it, in order."""

    text: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class FoundCall:
    """A call as a parser finds it in text: `char` is where its marker begins; arguments stay text if malformed.

    label: what the model itself called the call, which the observation has to name (Mistral's id, Harmony's recipient).
    inside: whether it stands within brackets, after others of them, so that text which ends before it is not whole.
    """

    name: str
    arguments: dict[str, object] | str
    char: int
    label: str = ""
    inside: bool = False
