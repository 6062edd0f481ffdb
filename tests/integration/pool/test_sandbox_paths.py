"""Below /tmp calls may have files where the Python that runs them does not lie there, whichever the pool's own is."""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from retcon.core.errors import SandboxUnavailable
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Result

READ = "print(open('{0}/q').read())"


@pytest.fixture
def below_tmp() -> Iterator[str]:
    """A Python whose environment lies there."""
    if any(Path(path).is_relative_to("/tmp") for path in (sys.base_prefix, sysconfig.get_path("stdlib"))):
        pytest.skip("this Python itself lies below /tmp")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        venv.create(folder, symlinks=True)
        yield f"{folder}/bin/python"


def run(python: str, folder: str) -> Result:
    async def main() -> Result:
        try:
            async with SandboxPool(1, tier="namespaces", python=python) as pool:
                return await pool.run(READ.format(folder), files={f"{folder}/q": b"there"})
        except SandboxUnavailable:
            pytest.skip("this machine grants no namespaces")

    return asyncio.run(main())


def test_a_python_below_tmp_leaves_no_tmp_to_its_calls(below_tmp: str) -> None:
    assert run(below_tmp, "/dev/shm").stdout == "there\n"
    with pytest.raises(ValueError, match="'/tmp/q' is not a path inside the scratch folder, nor one below /dev/shm, "):
        run(below_tmp, "/tmp")
