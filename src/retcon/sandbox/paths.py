"""Which paths a caller may name in a call's scratch folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath


def inside_scratch(paths: Iterable[str]) -> list[str]:
    """These paths. Raises ValueError for one that is not a path inside the scratch folder, or no Unicode."""
    for name in (names := list(paths)):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
            raise ValueError(f"file {name!r} is not a path inside the scratch folder: give a relative one without '..'")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"file {name!r} is not Unicode: {error.reason}") from error
    return names
