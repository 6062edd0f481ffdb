"""LiveCodeBench's private tests: JSON in a pickle, packed by zlib, as base64.

A pickle can run anything when it is loaded, and these come from a data set. So it is not loaded: it is read instruction
by instruction, and only one that makes a single text is taken.
"""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import zlib

MOST_BYTES = 512 << 20
"""Unpacked; the largest of the data set are below 200 MiB."""
_HARMLESS = {"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"}
_TEXTS = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"}


def unpack(packed: str) -> object:
    """The JSON value in it. Raises ValueError for anything else."""
    try:
        squeezed = base64.b64decode(packed, validate=True)
        whole = zlib.decompressobj()
        data = whole.decompress(squeezed, MOST_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"packed tests cannot be unpacked: {error}") from None
    if not whole.eof:
        raise ValueError(f"packed tests are cut off, or of more than {MOST_BYTES >> 20} MiB")
    try:
        return json.loads(text_of(data))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"packed tests are not JSON: {error}") from None


def text_of(pickled: bytes) -> str:
    """The text that a pickle of one text holds. Raises ValueError for every other pickle, and what is none."""
    texts: list[str] = []
    try:
        for instruction, argument, _ in pickletools.genops(pickled):
            if instruction.name in _TEXTS and not texts:
                texts.append(str(argument))
            elif instruction.name not in _HARMLESS:
                raise ValueError(f"a pickle of more than one text ({instruction.name}): it is not loaded")
    except (ValueError, IndexError, OverflowError, MemoryError) as error:
        raise ValueError(f"packed tests: {error}") from None
    if not texts:
        raise ValueError("packed tests: a pickle without a text")
    return texts[0]
