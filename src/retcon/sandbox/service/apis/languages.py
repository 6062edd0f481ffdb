"""Programs that are no plain Python, run by a few lines of Python inside the same call and the same isolation."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from retcon.core.errors import SandboxUnavailable, nearest
from retcon.sandbox.jail.scratch import TOTAL_BYTES
from retcon.sandbox.service.calls import Calls, unavailable
from retcon.sandbox.types import Limits, Program, Result

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
        """Why it is not served here, None where it is. Raises RequestRefused (503) where it cannot be found out now."""
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
        program: Program,
        *,
        arguments: Sequence[str] = (),
        compile_limits: Limits,
        patient: bool = False,
    ) -> Ran:
        """Run a program whose code is of that language. arguments: pytest's. compile_limits: of a compiler.

        Its `wait` is for a compiler's and its own waiting together; a value it has none. patient: see `Calls.run`.
        Raises RequestRefused as `Calls.run` does.
        """

        async def call(asked: Program) -> Result:
            return await self._calls.run(api, lambda: self._calls.sandbox.run(asked), patient=patient)

        program = replace(program, echo=False)
        if language == PYTHON:
            return Ran(await call(program))
        files, text = program.files, _encoded(program.code)
        if language == "pytest":
            name = _free("program.py", files)
            return Ran(await call(_beside(program, _PYTEST, [name, *arguments], {name: text})))
        if language == "bash":
            name = _free("program.sh", files)
            return Ran(await call(_beside(program, _EXECUTE, ["/bin/bash", name], {name: text})))
        source, binary = _free("program.cpp", files), _free("program", files)
        command = ["g++", "-std=c++17", "-O2", "-pthread", source, "-o", binary]
        started = time.monotonic()
        memory = max((program.limits or self._calls.settings.limits).memory_mb, COMPILE_MIB)
        compiler = replace(program, limits=replace(compile_limits, memory_mb=memory), fetch=[binary], stdin="")
        compiled = await call(_beside(compiler, _COMPILE, command, {source: text}))
        made = compiled.files.get(binary)
        if compiled.status == "ok" and made is None:
            compiled = _too_large(compiled)
        if compiled.status != "ok" or made is None:
            return Ran(compiled, compiled, started=False)
        if program.wait is not None:
            waited = time.monotonic() - started - compiled.seconds
            program = replace(program, wait=max(program.wait - waited, 0.0))
        return Ran(await call(_beside(program, _EXECUTE, [f"./{binary}"], {binary: made})), compiled)

    async def _found(self) -> frozenset[str]:
        async with self._asking:  # once, for however many that come together
            if self._there is None:
                try:
                    result = await self._calls.sandbox.run(_PROBE, echo=False, wait=self._calls.settings.fusion_wait)
                except SandboxUnavailable as error:
                    raise unavailable(error, "busy") from error
                if result.status != "ok":  # a fault of the moment: it is asked again
                    raise unavailable(SandboxUnavailable(f"the installed packages cannot be listed: {result.stderr}"))
                there = frozenset(json.loads(result.stdout))
                self._there = there if self._calls.tier == "namespaces" else there - set(PROCESSES)
            return self._there


def _beside(program: Program, driver: str, arguments: Sequence[str], files: Mapping[str, bytes]) -> Program:
    """The program as `driver`, which is given `arguments`, runs it from these files."""
    return replace(program, code=driver.format(arguments=list(arguments)), files={**program.files, **files})


def _too_large(compiled: Result) -> Result:
    """What was compiled well, and cannot be brought from the compiler's call to that of the program."""
    said = f"{compiled.stderr}OSError: the program is larger than {TOTAL_BYTES >> 20} MiB\n"
    return replace(compiled, status="limit", error_type="OSError", stderr=said, exit_code=1)


def _free(name: str, taken: Container[str]) -> str:
    """That name, or one like it that no file of the client's has."""
    while name in taken:
        name = f"_{name}"
    return name


def _encoded(code: str) -> bytes:
    """Lone surrogates, which JSON can carry, become what the compiler or the shell complains of."""
    return code.encode("utf-8", "surrogatepass")
