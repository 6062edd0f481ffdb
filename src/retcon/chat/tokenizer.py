"""Tokenizers: one of bytes, for tests, and that of a Hugging Face folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from retcon.chat.types import CONTROLS
from retcon.core.errors import CheckpointError, MissingExtra, nearest
from retcon.core.installing import how_to_fetch, how_to_install

if TYPE_CHECKING:
    import tokenizers

_CONTROL = re.compile(r"<\|[^|<>]*\|>|<｜[^｜<>]*｜>")


class ByteTokenizer:
    """Tokenizer of UTF-8 bytes (0 to 255) and control tokens, for tests.

    controls: those of another family than ChatML.
    """

    def __init__(self, controls: Sequence[str] = CONTROLS) -> None:
        self._ids = {text: 256 + n for n, text in enumerate(controls)}
        self._bytes = [bytes([n]) for n in range(256)] + [text.encode() for text in controls]
        self._split = re.compile("(" + "|".join(map(re.escape, controls)) + ")")

    @property
    def controls(self) -> Sequence[str]:
        """The control tokens."""
        return tuple(self._ids)

    @property
    def size(self) -> int:
        """Number of tokens."""
        return len(self._bytes)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        if not special:
            return list(text.encode("utf-8", "replace"))
        ids: list[int] = []
        for piece in self._split.split(text):
            ids.extend([self._ids[piece]] if piece in self._ids else piece.encode("utf-8", "replace"))
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self._bytes[i] for i in ids if 0 <= i < len(self._bytes)).decode("utf-8", "replace")

    def special_id(self, text: str) -> int:
        if text not in self._ids:
            raise CheckpointError(f"the byte tokenizer has no control token {text!r}{nearest(text, self._ids)}")
        return self._ids[text]


class HubTokenizer:
    """A `tokenizer.json` read by the `tokenizers` library; no torch, no transformers.

    Two copies are kept, so that no call changes how another one encodes: one knows the control tokens, the other
    takes them for text. Control tokens are those that the file marks as special or that look like `<|…|>` or `<｜…｜>`
    (DeepSeek's files do not mark theirs); other added tokens, such as Qwen's `<tool_call>`, are ordinary vocabulary in
    both.
    """

    def __init__(self, definition: str, *, where: str = "tokenizer.json") -> None:
        """definition: the JSON text; where: its name in messages. Raises CheckpointError, MissingExtra."""
        self._where = where
        self._special = _build(definition, where)
        self._plain = _copy(self._special)
        self._plain.encode_special_tokens = True
        added = self._special.get_added_tokens_decoder()
        controls = {i: t for i, t in added.items() if t.special or _CONTROL.fullmatch(t.content)}
        self._plain.add_special_tokens([t for t in controls.values() if not t.special])
        self._controls = {t.content: i for i, t in controls.items()}
        for text, i in self._controls.items():
            if i in self.encode(text):
                raise CheckpointError(f"{where}: the plain text {text!r} encodes to its control token")

    @property
    def controls(self) -> Sequence[str]:
        """The control tokens."""
        return tuple(self._controls)

    @property
    def size(self) -> int:
        """Number of tokens, added ones among them."""
        return self._special.get_vocab_size(with_added_tokens=True)

    @property
    def library(self) -> tokenizers.Tokenizer:
        """The `tokenizers` library's object, which knows the control tokens."""
        return self._special

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        tokenizer = self._special if special else self._plain
        valid = text.encode("utf-8", "replace").decode("utf-8")  # without lone surrogates
        return list(tokenizer.encode(valid, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._special.decode(list(ids), skip_special_tokens=False))

    def special_id(self, text: str) -> int:
        if text not in self._controls:
            raise CheckpointError(f"{self._where} has no control token {text!r}{nearest(text, self._controls)}")
        return self._controls[text]


def load_tokenizer(path: str | Path) -> HubTokenizer:
    """Load the tokenizer of a Hugging Face folder (or a `tokenizer.json`).

    Raises CheckpointError for a missing or unreadable file, MissingExtra without the `tokenizers` package.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "tokenizer.json"
    try:
        definition = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        hint = f"a model folder needs its tokenizer.json{how_to_fetch(file.parent)}"
        raise CheckpointError(f"{file} does not exist: {hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    return HubTokenizer(definition, where=str(file))


def _build(definition: str, where: str) -> tokenizers.Tokenizer:
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtra(
            f"reading a tokenizer.json needs the tokenizers package: {how_to_install('train')}"
        ) from error
    try:
        built = tokenizers.Tokenizer.from_str(definition)
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"{where} is not a tokenizer that the tokenizers library can read: {error}") from error
    built.no_padding()
    built.no_truncation()
    return built


def _copy(built: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Copy a tokenizer without its vocabulary, which both share: reading Gemma 3's takes a second."""
    copied = type(built)(built.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if (own := getattr(built, part)) is not None:
            setattr(copied, part, own)
    added = built.get_added_tokens_decoder()
    copied.add_tokens([added[i] for i in sorted(added)])
    return copied
