"""Measuring and emptying what calls wrote. Standard library only: the workers import it."""

from __future__ import annotations

import os
import stat

UNBOUNDED = 1 << 62


def empty(folder: str) -> None:
    """Remove all that is in `folder`, whatever the modes in it and however deep. Raises OSError where something stays.

    Nothing may run that could write there.
    """
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        empty_open(top)
    finally:
        os.close(top)


def empty_open(top: int) -> None:
    """As `empty`, for the descriptor of a folder."""
    found = os.listdir(top)
    prefix = os.urandom(8).hex()
    moved = 0
    while found:
        name = found.pop()
        if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=top)
            continue
        os.chmod(name, 0o700, dir_fd=top)
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
        try:
            for entry in os.listdir(inner):  # up to the top, so that no path grows long
                moved += 1
                _move(entry, inner, f"{prefix}{moved}", top)
                found.append(f"{prefix}{moved}")
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=top)


def _move(name: str, source: int, to: str, target: int) -> None:
    try:
        os.rename(name, to, src_dir_fd=source, dst_dir_fd=target)
    except PermissionError:  # a folder that its owner may not write
        os.chmod(name, 0o700, dir_fd=source)
        os.rename(name, to, src_dir_fd=source, dst_dir_fd=target)


def size(folder: str, most_files: int) -> int:
    """Bytes on disk of the files beneath; `UNBOUNDED` where there are more than `most_files`, or it cannot be seen."""
    total = count = 0
    left = [folder]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    count += 1
                    if count > most_files:
                        return UNBOUNDED
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except FileNotFoundError:  # the call removed it meanwhile
            continue
        except OSError:  # closed to us, or deeper than a path can be long
            return UNBOUNDED
    return total
