"""Grader of programs by their tests (`grading/cases.py`), in the sandbox.

Cases of input and output: the expected output never enters the sandbox, and the actual one is compared here. Checks
(HumanEval's `check`, MBPP's asserts) run in the interpreter that the answer ran in, each as a cell that ends with a
word drawn after the answer has run: an answer that ends the interpreter or leaves it early (`os._exit(0)`,
`sys.exit()`) does not reach it. Tests in the same interpreter must guard themselves against other tricks, such as a
result whose `==` is always true.
"""

from __future__ import annotations

import ast
import asyncio
import base64
import builtins
import contextlib
import json
import math
import re
import secrets
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from itertools import chain
from textwrap import dedent
from typing import Annotated, Any, Literal

from pydantic import Field

from retcon.chat.markdown import find_blocks, find_calls
from retcon.core.concurrency import gather_or_cancel
from retcon.core.errors import CheckpointRefused, InfrastructureFault, RetconError, SessionLost
from retcon.core.texts import parse_program
from retcon.core.types import Trajectory
from retcon.sandbox.types import TOO_LONG, Limits, Result, Sandbox, Session
from retcon.tasks.graders.text import visible_reply
from retcon.tasks.grading.cases import Call, Check, Stdio, Tests, check_readable, read_tests
from retcon.tasks.grading.registry import Host, Kind, Reply, Verdict
from retcon.tasks.grading.warm import WarmSessions
from retcon.tasks.types import Task

_IMPORTED_AS = ("answer", "solution")
LONG = 1 << 16  # characters of a block; 600,000 took 11 s
_INDENTED = re.compile(r"(?:[ \t]*(?:#.*)?\n)*[ \t]+[^\s#]")  # its first line of code


def find_program(reply: Reply, tests: Tests) -> str | None:
    """Find the program of a reply; None without one, or without an answer.

    It is the last block of Python of the last turn; where blocks are calls, an answer cannot hold one: then the last
    program that ran without failing; else the last block in any fence. Where the tests name a function, it is the last
    of these that defines it or is its indented body, if any is.
    """
    programs = _programs(reply)
    if len(programs) < 2:
        return programs[0] if programs else None
    names = called_names(tests)
    answers = (one for one in reversed(programs) if _answers(one, names, tests))
    bodies = (one for one in reversed(programs) if _may_be_body(one, tests))
    return next(chain(answers, bodies), programs[-1])


def complete_program(program: str, tests: Tests) -> str:
    """Put the prompt before an answer that is only a function's body."""
    return program if tests.body_of is None or _is_whole(program, *tests.body_of) else tests.body_of[1] + program


def called_names(tests: Tests) -> frozenset[str]:
    """Return the names of an answer that tests call; none for programs or unreadable tests."""
    if tests.body_of is not None:
        return frozenset({tests.body_of[0]})
    called = {case.function for case in tests.cases if isinstance(case, Call)}
    checks = [f"{case.needs}\n{case.code}" for case in tests.cases if isinstance(case, Check)]
    return frozenset(called or (_free_names([tests.before, *checks]) if checks else ()))


def _programs(reply: Reply) -> Sequence[str]:
    if reply.trajectory is None:
        return _blocks(reply.text) or _fenced(visible_reply(reply.text))
    if reply.trajectory.stop != "answer":
        return ()
    return _blocks(reply.text) or _ran(reply.trajectory) or _fenced(visible_reply(reply.text))


def _ran(trajectory: Trajectory) -> Sequence[str]:
    return [
        call.code
        for turn in trajectory.turns
        for call, observation in zip(turn.calls, turn.observations, strict=True)
        if observation.status == "ok" and not call.malformed and "code" in call.arguments
    ]


def _blocks(text: str) -> Sequence[str]:
    """Return the complete blocks of Python in a text; those in its thinking only if nothing follows."""
    programs = [
        (call.char, end)
        for call, end in find_blocks(text, indented=True)
        if not isinstance(call.arguments, str)
        and (visible_reply(text[call.char : end]) == text[call.char : end] or _is_python(text[call.char : end]))
    ]
    found = find_calls(visible_reply(text, programs), indented=True)
    return [str(call.arguments["code"]) for call in found if not isinstance(call.arguments, str)]


def _fenced(text: str) -> Sequence[str]:
    """Return the complete blocks of a text in fences of any kind."""
    found, block, ticks = [], list[str](), 0
    for line in text.split("\n"):
        bare = line.strip()
        if not ticks:
            fence = line[line.find("```") :] if "```" in line else ""
            block, ticks = [], len(fence) - len(fence.lstrip("`"))
        elif len(bare) >= ticks and not bare.strip("`"):
            found.append(dedent("\n".join(block)))
            ticks = 0
        else:
            block.append(line)
    return found


def _is_python(block: str) -> bool:
    """Return whether a block with its fences is a program or a body. One that is opened in a thought and closed by a
    fence of the answer is not. A long one counts as a program, as parsing it would block others."""
    code = "\n".join(block.split("\n")[1:-1])
    return len(code) > LONG or any(parse_program(one) is not None for one in (dedent(code), f"def _():\n{code}"))


def _answers(program: str, names: Collection[str], tests: Tests) -> bool:
    """Return whether it defines one of these names, or is its indented body. Unindented code may follow the function,
    and use it."""
    if not names:
        return True
    one = "|".join(map(re.escape, sorted(names)))
    defines = rf"^\s*(?:(?:async\s+)?def|class)\s+(?:{one})\b|^\s*(?:{one})\s*(?::[^=\n]*)?=(?!=)"
    if re.search(defines, program, re.MULTILINE):
        return True
    return _may_be_body(program, tests) and _INDENTED.match(program) is not None


def _may_be_body(program: str, tests: Tests) -> bool:
    return tests.body_of is not None and not _is_whole(program, *tests.body_of)


def _is_whole(program: str, function: str, prompt: str) -> bool:
    name = re.escape(function)
    outside = r"^" if prompt.endswith("\n") else r"\n"  # where the prompt indents the body's first line
    defines = rf"\bdef\s+{name}\b|\A{name}\s*[:=]|{outside}(?=\S).*\b{name}\b"
    return re.search(defines, program, re.MULTILINE) is not None


def _free_names(codes: Iterable[str]) -> set[str]:
    """Return the names that code uses without binding them, or imports from an answer."""
    used: set[str] = set()
    bound = set(dir(builtins))
    for code in codes:
        if (tree := parse_program(code)) is None:
            return set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
            elif isinstance(node, ast.arg):
                bound.add(node.arg)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler):
                bound.add(node.name or "")
            elif isinstance(node, ast.ImportFrom) and node.module in _IMPORTED_AS:
                used |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Import | ast.ImportFrom):
                bound |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return used - bound


MOST_DIGITS = 100
"""Most digits of a number; longer ones are compared as text."""


def same_output(expected: str, printed: str, *, exact: bool = False) -> bool:
    """Compare outputs by lines, ignoring space around them. Empty lines at the end do not count; lines of numbers are
    compared by value (`1.0` is `1`). exact: decimals must be equal; otherwise within 1e-5 of the greater one, or
    1e-8, as in the checkers of APPS, TACO and verl."""
    wanted, had = expected.strip().splitlines(), printed.strip().splitlines()
    return len(wanted) == len(had) and all(_same_line(*pair, exact) for pair in zip(wanted, had, strict=True))


def same_value(a: Any, b: Any) -> bool:
    """Compare JSON values like Python (`True` is 1), ignoring floats' last digits."""
    todo = [(a, b)]
    while todo:
        one, other = todo.pop()
        if isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                return False
            todo += zip(one, other, strict=True)
        elif isinstance(one, dict) and isinstance(other, dict):
            if one.keys() != other.keys():
                return False
            todo += ((one[key], other[key]) for key in one)
        elif isinstance(one, float) or isinstance(other, float):
            if not _close(one, other):
                return False
        elif one != other:
            return False
    return True


def _close(one: Any, other: Any) -> bool:
    if not isinstance(one, float | int) or not isinstance(other, float | int):
        return False
    try:
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    except OverflowError:  # an integer beyond every float
        return False


def _same_line(wanted: str, had: str, exact: bool) -> bool:
    if wanted.strip() == had.strip():
        return True
    ours, theirs = wanted.split(), had.split()
    return len(ours) == len(theirs) and all(_same_number(*pair, exact) for pair in zip(ours, theirs, strict=True))


def _same_number(wanted: str, had: str, exact: bool) -> bool:
    if wanted == had:
        return True
    if max(len(wanted), len(had)) > MOST_DIGITS:
        return False
    try:
        one, other = Decimal(wanted), Decimal(had)
        if one == other:
            return True
    except InvalidOperation:
        return False
    if exact or not any(sign in wanted + had for sign in ".eE") or math.isinf(float(one)):
        return False
    return math.isclose(float(one), float(other), rel_tol=1e-5, abs_tol=1e-8)


_READY = """
import math, re, collections, itertools, typing, sys
sys.modules["answer"] = sys.modules["solution"] = sys.modules[__name__]
__name__ = "answer"
del math, re, collections, itertools, typing, sys
"""
"""Prepares an answer's module as if imported, so that its main program, which may read input, does not run. Tests may
import from `solution` (KodCode)."""
_CHECKS = '__name__ = "__main__"'
WAITING = 10.0  # wall seconds for each CPU second, as machines are busy, and a sleeping program ends too
READ = 16  # tasks whose parsed tests are cached
OUTPUT_BYTES = 65536  # kept beyond the expected output

_CALL = """
import base64 as _base64, json as _json
_space = {{"__name__": "answer"}}
for _part in (_base64.b64decode("{before}"), _base64.b64decode("{program}")):
    exec(compile(_part, "answer.py", "exec"), _space)
_called = _space["Solution"]() if "Solution" in _space and {name!r} not in _space else None
_called = getattr(_called, {name!r}) if _called is not None else _space[{name!r}]
with open("arguments.json") as _file:
    _returned = _called(*_json.load(_file))
_json.dumps(_returned, default=lambda value: value.tolist()).encode().hex()
"""
_RUN = """
import base64
exec(base64.b64decode("{before}"))
exec(compile(base64.b64decode("{program}"), "answer.py", "exec"))
"""


@dataclass(frozen=True, slots=True)
class CodeSettings:
    seconds: Annotated[float, Field(gt=0, description="CPU seconds of a case; ten times as many on the clock")] = 10.0
    memory_mb: Annotated[int, Field(gt=0, description="memory of a case, MiB")] = 1024
    score: Annotated[
        Literal["all", "share"],
        Field(description="all: 1 where every case passes, else 0; share: that of the cases which pass"),
    ] = "all"
    at_once: Annotated[int, Field(ge=1, description="answers with asserts that are run at a time")] = 4


class CodeGrader:
    """Grader that runs a task's tests (`read_tests`). Implements `Grader`."""

    def __init__(self, sandbox: Sandbox, settings: CodeSettings | None = None) -> None:
        self._sandbox = sandbox
        self._settings = settings or CodeSettings()
        self._sessions = WarmSessions(sandbox, _READY, self._limits(), at_once=self._settings.at_once)
        self._reading = asyncio.Lock()
        self._read: deque[tuple[Task, Tests]] = deque(maxlen=READ)

    async def grade(self, task: Task, reply: Reply) -> Verdict:
        tests = await self._tests_of(task)
        program = find_program(reply, tests)
        if program is None:
            return Verdict.of(False, "no program: the answer must hold a block in ``` fences")
        passed, why = await self._passed(complete_program(program, tests), tests)
        right = passed == len(tests.cases)
        score = passed / len(tests.cases) if self._settings.score == "share" else float(right)
        return Verdict(score, right, "passed" if right else why, program)

    async def check(self, task: Task) -> None:
        await asyncio.to_thread(read_tests, task)

    async def close(self) -> None:
        await self._sessions.close()

    async def _tests_of(self, task: Task) -> Tests:
        """Read a task's tests in a thread, as packed ones take seconds, and once for its rollouts."""
        async with self._reading:
            known = next((tests for of, tests in self._read if of is task), None)
            if known is None:
                known = await asyncio.to_thread(read_tests, task)
                self._read.append((task, known))
            return known

    async def _passed(self, program: str, tests: Tests) -> tuple[int, str]:
        """Return the number of passed cases and the first failure, which ends the run unless shares count."""
        checks = [case for case in tests.cases if isinstance(case, Check)]
        if checks:
            return await self._checked(program, tests.before, checks)
        cases = [case for case in tests.cases if not isinstance(case, Check)]
        if self._settings.score == "share":
            whys = await gather_or_cancel(self._one(program, tests.before, case) for case in cases)
            return whys.count(""), next((f"case {n}: {why}" for n, why in enumerate(whys, 1) if why), "")
        for n, case in enumerate(cases):
            if why := await self._one(program, tests.before, case):
                return n, f"case {n + 1}: {why}"
        return len(cases), ""

    async def _one(self, program: str, before: str, case: Stdio | Call) -> str:
        """Return the answer's failure in this case, or ""."""
        if isinstance(case, Stdio):
            code = _RUN.format(before=_packed(before), program=_packed(program)) if before else program
            result = await self._run(code, case, stdin=case.stdin, room=len(case.stdout))
            same = same_output(case.stdout, result.stdout, exact=case.exact)
            left = result.error_type == "SystemExit"  # with any code
            return ("" if left else _failure(result)) or ("" if same else "another output")
        code = _CALL.format(before=_packed(before), program=_packed(program), name=case.function)
        room = 2 * len(json.dumps(case.values))
        files = {"arguments.json": json.dumps(case.arguments).encode()}
        result = await self._run(code, case, files=files, room=room)
        return _failure(result) or ("" if _returned(result, case.values) else "another value")

    async def _run(
        self,
        code: str,
        case: Stdio | Call,
        *,
        stdin: str = "",
        files: dict[str, bytes] | None = None,
        room: int,
    ) -> Result:
        """Run an answer on a case. code: the answer, with a few equal lines around it; the case comes separately."""
        limits = replace(self._limits(), output_bytes=OUTPUT_BYTES + 4 * room)
        try:
            result = await self._sandbox.run(code, stdin=stdin, files=files, limits=limits, echo=isinstance(case, Call))
        except (RetconError, ValueError) as error:  # ValueError: its server does not allow the limits
            raise InfrastructureFault(f"an answer could not be graded: {error}") from error
        return check_result(result)

    async def _checked(self, program: str, before: str, checks: Sequence[Check]) -> tuple[int, str]:
        passed, first, tried = 0, "", 0
        while tried < len(checks):  # once, unless a test ends an interpreter whose state could not be kept
            async with self._sessions.acquire() as session:
                try:
                    more, why, ran = await self._checked_in(session, program, before, checks, tried)
                except SessionLost as lost:
                    if not lost.by_own_code:
                        raise
                    more, why, ran = 0, "the answer ended its interpreter", 0
            passed, first, tried = passed + more, first or why, tried + ran
            if not ran:
                break
        return passed, first

    async def _checked_in(
        self, session: Session, program: str, before: str, checks: Sequence[Check], tried: int
    ) -> tuple[int, str, int]:
        """Run the tests after the first `tried`; return how many passed, the first failure, and how many ran, 0 to
        stop."""
        for code in (before, program, _CHECKS) if before.strip() else (program, _CHECKS):
            if failure := _failure(await _cell(session, code, own=code is program)):
                return 0, failure, 0
        each = self._settings.score == "share" and len(checks) > 1
        start = None
        if each:
            with contextlib.suppress(CheckpointRefused):  # it has threads, say
                start = await session.checkpoint()
        passed, first, needs = 0, "", tried > 0
        for n, check in enumerate(checks[tried:]):
            word = secrets.token_hex(8)
            code = f"{check.needs}\n{check.code}" if needs else check.code
            try:
                result = await _cell(session, f"{code}\n{word!r}")
            except SessionLost as lost:
                if not lost.by_own_code:
                    raise
                return passed, first, n
            if result.status == "ok" and result.value == repr(word):
                passed += 1
                continue
            first = first or f"test {tried + n + 1}: {_failure(result) or 'it was left early'}"
            if not each:
                return passed, first, 0
            if start is not None:
                await session.rollback(start)  # it may have ended the interpreter
                needs = True
        return passed, first, len(checks) - tried

    def _limits(self) -> Limits:
        seconds = self._settings.seconds
        return Limits(cpu_seconds=seconds, wall_seconds=WAITING * seconds, memory_mb=self._settings.memory_mb)


async def _cell(session: Session, code: str, *, own: bool = False) -> Result:
    """Run a cell. own: whether it is the answer, not a test. Raises SessionLost, and as `check_result`."""
    return check_result(await session.run(code), own=own)


def check_result(result: Result, *, own: bool = True) -> Result:
    """Return a result that is the answer's own doing. own: whether the code's length is, too.

    Raises InfrastructureFault for a fault of the sandbox, or tests that are too long for it.
    """
    if result.status == "infrastructure" or (_is_too_long(result) and not own):
        raise InfrastructureFault(f"an answer could not be graded: {result.stderr}")
    return result


def _is_too_long(result: Result) -> bool:
    """Return whether the code was too long; an answer may raise an error of that name."""
    return (result.status, result.error_type) == ("limit", TOO_LONG)


def _failure(result: Result) -> str:
    if _is_too_long(result):
        return result.stderr.strip()
    return "" if result.status == "ok" else result.error_type or result.status


def _returned(result: Result, values: Sequence[object]) -> bool:
    """Return whether the value of `_CALL` is one of these."""
    try:
        returned = json.loads(bytes.fromhex((result.value or "").strip("'")))
    except (ValueError, RecursionError):  # the answer replaced the value of `_CALL`
        return False
    return any(same_value(value, returned) for value in values)


def _packed(program: str) -> str:
    return base64.b64encode(program.encode("utf-8", "surrogatepass")).decode()


async def _open(settings: CodeSettings, host: Host) -> CodeGrader:
    return CodeGrader(await host.sandbox(), settings)


GRADER = Kind("code", CodeSettings, _open, read=check_readable)
