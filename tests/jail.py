"""A sandbox to attack: one worker of one tier, from tests that are no coroutines.

Each attack names the tiers that contain it; docs/sandbox.md lists what the others do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from textwrap import dedent

import pytest

from retcon.core.errors import SandboxUnavailable
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Limits, Result

NAMESPACES, LANDLOCK, RLIMITS = "namespaces", "landlock", "rlimits"
CONTAINED = (NAMESPACES, LANDLOCK)
ALL = (NAMESPACES, LANDLOCK, RLIMITS)

# for attacks by system call: `call(number, ...)` is "ok" or the name of the error
CALL = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return "ok" if result >= 0 else errno.errorcode[ctypes.get_errno()]
"""


def contained_by(*tiers: str) -> pytest.MarkDecorator:
    """Run the test in these tiers; those that the machine lacks are skipped, with the reason."""
    return pytest.mark.parametrize("jail", tiers, indirect=True, scope="module")


class Jail:
    """Open until `close`. Raises SandboxUnavailable."""

    def __init__(self, tier: str) -> None:
        self.tier = tier
        self._runner = asyncio.Runner()
        self._pool = SandboxPool(workers=1, tier=tier)  # type: ignore[arg-type]
        try:
            self._runner.run(self._pool.start())
        except SandboxUnavailable:
            self._runner.close()
            raise

    @property
    def pid(self) -> int:
        """Of the worker."""
        return self._pool.worker.pid

    def run(
        self,
        code: str,
        *,
        files: dict[str, bytes] | None = None,
        stdin: str = "",
        fetch: Sequence[str] = (),
        **limits: float,
    ) -> Result:
        given = Limits(**limits) if limits else None  # type: ignore[arg-type]
        return self._runner.run(self._pool.run(dedent(code), limits=given, files=files, stdin=stdin, fetch=fetch))

    def attack(self, code: str, **options: object) -> Result:
        """Run it, then see that the same worker still serves, from a clean folder."""
        worker = self.pid
        result = self.run(code, **options)  # type: ignore[arg-type]
        after = self.run("import os\nprint('alive', os.listdir())")
        assert (after.status, after.stdout, after.stderr) == ("ok", "alive []\n", ""), (result, after)
        assert self.pid == worker, result
        return result

    def close(self) -> None:
        self._runner.run(self._pool.close())
        self._runner.close()
