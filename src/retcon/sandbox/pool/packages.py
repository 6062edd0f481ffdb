"""The interpreter that runs the calls: where it is, its version, and what it has installed."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from retcon.core.errors import SandboxUnavailable, nearest
from retcon.sandbox.pool.profiles import DISTRIBUTIONS
from retcon.sandbox.pool.zygote_handle import ENVIRONMENT

LEAST = (3, 11)
"""The oldest Python that runs calls."""
_LOOK = """
import json, sys
sys.path.pop(0)
found = {"version": sys.version_info[:3], "missing": [], "had": []}
if sys.version_info >= (3, 11):
    import importlib.util, pkgutil
    had = {module.name for module in pkgutil.iter_modules()} | sys.stdlib_module_names
    found["missing"] = [name for name in sys.argv[1:] if name not in had and not importlib.util.find_spec(name)]
    found["had"] = sorted(had)
print(json.dumps(found))
"""
_SECONDS = 60.0


def find_python(python: str | None) -> str:
    """The path of an interpreter, given by its own, its virtual environment's folder or its name; this one's for None.

    Raises ValueError where there is none.
    """
    if python is None:
        return sys.executable
    path = Path(python).expanduser()
    path = path / "bin" / "python" if path.is_dir() else path
    found = shutil.which(path)
    if found is None:
        raise ValueError(f"python is {python!r}, where there is no program: give an interpreter, or a venv's folder")
    return str(Path(found).absolute())  # not where a link leads to, as a venv's interpreter is one


async def check_python(python: str, modules: Iterable[str]) -> None:
    """Raises SandboxUnavailable for a Python that is too old, and that names the first of `modules` that it lacks.

    Looks for top-level packages and imports none.
    """
    packages = list(dict.fromkeys(module.partition(".")[0] for module in modules))
    if packages or python != sys.executable:
        await asyncio.to_thread(_check, python, packages)


def _check(python: str, packages: list[str]) -> None:
    command = [python, "-s", "-c", _LOOK, *packages]  # which the oldest Python takes
    try:
        done = subprocess.run(command, env=ENVIRONMENT, cwd="/", capture_output=True, timeout=_SECONDS, check=False)
        if done.returncode:
            raise ValueError(done.stderr.decode(errors="replace").strip()[-300:] or f"exit code {done.returncode}")
        found = json.loads(done.stdout)
        version = tuple(map(int, found["version"]))
    except (OSError, ValueError, LookupError, TypeError, subprocess.SubprocessError) as error:
        raise SandboxUnavailable(f"python is {python}, which cannot be asked for its packages: {error}") from error
    if version < LEAST:
        raise SandboxUnavailable(
            f"python is {python}, which is Python {'.'.join(map(str, version))}: calls need 3.11 or later; name a "
            "later one, or leave `python` out"
        )
    for name in found["missing"]:
        raise SandboxUnavailable(
            f"package {name!r} is not installed for {python}{nearest(name, found['had'])}: install it by "
            f"`{python} -m pip install {DISTRIBUTIONS.get(name, name)}`, or leave it out of `packages`"
        )
