"""Packages that programs use most: quiet, and preloaded with all that ordinary work imports."""

from __future__ import annotations

import asyncio

import pytest

from retcon.core.errors import SandboxUnavailable
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.pool.profiles import PACKAGES
from retcon.sandbox.types import Limits, Result, Tier


def run(code: str, tier: Tier, packages: tuple[str, ...] = (), limits: Limits | None = None) -> Result:
    async def main() -> Result:
        try:
            pool = await SandboxPool(1, limits, tier=tier, packages=packages, warm=packages).__aenter__()
        except SandboxUnavailable as error:
            if packages and "preload" in str(error):
                raise
            pytest.skip(f"not on this machine: {error}")
        try:
            return await pool.run(code)
        finally:
            await pool.close()

    return asyncio.run(main())


@pytest.mark.parametrize("tier", ["namespaces", "landlock"])
def test_a_first_plot_of_a_call_that_imports_matplotlib_itself_says_nothing(tier: Tier) -> None:
    pytest.importorskip("matplotlib")
    limits = Limits(cpu_seconds=60, wall_seconds=120, memory_mb=2048)
    result = run(PACKAGES["matplotlib"].exercise, tier, limits=limits)
    assert (result.status, result.stderr) == ("ok", ""), result


@pytest.mark.parametrize("name", PACKAGES)
def test_a_known_package_does_ordinary_work_under_its_limits_and_imports_nothing_more(name: str) -> None:
    pytest.importorskip(name)
    known = PACKAGES[name]
    count = "print(len({*sys.modules} - before), os.listdir())"
    code = f"import os, sys\nbefore = {{*sys.modules}}\n{known.exercise}\n{count}"
    limits = Limits(cpu_seconds=10 * known.cpu_seconds, wall_seconds=120, memory_mb=known.memory_mb)
    result = run(code, "namespaces", (name,), limits)
    assert (result.status, result.stderr) == ("ok", ""), result
    new, left = result.stdout.split(maxsplit=1)
    assert (int(new) < 20, left) == (True, "[]\n")
