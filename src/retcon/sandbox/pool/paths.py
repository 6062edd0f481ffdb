"""Which paths a caller may name in a call's scratch folder."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import PurePosixPath

PATH_BYTES, NAME_BYTES = 4095 - 256, 255  # what the kernel takes, and room for the way to the scratch folder

_SHOWN = (
    sys.prefix,
    sys.base_prefix,
    *(path for path in sys.path if PurePosixPath(path).name in ("site-packages", "dist-packages")),
)
_PYTHON_BELOW_TMP = any(PurePosixPath(path).is_relative_to("/tmp") for path in _SHOWN)
WRITABLE = (*(() if _PYTHON_BELOW_TMP else ("/tmp",)), "/dev/shm", "/mnt", "/data", "/workspace")
"""Folders of the tier `namespaces`, in its own root, that files may be put into by their absolute path (`root`). Not
/tmp where this Python or its packages lie below it, which the sandbox then has to show (`root.readable`): whatever else
is in `sys.path`, such as the folder of a script, it does not."""


def inside_scratch(paths: Iterable[str], tier: str = "") -> list[str]:
    """These paths. tier: that of the sandbox; `namespaces` has `WRITABLE` beside the scratch folder.

    Raises ValueError for one that is in none of these folders, or no Unicode.
    """
    for name in (names := list(paths)):
        path = PurePosixPath(name)
        if ".." in path.parts or not path.parts or "\0" in name:
            raise ValueError(f"file {name!r} is not a path inside the scratch folder: give a relative one without '..'")
        if path.is_absolute():
            _check_absolute(name, path, tier)
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"file {name!r} is not Unicode: {error.reason}") from error
    return names


def _check_absolute(name: str, path: PurePosixPath, tier: str) -> None:
    if tier != "namespaces":
        why = f" (absolute ones are there in the tier 'namespaces' alone, and this is '{tier}')" if tier else ""
        raise ValueError(f"file {name!r} is not a path inside the scratch folder: give a relative one{why}")
    if not any(path.is_relative_to(folder) and path != PurePosixPath(folder) for folder in WRITABLE):
        raise ValueError(
            f"file {name!r} is not a path inside the scratch folder, nor one below {', '.join(WRITABLE)}, "
            "which are all that can be written to"
        )


def to_write(paths: Iterable[str], tier: str = "") -> list[str]:
    """As `inside_scratch`, of files that are to be made: ValueError too for one that no file can have as its path."""
    names = inside_scratch(paths, tier)
    # In sorted order what lies in a folder follows the folder at once: there may be many paths, each of many parts.
    plain = sorted({f"{PurePosixPath(name)}/" for name in names})
    folders = {name[:-1] for name, following in pairwise(plain) if following.startswith(name)}
    for name in names:
        encoded = name.encode()
        if len(encoded) > PATH_BYTES or any(len(part) > NAME_BYTES for part in encoded.split(b"/")):
            raise ValueError(
                f"file {name[:80]!r}… is too long: {PATH_BYTES} bytes at most, {NAME_BYTES} between two slashes"
            )
        if name.endswith("/") or str(PurePosixPath(name)) in folders:
            raise ValueError(f"file {name!r} is a folder, or that of another file: give it a name of its own")
    return names
