"""Programs that are no plain Python, run by a few lines of Python inside the same call and the same isolation."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

from retcon.core.errors import SandboxUnavailable, nearest
from retcon.sandbox.service.calls import Calls, unavailable
from retcon.sandbox.types import Limits, Result

PYTHON = "python"
PROCESSES = ("bash", "cpp")
"""Languages whose programs, or compiler, start processes; the weaker tiers let calls start threads alone."""
COMPILE_MIB = 1024
"""For the compiler, whatever its program may use: the standard headers alone take some 300."""
COMPILE_SECONDS = 10.0
"""For the compiler, where the client names no time of its own."""

_PROBE = """
import importlib.util, json, os, shutil
there = {"pytest": importlib.util.find_spec("pytest"), "bash": os.path.exists("/bin/bash"), "cpp": shutil.which("g++")}
print(json.dumps([name for name in there if there[name]]))
"""
_NEEDS = {"pytest": "pytest installed for the interpreter that runs programs", "bash": "/bin/bash", "cpp": "g++"}
_PYTEST = "import sys\nimport pytest\nsys.exit(pytest.main({arguments!r}))\n"
_EXECUTE = """import os, signal
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
os.chmod({arguments!r}[-1], 0o700)
os.execvp({arguments!r}[0], {arguments!r})
"""
_COMPILE = """import os
os.execvp("g++", {arguments!r})
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """last: how the program ended or, where it was not `started`, its compiler. compiled: the compiler, if any."""

    last: Result
    compiled: Result | None = None
    started: bool = True


class Languages:
    """What can be run here besides Python, which is found out at the first use of one.

    In the sandbox itself: it may see less than this process, and another interpreter's packages.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._there: frozenset[str] | None = None
        self._asking = asyncio.Lock()

    async def problem(self, language: str) -> str | None:
        """Why it is not served here, None where it is. Raises Refused (503) where it cannot be found out now."""
        if language == PYTHON:
            return None
        said = f"language '{language}' is not served here"
        if language not in _NEEDS:
            served = [PYTHON, *sorted(await self._found())]
            return f"{said}{nearest(language, served)}: only {', '.join(served)}"
        if language in PROCESSES and self._calls.tier != "namespaces":
            here = f"and this is '{self._calls.tier}'"
            return f"{said}: it starts processes, which only the tier 'namespaces' allows, {here}"
        return None if language in await self._found() else f"{said}: it needs {_NEEDS[language]}"

    async def run(
        self,
        api: str,
        language: str,
        code: str,
        limits: Limits,
        *,
        arguments: Sequence[str] = (),
        compile_limits: Limits | None = None,
        wait: float | None = None,
        patient: bool = False,
        **options: Any,
    ) -> Ran:
        """Run `code`. arguments: pytest's. compile_limits: of a compiler, the program's own where None.

        wait: seconds that it may wait for a worker, in all. patient: see `Calls.run`. options: of `Sandbox.run`.
        Raises Refused as `Calls.run` does.
        """

        async def call(program: str, bounds: Limits, seconds: float | None, **more: Any) -> Result:
            work = self._calls.sandbox.run
            given = options | {"limits": bounds, "wait": seconds, "echo": False} | more
            return await self._calls.run(api, lambda: work(program, **given), patient=patient)

        if language == PYTHON:
            return Ran(await call(code, limits, wait))
        files = options.pop("files", {})
        if language == "pytest":
            name = _free("program.py", files)
            driver = _PYTEST.format(arguments=[name, *arguments])
            return Ran(await call(driver, limits, wait, files={**files, name: _encoded(code)}))
        if language == "bash":
            name = _free("program.sh", files)
            driver = _EXECUTE.format(arguments=["/bin/bash", name])
            return Ran(await call(driver, limits, wait, files={**files, name: _encoded(code)}))
        source, binary = _free("program.cpp", files), _free("program", files)
        command = ["g++", "-std=c++17", "-O2", "-pthread", source, "-o", binary]
        started = time.monotonic()
        compiled = await call(
            _COMPILE.format(arguments=command),
            replace(compile_limits or limits, memory_mb=max(limits.memory_mb, COMPILE_MIB)),
            wait,
            files={**files, source: _encoded(code)},
            fetch=[binary],
            stdin="",
        )
        made = compiled.files.get(binary)
        if compiled.status != "ok" or made is None:
            return Ran(compiled, compiled, started=False)
        if wait is not None:
            wait = max(wait - (time.monotonic() - started - compiled.seconds), 0.0)
        driver = _EXECUTE.format(arguments=[f"./{binary}"])
        return Ran(await call(driver, limits, wait, files={**files, binary: made}), compiled)

    async def _found(self) -> frozenset[str]:
        async with self._asking:  # once, for however many that come together
            if self._there is None:
                try:
                    result = await self._calls.sandbox.run(_PROBE, echo=False, wait=self._calls.settings.fusion_wait)
                except SandboxUnavailable as error:
                    raise unavailable(error, "busy") from error
                if result.status != "ok":  # a fault of the moment: it is asked again
                    raise unavailable(SandboxUnavailable(f"what is installed cannot be found out: {result.stderr}"))
                there = frozenset(json.loads(result.stdout))
                self._there = there if self._calls.tier == "namespaces" else there - set(PROCESSES)
            return self._there


def _free(name: str, taken: Container[str]) -> str:
    """That name, or one like it that no file of the client's has."""
    while name in taken:
        name = f"_{name}"
    return name


def _encoded(code: str) -> bytes:
    """Lone surrogates, which JSON can carry, become what the compiler or the shell complains of."""
    return code.encode("utf-8", "surrogatepass")
