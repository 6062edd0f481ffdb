"""Below /tmp calls may have files where the Python that runs them does not lie there, whichever the pool's own is."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from retcon.core.errors import SandboxUnavailable
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Result
from servers.serving import server

SRC = Path(__file__).parents[3] / "src"
READ = "print(open('{0}/q').read())"
ASKED = f"""
import asyncio, sys
sys.path[:0] = sys.argv[2:]
from retcon.sandbox.pool import SandboxPool
async def main():
    async with SandboxPool(1, tier="namespaces", python=sys.argv[1]) as pool:
        return await pool.run({READ.format("/tmp")!r}, files={{"/tmp/q": b"there"}})
print(sys.prefix, asyncio.run(main()).stdout)
"""


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


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/run", {"code": "1", "files": {"/tmp/q": ""}}, "files"),
        ("/v1/run", {"code": "1", "fetch": ["/tmp/q"]}, "fetch"),
        ("/v1/batch", {"calls": [{"code": "1"}, {"code": "1", "files": {"/tmp/q": ""}}]}, "calls[1].files"),
        ("/run_code", {"code": "1", "language": "python", "files": {"/tmp/q": ""}}, "files"),
        ("/run_jupyter", {"cells": ["1"], "fetch_files": ["/tmp/q"]}, "fetch_files"),
    ],
)
def test_a_server_refuses_such_a_file_by_its_field_before_anything_runs(
    below_tmp: str, path: str, body: dict[str, Any], field: str
) -> None:
    with server("--workers", "1", "--python", below_tmp) as made:
        if "tier namespaces" not in made.said:
            pytest.skip("this machine grants no namespaces")
        told = httpx.post(made.url + path, json=body)
        assert told.status_code == 422
        assert "nor one below /dev/shm, " in told.text
        (one,) = told.json().get("detail") or [told.json()["error"]]
        assert (one.get("field") or one["loc"][-1]) == field
        assert "retcon_sandbox_calls_total{" not in httpx.get(made.url + "/metrics").text


def test_another_python_has_a_tmp_for_its_calls_though_the_pools_own_lies_there(below_tmp: str) -> None:
    other = os.path.realpath(sys.executable)
    run(other, "/dev/shm")  # or is skipped
    paths = [str(SRC), *(path for path in sys.path if path.endswith("site-packages"))]
    done = subprocess.run([below_tmp, "-c", ASKED, other, *paths], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(Path(below_tmp).parents[1]), "there"], done.stderr
