"""Tokenizer protocol, pieces of a conversation, and parsed generations."""

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
"""Message fields that hold reasoning (DeepSeek, vLLM, OpenRouter, gpt-oss)."""

TextMessage = tuple[str, str]
"""A message: its role (`system`, `user`, `assistant`) and text."""


class Tokenizer(Protocol):
    """Text to token ids and back. `decode` undoes `encode`; neither adds anything of its own (no BOS, no padding)."""

    @property
    def controls(self) -> Sequence[str]:
        """The control tokens, as text."""

    @property
    def size(self) -> int:
        """Number of tokens, added ones among them."""

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`, (T,).

        With special=False, markup such as `<|im_end|>` is plain text and never becomes a control id: this is how
        everything is encoded that a user or a tool wrote. special=True is for the template's own glue. Lone
        surrogates, which UTF-8 cannot hold, become `?`.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, control tokens written out.

        Invalid UTF-8 becomes U+FFFD. An id beyond the vocabulary (models pad theirs) is empty text.
        """

    def special_id(self, text: str) -> int:
        """Id of the control token `text`. Raises CheckpointError where the tokenizer lacks it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a conversation, as text.

    sort: `glue` is template text, whose control tokens count; `words` are a message's text, `observation` a tool's:
    both are plain text, whatever looks like a control token in them.
    """

    sort: Literal["glue", "words", "observation"]
    text: str


def glue(text: str) -> Piece:
    return Piece("glue", text)


def words(text: str) -> Piece:
    return Piece("words", text)


@dataclass(frozen=True, slots=True)
class Answer:
    """A tool's answer: the call's name and `FoundCall.label`, and the observation's text."""

    name: str
    text: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A parsed generation: its whole text (with a stop token's) and its calls, in order."""

    text: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class FoundCall:
    """A parsed call: `char` is where its marker begins; malformed arguments stay text.

    label: the model's own id of the call, which the observation has to name (Mistral's id, Harmony's recipient).
    inside: whether it follows another call in one pair of brackets, so that text cut before it is incomplete.
    """

    name: str
    arguments: dict[str, object] | str
    char: int
    label: str = ""
    inside: bool = False
