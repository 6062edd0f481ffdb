"""What a session may write to: taken and put back with its own user's rights. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from retcon.sandbox.jail import fetch, kernel
from retcon.sandbox.jail.confine.confinement import Confinement
from retcon.sandbox.jail.confine.isolate import die_with_parent
from retcon.sandbox.jail.session.beneath import FOLDER, Beneath
from retcon.sandbox.jail.session.snapshot import Snapshot

MOST_BYTES = 64 << 20  # that a checkpoint can keep of each folder

FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EROFS)
"""What keeps files from being put back that is the machine's, where it does not bound what a session writes."""


class FilesNotRestored(Exception):
    """The session's own code keeps its files from being put back; says how."""


class Writable:
    """The writable folders of a worker, held by their descriptors: a session may move the scratch folder away, or put
    a link in its place."""

    def __init__(self, confinement: Confinement, scratch: str) -> None:
        """scratch: is made. To be called before anything of the session runs. Raises OSError."""
        os.mkdir(scratch, 0o700)
        self._scratch, self._user, self._bounded = scratch, confinement.become, confinement.bounded
        # where calls have a user of their own, all but the scratch folder is closed to it
        paths = confinement.writable if confinement.become is None else (scratch,)
        self._folders = [os.open(path, FOLDER | os.O_NOFOLLOW | os.O_CLOEXEC) for path in paths]
        self._beneath = Beneath(confinement.proc)

    def take(self, before: list[Snapshot] | None) -> list[Snapshot]:
        """What they hold. before: what they held once, to hold once what is the same. Raises OSError."""
        olds: list[Snapshot | None] = [*before] if before else [None] * len(self._folders)
        with self._as_user():
            return [
                Snapshot(folder, self._beneath, MOST_BYTES, old)
                for folder, old in zip(self._folders, olds, strict=True)
            ]

    def restore(self, snapshots: list[Snapshot]) -> None:
        """Raises FilesNotRestored, and OSError where the machine is at fault."""
        try:
            with self._as_user():
                for folder, snapshot in zip(self._folders, snapshots, strict=True):
                    snapshot.restore(folder)
        except OSError as error:
            if self._bounded or error.errno not in FAULTS:
                raise FilesNotRestored(str(error)) from error
            raise

    def collect(self, paths: list[str]) -> dict[str, str]:
        """Path to content in base64, of those `paths` that can be handed back (`fetch.collect`). Raises OSError."""
        with self._as_user():
            return fetch.collect(self._scratch, paths)

    @contextlib.contextmanager
    def _as_user(self) -> Iterator[None]:
        """With the rights on files that the session's own processes have, and no more."""
        if self._user is None:
            yield
            return
        try:
            with kernel.file_rights(self._user):
                yield
        finally:
            die_with_parent()
