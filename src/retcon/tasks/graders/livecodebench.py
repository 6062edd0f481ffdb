"""Grader of programs, twice: like LiveCodeBench's own runner, and strictly.

`lcb` is the verdict of LiveCodeBench/LiveCodeBench at commit 28fef95ea8c9 (`lcb_runner/evaluation/testing_util.py`): it
takes the lines between the last two with a fence, adds its imports and removes system calls; a program that reads and
prints becomes the body of a function, whose `sys.stdin` is a mock without iteration; all cases share one interpreter,
each has six seconds on the clock; values are compared by `==`, lines by their decimals.
`strict` is the grader `code`. The two are in `Verdict.grades`; `decides` selects the one that counts.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, DecimalException
from typing import Annotated, Literal

from pydantic import Field

from retcon.core.errors import SessionLost
from retcon.sandbox.types import Limits, Result, Sandbox
from retcon.tasks.graders.code import OUTPUT_BYTES, READ, check_result
from retcon.tasks.grading.cases import WrittenCases, check_readable, written_cases
from retcon.tasks.grading.registry import Grader, Host, Kind, Reply, Verdict
from retcon.tasks.grading.warm import WarmSessions
from retcon.tasks.types import Task

COMMIT = "28fef95ea8c9f7a547c8329f2cd3d32b92c1fa24"
"""Commit of the runner that `lcb` reproduces."""
CPU_SECONDS = 3600.0
"""CPU limit of a case; its clock ends it long before, like the runner's."""
FILE_MB = 512
"""Most MiB of a case's input."""

_READY = '''
import ast, base64, builtins, io, json, os, shutil, signal, subprocess, sys, types
from unittest import mock

try:
    import numpy  # it cannot be imported after system calls are removed
except ImportError:
    pass

SECONDS = {seconds}
MODULES = ("string re datetime collections heapq bisect copy math random statistics itertools functools operator io sys"
           " json").split()
PRELUDE = "".join(
    [f"from {{name}} import *\\n" for name in (*MODULES, "builtins", "typing")]
    + [f"import {{name}}\\n" for name in MODULES]
    + ["sys.setrecursionlimit(50000)\\n"]
)
DENIED = {{
    os: "kill system putenv remove removedirs rmdir fchdir setuid fork forkpty killpg rename renames truncate replace"
        " unlink fchmod fchown chmod chown chroot lchflags lchmod lchown getcwd chdir",
    shutil: "rmtree move chown",
    subprocess: "Popen",
    builtins: "quit help",
}}


class TimeoutException(Exception):
    pass


def ring(*_):
    print("the time is over")
    raise TimeoutException


class Stdin:
    """Mock of stdin whose methods start anew, except `readline`; others are a StringIO's."""

    def __init__(self, text):
        self.text, self.lines, self.buffer = text, io.StringIO(text), Buffer(text.encode())

    def read(self, *_):
        return self.text

    def readline(self, *size):
        return self.lines.readline(*size)

    def readlines(self, *_):
        return self.text.split("\\n")

    def __getattr__(self, name):
        return getattr(self.lines, name)


class Buffer:
    def __init__(self, content):
        self.content = content

    def read(self, *_):
        return self.content

    def readline(self, *_):
        return self.content.split(b"\\n")[0] + b"\\n"


def as_function(program):
    """Wrap a program in a function; return it unchanged where it cannot be parsed or unparsed."""
    try:
        body = ast.parse(program).body
        if isinstance(body[-1], ast.If) and ast.unparse(body[-1].test).strip() == "__name__ == '__main__'":
            program = ast.unparse(body[:-1]) + "\\n" + ast.unparse(body[-1].body)
    except BaseException:
        pass
    try:
        imports, rest = [], []
        for statement in ast.parse(program).body:
            (imports if isinstance(statement, (ast.Import, ast.ImportFrom)) else rest).append(statement)
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        whole = ast.FunctionDef(name="wrapped_function", args=nothing, body=rest, decorator_list=[], lineno=-1)
        return PRELUDE + "\\n" + ast.unparse(imports) + "\\n" + ast.unparse(whole)
    except Exception:
        return program


def find(program, name):
    """Return the function of a program that cases call."""
    signal.alarm(SECONDS)
    try:
        module = types.ModuleType("tmp_sol", "")
        exec(compile(program, "<string>", "exec", dont_inherit=True), module.__dict__)
        return getattr(module.Solution() if "class Solution" in program else module, name)
    finally:
        signal.alarm(0)


def begin(program, name):
    global called
    sys.stdin, sys.argv = open(0, closefd=False), ["main.py", "--scenario", "codegeneration", "--evaluate"]
    sys.set_int_max_str_digits(50000)
    signal.signal(signal.SIGALRM, ring)
    os.environ["OMP_NUM_THREADS"] = "1"
    for module, names in DENIED.items():
        for each in names.split():
            setattr(module, each, None)
    sys.modules.update(dict.fromkeys(("ipdb", "joblib", "resource", "psutil", "tkinter")))
    called = find(PRELUDE + "\\n\\n" + program if name else as_function(program), name or "wrapped_function")


def printed(text):
    """Return a program's output for an input, in hex."""
    out, kept = io.StringIO(), sys.stdout
    out.close = lambda stream: 1
    sys.stdout = out
    lines = iter(text.split("\\n"))
    signal.alarm(SECONDS)
    try:
        with (
            mock.patch("sys.stdin.read", lambda *_: text),
            mock.patch("sys.stdin.readlines", lambda *_: text.split("\\n")),
            mock.patch("sys.stdin.readline", lambda *_: next(lines)),
            mock.patch("sys.stdin", Stdin(text)),
            mock.patch("builtins.open", mock.mock_open(read_data=text)),
        ):
            try:
                called()
            except SystemExit:
                pass
    finally:
        signal.alarm(0)
        sys.stdout = kept
    return json.dumps(out.getvalue()).encode().hex()


def call(arguments):
    global returned
    given = [json.loads(line) for line in arguments.split("\\n")]
    signal.alarm(SECONDS)
    try:
        returned = called(*given)
    finally:
        signal.alarm(0)


def case():
    with open("case", encoding="utf-8", errors="surrogatepass", newline="") as file:
        return file.read()


def is_returned(expected):
    same = (list(returned) if isinstance(returned, tuple) else returned) == json.loads(expected)
    return bool(same) and (same is True or type(same).__module__ == "numpy")
'''
_BEGIN = "begin(base64.b64decode({program!r}).decode('utf-8', 'surrogatepass'), {name!r})"


@dataclass(frozen=True, slots=True)
class LiveCodeBenchSettings:
    decides: Annotated[
        Literal["lcb", "strict"], Field(description="the grade that counts: LiveCodeBench's own runner's, or `code`'s")
    ] = "lcb"
    seconds: Annotated[int, Field(gt=0, description="seconds on the clock of a case, to `lcb`")] = 6
    memory_mb: Annotated[int, Field(gt=0, description="memory of an answer, MiB, to `lcb`")] = 4096
    at_once: Annotated[int, Field(ge=1, description="answers that are run at a time, to `lcb`")] = 4


class LiveCodeBenchGrader:
    """Grader with two verdicts. strict: the grader `code`, which its host closes."""

    def __init__(self, sandbox: Sandbox, strict: Grader, settings: LiveCodeBenchSettings) -> None:
        self._strict, self._settings = strict, settings
        self._read: deque[tuple[Task, WrittenCases]] = deque(maxlen=READ)
        self._reading = asyncio.Lock()
        self._limits = Limits(
            cpu_seconds=CPU_SECONDS, wall_seconds=CPU_SECONDS, memory_mb=settings.memory_mb, file_mb=FILE_MB
        )
        ready = _READY.format(seconds=settings.seconds)
        self._sessions = WarmSessions(sandbox, ready, self._limits, at_once=settings.at_once)

    async def grade(self, task: Task, reply: Reply) -> Verdict:
        strict = await self._strict.grade(task, reply)
        name, cases = await self._cases_of(task)
        program = last_pair(reply.text)
        if program is None and reply.trajectory is not None:
            program = strict.answer  # from calls: the runner accepts programs from elsewhere, too
        why = await self._why(program or "", name, cases)
        grades = {"lcb": not why, "strict": strict.right}
        if self._settings.decides == "strict":
            return Verdict(strict.score, strict.right, strict.why, strict.answer, grades)
        return Verdict(float(not why), not why, why or "passed", program, grades)

    async def check(self, task: Task) -> None:
        await self._strict.check(task)
        await asyncio.to_thread(written_cases, task)

    async def close(self) -> None:
        await self._sessions.close()

    async def _cases_of(self, task: Task) -> WrittenCases:
        """Read a task's cases, once for its replies and in a thread, as packed ones take seconds."""
        async with self._reading:
            known = next((cases for of, cases in self._read if of is task), None)
            if known is None:
                known = await asyncio.to_thread(written_cases, task)
                self._read.append((task, known))
            return known

    async def _why(self, program: str, name: str | None, cases: Sequence[tuple[str, str]]) -> str:
        """Return a program's first failure, or ""."""
        seconds = self._settings.seconds
        ends = time.monotonic() + (seconds + 1) * len(cases) + 5  # when the runner ends an answer's process

        async def cell(code: str, text: str = "", room: int = 0) -> Result:
            left = max(ends - time.monotonic(), 0.1)
            within = replace(self._limits, wall_seconds=left, output_bytes=OUTPUT_BYTES + 16 * room)
            files = {"case": text.encode("utf-8", "surrogatepass")}
            return check_result(await session.run(code, limits=within, files=files))

        async with self._sessions.acquire() as session:
            try:
                packed = base64.b64encode(program.encode("utf-8", "surrogatepass"))
                begun = await cell(_BEGIN.format(program=packed, name=name))
                if begun.status != "ok":
                    return begun.error_type or begun.status
                for n, (given, expected) in enumerate(cases, start=1):
                    run, room = ("call(case())", 0) if name else ("printed(case())", len(expected))
                    result = await cell(run, given, room)
                    if result.status != "ok":
                        return f"case {n}: {result.error_type or result.status}"
                    if name and (await cell("is_returned(case())", expected)).value != "True":
                        return f"case {n}: another value"
                    if not name and not _same_lines(_printed(result), expected):
                        return f"case {n}: another output"
            except SessionLost as lost:
                if not lost.by_own_code:
                    raise
                return "the answer ended its interpreter"
        return ""


def last_pair(text: str) -> str | None:
    """Return the lines between the last two with a fence; None with fewer than two."""
    lines = text.split("\n")
    fences = [n for n, line in enumerate(lines) if "```" in line]
    return "\n".join(lines[fences[-2] + 1 : fences[-1]]) if len(fences) > 1 else None


def _printed(result: Result) -> str | None:
    try:
        text: str = json.loads(bytes.fromhex((result.value or "").strip("'")))
    except ValueError:  # cut, as longer than the expected output
        return None
    return text


def _same_lines(printed: str | None, expected: str) -> bool:
    """Compare lines without surrounding space; lines of numbers by exact decimals."""
    if printed is None:
        return False
    had, wanted = ([line.strip() for line in text.strip().split("\n")] for text in (printed, expected))
    return len(had) == len(wanted) and all(map(_same_line, had, wanted))


def _same_line(had: str, wanted: str) -> bool:
    if had == wanted:
        return True
    try:
        return [Decimal(one) for one in had.split()] == [Decimal(one) for one in wanted.split()]
    except (DecimalException, ValueError):
        return False


async def _open(settings: LiveCodeBenchSettings, host: Host) -> LiveCodeBenchGrader:
    return LiveCodeBenchGrader(await host.sandbox(), await host.grader("code"), settings)


GRADER = Kind("livecodebench", LiveCodeBenchSettings, _open, read=check_readable, asks=lambda _: ("code",))
