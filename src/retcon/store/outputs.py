"""Where output may go: to a file that is not there, or to one that may be replaced, and never over what is read.

Files are compared as the system does, by device and inode, so that no spelling (`./x`, `$PWD/x`), no link and no second
name of a folder hides that two of them are one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from retcon.core.errors import RecordError
from retcon.store.compression import plain_name

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


class OutputFile(NamedTuple):
    """A file to be written. flag: what the user named it by (`-o`, `--audit`), for messages. beside: names that are
    written beside it until it is finished."""

    flag: str
    path: Path
    beside: tuple[str, ...] = ()


def refuse_special(path: Path, flag: str = "") -> None:
    """Raises RecordError where something that is no regular file stands at `path`: nothing may be put in its place."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise RecordError(f"{_named(flag, path)} cannot be written: {error}") from error
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "no regular file")
        raise RecordError(f"{_named(flag, path)} is {kind}, and not written over: name a regular file, or a new one")


def refuse_misnamed(path: Path, flag: str, also: Iterable[str] = ()) -> None:
    """Raises RecordError for a name that says that something else is in the file than JSON, or than what its suffix
    asks for. also: suffixes, of shapes that others can be written in."""
    if path.name == "-":
        raise RecordError(f"{flag} -: it is written to a file; name one")
    suffix = Path(plain_name(path.name)).suffix
    if suffix in (".xz", ".bz2", ".zip", ".7z", ".arrow", *also):
        raise RecordError(
            f"{_named(flag, path)} would be no {suffix} file: name a .jsonl, compressed as .jsonl.gz or .jsonl.zst"
        )


def check_outputs(outputs: Sequence[OutputFile], inputs: Iterable[Path] = ()) -> None:
    """Before any work: whether the outputs can be written without a loss of something else.

    Raises RecordError, which names flag and file, for what is no regular file, is an input too, or another output too.
    """
    read = {identity(path): path for path in inputs}
    taken: dict[Hashable, OutputFile] = {}
    for output in outputs:
        for path in (output.path, *(output.path.with_name(name) for name in output.beside)):
            refuse_special(path, output.flag)
            own = identity(path)
            if own in read:
                raise RecordError(
                    f"{_named(output.flag, path)} is an input too ({read[own]}): what was there before would be lost; "
                    "choose another name"
                )
            if own in taken:
                other = taken[own]
                raise RecordError(
                    f"{_named(output.flag, path)} and {_named(other.flag, other.path)} are one file; name two"
                )
            taken[own] = output


def refuse_finished(outputs: Sequence[OutputFile], force: str) -> None:
    """Raises RecordError where an output is there already. force: the flag that would have it replaced."""
    for output in outputs:
        if os.path.lexists(output.path):
            raise RecordError(f"{_named(output.flag, output.path)} is there already, and finished; {force} replaces it")


def identity(path: Path) -> Hashable:
    """What two names of one file have in common: device and inode; of what is not there, those of its folder and its
    name. Links are followed."""
    real = Path(os.path.realpath(path))
    try:
        found = real.stat()
    except OSError:
        return (identity(real.parent), real.name) if real.parent != real else str(real)
    return (found.st_dev, found.st_ino)


def _named(flag: str, path: Path) -> str:
    return f"{flag} {path}" if flag else str(path)
