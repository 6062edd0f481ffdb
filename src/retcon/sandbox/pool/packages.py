"""What the interpreter that runs the calls has installed."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterable

from retcon.core.errors import SandboxUnavailable, nearest
from retcon.sandbox.pool.zygote_handle import ENVIRONMENT

_LOOK = """
import importlib.util, json, pkgutil, sys
had = {module.name for module in pkgutil.iter_modules()} | sys.stdlib_module_names
missing = [name for name in sys.argv[1:] if name not in had and not importlib.util.find_spec(name)]
print(json.dumps({"missing": missing, "had": sorted(had)}))
"""
_SECONDS = 60.0


async def check_packages(python: str, modules: Iterable[str]) -> None:
    """Raises SandboxUnavailable that names the first of `modules` that `python` cannot find, and the nearest it can.

    Looks for top-level packages and imports none.
    """
    packages = list(dict.fromkeys(module.partition(".")[0] for module in modules))
    if packages:
        await asyncio.to_thread(_check, python, packages)


def _check(python: str, packages: list[str]) -> None:
    command = [python, "-s", "-P", "-X", "utf8", "-c", _LOOK, *packages]
    try:
        done = subprocess.run(command, env=ENVIRONMENT, cwd="/", capture_output=True, timeout=_SECONDS, check=True)
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise SandboxUnavailable(f"cannot ask {python} for its packages: {error}") from error
    for name in found["missing"]:
        raise SandboxUnavailable(
            f"package {name!r} is not installed for {python}{nearest(name, found['had'])}: install it there, "
            "or leave it out of `packages`"
        )
