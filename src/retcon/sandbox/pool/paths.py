"""Checks of a call's file paths."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath

from retcon.sandbox.jail.confine.root import FILES, GIVEN, SIZE_MB

PARTS = 128  # folders within folders
_PAGE = 4096  # of which a file takes whole ones
PATH_BYTES, NAME_BYTES = 4095 - 256, 255  # the kernel's limits, less the path of the scratch folder

MOST_FILES = FILES - 64  # less some for the kernel and the program
SCRATCH = "/tmp/scratch"

WRITABLE = ("/tmp", "/dev/shm", *GIVEN)
"""Folders of the tier `namespaces` for files with absolute paths (`root`). A worker lacks one that its Python or its
packages lie below."""


def inside_scratch(paths: Iterable[str], tier: str = "", folders: Collection[str] = WRITABLE) -> list[str]:
    """Check that paths are in allowed folders; leave out too long ones.

    tier: of the sandbox; `namespaces` allows those of `WRITABLE` that are in `folders` (its worker's; default: all)
    besides the scratch folder. Raises ValueError for a path outside of them, one that is not Unicode, and too many
    paths, before they are checked.
    """
    names = list(paths)
    if len(names) > MOST_FILES:
        raise ValueError(f"{len(names)} files: {MOST_FILES} at most")
    names = [name for name in names if len(name) <= PATH_BYTES]
    for name in names:
        path = PurePosixPath(name)
        if ".." in path.parts or not path.parts or "\0" in name:
            raise ValueError(f"file {name!r} is not a path inside the scratch folder: give a relative one without '..'")
        if path.is_absolute():
            _check_absolute(name, path, tier, [folder for folder in WRITABLE if folder in folders])
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"file {name!r} is not Unicode: {error.reason}") from error
    return names


def _check_absolute(name: str, path: PurePosixPath, tier: str, folders: Sequence[str]) -> None:
    if tier != "namespaces":
        why = f" (absolute ones are there in the tier 'namespaces' alone, and this is '{tier}')" if tier else ""
        raise ValueError(f"file {name!r} is not a path inside the scratch folder: give a relative one{why}")
    if not any(path.is_relative_to(folder) and path != PurePosixPath(folder) for folder in folders):
        raise ValueError(
            f"file {name!r} is not a path inside the scratch folder, nor one below {', '.join(folders)}, "
            "which are all that can be written to"
        )


def to_write(paths: Iterable[str], tier: str = "", folders: Collection[str] = WRITABLE) -> list[str]:
    """Check the paths of files to write. Raises ValueError as `inside_scratch`, and for impossible paths."""
    names = inside_scratch(asked := list(paths), tier, folders)
    if len(names) < len(asked):
        raise _too_long(next(name for name in asked if len(name) > PATH_BYTES))
    places = {name: _canonical_place(name) for name in names}
    # In sorted order a folder's content directly follows it: there may be many paths of many parts.
    plain = sorted(f"{place}/" for place in places.values())
    above = {name[:-1] for name, following in pairwise(plain) if following.startswith(name)} | {SCRATCH}
    for name in names:
        encoded = name.encode()
        if len(encoded) > PATH_BYTES or any(len(part) > NAME_BYTES for part in encoded.split(b"/")):
            raise _too_long(name)
        if len(PurePosixPath(name).parts) > PARTS:
            raise ValueError(f"file {name[:80]!r}… lies in too many folders: {PARTS} parts at most")
        if name.endswith("/") or places[name] in above:
            raise ValueError(
                f"file {name!r} is a folder, or that of another file, or another file itself: give it a name of its own"
            )
    return names


def _too_long(name: str) -> ValueError:
    return ValueError(f"file {name[:80]!r}… is too long: {PATH_BYTES} bytes at most, {NAME_BYTES} between two slashes")


def check_room(files: Mapping[str, bytes], stdin: str = "") -> None:
    """Check that a call's files fit; else raise ValueError."""
    folders = {str(folder) for name in files for folder in PurePosixPath(name).parents}
    if len(files) + len(folders) > MOST_FILES:
        raise ValueError(f"{len(files)} files in {len(folders)} folders: {MOST_FILES} at most, folders among them")
    sizes = [*map(len, files.values()), len(stdin.encode("utf-8", "surrogateescape"))]
    if sum(-(-size // _PAGE) for size in sizes) * _PAGE > SIZE_MB << 20:
        raise ValueError(f"files and stdin of {sum(sizes) / (1 << 20):.1f} MiB together: {SIZE_MB} MiB at most")


def _canonical_place(name: str) -> str:
    """Return a path's canonical place."""
    path = PurePosixPath(SCRATCH, name)
    for other in GIVEN:  # one folder
        if path.is_relative_to(other):
            path = PurePosixPath(GIVEN[0], path.relative_to(other))
    return str(path)
