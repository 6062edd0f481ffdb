"""What a body says of a program's files and text: checked, decoded, and refused by the name of its field."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterable, Mapping

from retcon.http.refusal import RequestRefused
from retcon.sandbox.pool.paths import inside_scratch, to_write


def decode_files(files: Mapping[str, str | None], field: str, tier: str, folders: Collection[str]) -> dict[str, bytes]:
    """Base64 to bytes; a content of None is left out. tier, folders: the server's. Raises RequestRefused that names the
    file."""
    decoded = {}
    try:
        to_write(files, tier, folders)
    except ValueError as error:
        raise RequestRefused.invalid(field, str(error)) from error
    for name, content in files.items():
        if content is None:
            continue
        try:
            decoded[name] = base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError) as error:
            raise RequestRefused.invalid(
                f"{field}.{name}", f"the content of file '{name}' is not base64: {error}"
            ) from error
    return decoded


def check_paths(paths: Iterable[str], field: str, tier: str, folders: Collection[str]) -> list[str]:
    """These paths. tier, folders: the server's. Raises RequestRefused for one in a folder that is not the program's."""
    try:
        return inside_scratch(paths, tier, folders)
    except ValueError as error:
        raise RequestRefused.invalid(field, str(error)) from error


def check_text(text: str, field: str, errors: str = "strict") -> str:
    """Raises RequestRefused for text that cannot be written as UTF-8. errors: as of `str.encode`."""
    try:
        text.encode("utf-8", errors)
    except UnicodeEncodeError as error:
        raise RequestRefused.invalid(field, f"not Unicode: {error.reason} at character {error.start}") from error
    return text
