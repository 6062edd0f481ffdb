"""Python tool, stateful with `sandbox.sessions`.

Programs that only compute run in batches, each in one sandbox process: starting a process costs ten times what such a
program does.
"""

from __future__ import annotations

import ast
import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Protocol, Self

from retcon.core.errors import CheckpointRefused, InfrastructureFault, RetconError, SessionLost
from retcon.core.seeds import derive
from retcon.core.texts import error_line, parse_literal, parse_program
from retcon.core.types import Observation, ToolCall, ToolSpec
from retcon.sandbox.jail.capture import cut_middle
from retcon.sandbox.types import Limits, Result, Sandbox, Session
from retcon.tools.loading import ToolKind, ToolSetup
from retcon.tools.schema import python_spec
from retcon.tools.types import OpenTool, StatefulTool, Tool

FAULTS = (RetconError, OSError, ValueError)
"""Errors of a sandbox that are not the program's fault; ValueError: its server refuses a request, such as one for too
many seconds."""
MOST = 64
"""Most programs of a batch."""
LONGEST = 4000
"""Most characters of a program, and of its result, in a batch or a cache."""
_NODES = (
    ast.Module, ast.Expr, ast.Assign, ast.AugAssign, ast.For, ast.While, ast.If, ast.Pass, ast.Break, ast.Continue,
    ast.FunctionDef, ast.Lambda, ast.Return, ast.arguments, ast.arg, ast.Call, ast.keyword, ast.Starred, ast.Name,
    ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Subscript, ast.Slice, ast.List,
    ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension,
    ast.JoinedStr, ast.FormattedValue, ast.alias,
    ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
"""Syntax of programs in a batch: no classes, handlers or `yield`, through which code could run later."""
_SHOWING = ("format", "gi_", "f_", "tb_", "co_")
"""Prefixes of attributes that show a program's surroundings."""


def leaves_nothing(code: str) -> bool | None:
    """Return whether a deterministic program leaves its process unchanged; None if it is invalid.

    It sets no attribute and imports nothing but `math`, so that all it made goes with its names.
    """
    if len(code) > LONGEST:
        return False
    tree = parse_program(code)
    return None if tree is None else all(map(_leaves_nothing, ast.walk(tree)))


def _leaves_nothing(node: ast.AST) -> bool:
    match node:
        case ast.Name(id="type"):
            return False  # makes classes, whose `__del__` would run later
        case ast.Attribute():
            return isinstance(node.ctx, ast.Load) and not node.attr.startswith(_SHOWING)
        case ast.Import():
            return all(one.name == "math" for one in node.names)
        case ast.ImportFrom():
            return node.module == "math"
        case _:
            return isinstance(node, _NODES)


class BatchRunner:
    """Runs waiting programs together. limits: those of a program on its own.

    Only for programs for which `leaves_nothing` is not False.
    """

    def __init__(self, sandbox: Sandbox, limits: Limits) -> None:
        self._sandbox = sandbox
        self._limits = replace(limits, cpu_seconds=min(limits.cpu_seconds, 1.0))
        self._driver = (Path(__file__).parents[1] / "driver.py").read_text(encoding="utf-8")
        self._waiting: list[tuple[str, bool, asyncio.Future[Result | None]]] = []
        self._running: asyncio.Task[None] | None = None

    async def run(self, code: str, *, valid: bool) -> Result | None:
        """Return a program's result; None if it must run on its own. valid: whether it is Python."""
        ended: asyncio.Future[Result | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((code, valid, ended))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run_all())
        return await ended

    async def _run_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            found: Sequence[Result | None] = ()
            try:
                found = await self._run([(code, valid) for code, valid, _ in batch])
            finally:
                for (*_, ended), result in zip_longest(batch, found):
                    if not ended.done():
                        ended.set_result(result)

    async def _run(self, programs: Sequence[tuple[str, bool]]) -> list[Result | None]:
        """Return the programs' results, fewer if the process ended before the last."""
        try:
            done = await self._sandbox.run(
                self._driver, stdin=repr((LONGEST, programs)), limits=self._limits, echo=False, seed=0
            )
        except FAULTS:
            return []
        return [self._as_result(line, done) for line in done.stdout.splitlines()[: len(programs)]]

    def _as_result(self, line: str, done: Result) -> Result | None:
        match parse_literal(line):
            case [str(stdout), str(stderr), value, error_type, float(seconds)]:
                ended = replace(done, error_type=error_type, stdout=stdout, stderr=stderr, value=value, seconds=seconds)
                if error_type is None:
                    return replace(ended, status="ok", exit_code=0)
                return replace(ended, status="error", exit_code=1)
            case _:
                return None


# Results of deterministic programs are cached.
#
# The rollouts of a group, or of an evaluation, call the same few programs again and again. A cached program reads no
# clock, random numbers or files and nothing outside, so that running it again would give the same answer.

MODULES = frozenset({
    "bisect", "cmath", "collections", "decimal", "fractions", "functools", "heapq", "itertools", "math", "numbers",
    "operator", "re", "string", "textwrap",
})  # fmt: skip
"""Modules that a deterministic program may import."""
_REACHING = frozenset({
    "attrgetter", "bltns", "builtins", "f_builtins", "f_globals", "f_locals", "get_field", "methodcaller", "os", "sys",
})  # fmt: skip
"""Names through which a program may reach other names."""
_BUILTINS = frozenset({
    "breakpoint", "compile", "delattr", "dir", "eval", "exec", "getattr", "globals", "hash", "help", "id", "input",
    "license", "locals", "memoryview", "open", "setattr", "vars",
})  # fmt: skip
"""Builtins that reach other names, or that differ between processes."""
_COMPILING = ("SyntaxError", "IndentationError", "TabError")


class ResultCache:
    """LRU cache of the results of `most` programs. limits: of all their runs."""

    def __init__(self, limits: Limits, most: int = 8192) -> None:
        self._limits, self._most = limits, most
        self._known: OrderedDict[str, Result] = OrderedDict()
        self._running: dict[str, asyncio.Future[None]] = {}

    async def run(self, code: str, call: Callable[[], Awaitable[Result]]) -> Result:
        """Return a program's cached result, with 0 seconds, or run `call`. Waits for a run in progress; if that gives a
        result that is not cached (most limits, a fault), the program runs again."""
        if len(code) > LONGEST:
            return await call()
        if code in self._running:
            await asyncio.wait([self._running[code]])
        if (known := self._known.get(code)) is not None:
            self._known.move_to_end(code)
            return replace(known, seconds=0.0)
        runs = is_deterministic(code)
        if runs is False:
            return await call()
        ended = asyncio.get_running_loop().create_future()
        first = self._running.setdefault(code, ended) is ended
        try:
            result = await call()
            if self._settled(result) and (runs or result.error_type in _COMPILING):
                self._keep(code, result)
            return result
        finally:
            if first:
                del self._running[code]
                ended.set_result(None)

    def _settled(self, result: Result) -> bool:
        """Whether it ended by itself or used up its CPU time: no signal, fault or wall-clock timeout, which depends on
        the machine's load."""
        if result.status == "timeout":
            return 0 < result.seconds < self._limits.wall_seconds
        by_itself = result.exit_code is not None and result.exit_code >= 0
        return result.status == "ok" or (result.status == "error" and by_itself and result.error_type != "MemoryError")

    def _keep(self, code: str, result: Result) -> None:
        if len(result.stdout) + len(result.stderr) + len(result.value or "") <= LONGEST:
            self._known[code] = result
            if len(self._known) > self._most:
                self._known.popitem(last=False)


def is_deterministic(code: str) -> bool | None:
    """Return whether a program's result is deterministic, None on a syntax error.

    Time, limits and addresses of objects (the order of a set of them) do not count. The check is conservative, and no
    protection: it only decides whether the program runs again. None: by our Python's syntax, so that nothing runs.
    """
    tree = parse_program(code)
    return None if tree is None else all(map(_is_plain, ast.walk(tree)))


def _is_plain(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name):
            known = name not in _REACHING and name not in _BUILTINS
            return known and (name == "__name__" or not name.startswith("__"))
        case ast.Attribute(attr=name):
            return name not in _REACHING and not name.startswith("_")
        case ast.MatchClass(kwd_attrs=names):
            return not any(name in _REACHING or name.startswith("_") for name in names)
        case ast.Import(names=names):
            return all(one.name.partition(".")[0] in MODULES for one in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            known = not level and (module or "").partition(".")[0] in MODULES
            return known and not any(one.name.startswith("_") or one.name in _REACHING for one in names)
        case _:
            return True


SMALL_BUDGET = 200
_ADDRESS = re.compile(r" at 0x[0-9a-f]{6,16}>")
"""An address in a repr, `<function f at 0x7f51411e20c0>`, which differs between processes."""


class ObservationFormatter:
    """Formatter of results as observations of at most `output_chars` characters.

    From 200 on they show stdout, the value of the last expression and, after a failure, the traceback, cut in the
    middle if too long. Below, without room for both ends: the head of the output, or Python's own last line
    (`NameError: name 'x' is not defined`). Addresses in reprs of objects, which differ between processes, are shown as
    `0x...`, so that a rollout repeats. Raises ValueError if `output_chars` is below 1.
    """

    def __init__(self, name: str, output_chars: int) -> None:
        if output_chars < 1:
            raise ValueError(f"output_chars is {output_chars}: it must be 1 or more")
        self.name = name
        self._output_chars = output_chars

    def malformed(self, call: ToolCall) -> Observation | None:
        """Report a call without a program, which must not run; rollouts check the whole schema before."""
        if isinstance(call.arguments, dict) and isinstance(call.arguments.get("code"), str):
            return None
        return Observation(call.id, self._cut("malformed call: the arguments hold no 'code' that is text"), "malformed")

    def fault(self, call: ToolCall, error: Exception) -> Observation:
        """Report a sandbox fault as an observation."""
        return Observation(call.id, self._cut(f"sandbox fault: {error}"), "infrastructure", type(error).__name__)

    def observation(self, call: ToolCall, result: Result, notice: str = "") -> Observation:
        """Format a result. notice: a line above the output."""
        return Observation(call.id, self._text(result, notice), result.status, result.error_type, result.seconds)

    def _text(self, result: Result, notice: str) -> str:
        if result.status == "ok":
            shown = _joined(notice, _joined(result.stdout, result.value or ""))
        elif self._output_chars < SMALL_BUDGET:
            shown = _last_line(result)
        else:
            shown = _joined(notice, _joined(result.stdout, result.stderr))
        return self._cut(_ADDRESS.sub(" at 0x...>", shown))

    def _cut(self, text: str) -> str:
        if self._output_chars < SMALL_BUDGET:
            return text[: self._output_chars]
        return cut_middle(text, self._output_chars)


def _joined(first: str, second: str) -> str:
    if first and second and not first.endswith("\n"):
        first += "\n"
    return (first + second).rstrip("\n")


def _last_line(result: Result) -> str:
    """Return the line of stderr that names the error; its message may continue on further lines."""
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    return error_line(lines, result.error_type) or (lines[-1] if lines else (result.error_type or ""))


class PythonTool:
    """Python tool with a fresh interpreter for every call; implements `Tool`.

    output_chars: most characters of an observation. reuse: limits of all calls, if deterministic programs run in
    batches (`BatchRunner`) and their results are cached (`ResultCache`). Random numbers follow from the call's id and
    its code, so that a rollout repeats.
    """

    def __init__(
        self, sandbox: Sandbox, *, name: str = "python", output_chars: int = 2000, reuse: Limits | None = None
    ) -> None:
        self.name = name
        self.spec = python_spec(name)
        self._sandbox = sandbox
        self._formatter = ObservationFormatter(name, output_chars)
        self._repeats = None if reuse is None else ResultCache(reuse)
        self._batches = None if reuse is None else BatchRunner(sandbox, reuse)

    async def __call__(self, call: ToolCall) -> Observation:
        if (malformed := self._formatter.malformed(call)) is not None:
            return malformed
        try:
            if self._repeats is None:
                result = await self._run(call)
            else:
                result = await self._repeats.run(call.code, partial(self._run, call))
        except FAULTS as error:
            return self._formatter.fault(call, error)
        return self._formatter.observation(call, result)

    async def _run(self, call: ToolCall) -> Result:
        if self._batches is not None and is_deterministic(call.code) is not False:
            valid = leaves_nothing(call.code)
            if valid is not False and (found := await self._batches.run(call.code, valid=bool(valid))) is not None:
                return found
        return await self._sandbox.run(call.code, seed=derive("python", call.id, call.code))


class StartSession(Protocol):
    """Function that opens a trajectory's first or next interpreter."""

    async def __call__(self, *, seed: int) -> Session: ...


RESTARTED = "[The interpreter was restarted: variables and files are gone.]"


class PythonSessions:
    """Python tool with a session for every trajectory; implements `StatefulTool`.

    output_chars: most characters of an observation. limits: of each call, None: the sandbox's. Random numbers follow
    from the trajectory's id and the number of restarts on the way to its state, so that a rollout repeats.
    """

    def __init__(
        self, sandbox: Sandbox, *, name: str = "python", output_chars: int = 2000, limits: Limits | None = None
    ) -> None:
        self.name = name
        self.spec = python_spec(name, keeps_state=True)
        self._sandbox, self._limits = sandbox, limits
        self._formatter = ObservationFormatter(name, output_chars)

    async def open(self, trajectory: str) -> OpenTool:
        start = partial(self._sandbox.session, limits=self._limits)
        return await PythonSession.open(start, self._formatter, trajectory)


class PythonSession:
    """One trajectory's Python session; implements `OpenTool`.

    After code that ends its interpreter, the next call has a fresh one, with a notice. So it is after code that made
    its own state unavailable (it ended the frozen copies): that must not become an infrastructure fault, which drops
    the rollout. A state that cannot be kept (open threads, processes and sockets, folders nested too deep) stays as it
    is: CheckpointRefused. If the sandbox lost the session (evicted, worker died), every further call is
    `infrastructure`.
    """

    def __init__(self, start: StartSession, session: Session, formatter: ObservationFormatter, trajectory: str) -> None:
        self.name = formatter.name
        self.spec = python_spec(self.name, keeps_state=True)
        self._start = start
        self._session = session
        self._formatter = formatter
        self._trajectory = trajectory
        self._restarts = 0
        self._notice = ""  # for the next observation
        self._named = 0
        self._checkpoints: dict[str, tuple[Session, str, str, int]] = {}  # session, its name there, notice, restarts

    @classmethod
    async def open(cls, start: StartSession, formatter: ObservationFormatter, trajectory: str) -> Self:
        """Open a trajectory's session. Raises InfrastructureFault."""
        try:
            session = await start(seed=derive("python", trajectory))
        except FAULTS as error:
            raise InfrastructureFault(f"no interpreter for trajectory {trajectory}: {error}") from error
        return cls(start, session, formatter, trajectory)

    async def __call__(self, call: ToolCall) -> Observation:
        if (malformed := self._formatter.malformed(call)) is not None:
            return malformed
        try:
            try:
                result = await self._session.run(call.code)
            except SessionLost as error:
                await self._restart(error)
                result = await self._session.run(call.code)
        except FAULTS as error:
            return self._formatter.fault(call, error)
        notice, self._notice = self._notice, ""
        return self._formatter.observation(call, result, notice)

    async def checkpoint(self) -> str:
        try:
            try:
                name = await self._session.checkpoint()
            except SessionLost as error:
                await self._restart(error)
                name = await self._session.checkpoint()
        except CheckpointRefused:
            raise
        except FAULTS as error:
            raise InfrastructureFault(f"no checkpoint: {error}") from error
        self._named += 1
        own = f"state {self._named}"
        self._checkpoints[own] = (self._session, name, self._notice, self._restarts)
        return own

    async def rollback(self, checkpoint: str) -> None:
        if checkpoint not in self._checkpoints:
            raise InfrastructureFault(f"no checkpoint {checkpoint!r}: it was discarded or never made")
        session, name, notice, self._restarts = self._checkpoints[checkpoint]
        try:
            try:
                await session.rollback(name)
            except SessionLost as error:
                await self._restart(error)
                name = await self._session.checkpoint()
                self._checkpoints[checkpoint] = (self._session, name, RESTARTED, self._restarts)
                await self._close_unless_needed(session)
                return
        except FAULTS as error:
            raise InfrastructureFault(f"cannot go back to {checkpoint!r}: {error}") from error
        left, self._session, self._notice = self._session, session, notice
        await self._close_unless_needed(left)

    async def discard(self, checkpoint: str) -> None:
        if checkpoint in self._checkpoints:
            session, name, *_ = self._checkpoints.pop(checkpoint)
            await session.discard(name)
            await self._close_unless_needed(session)

    async def close(self) -> None:
        for session in {self._session, *(used[0] for used in self._checkpoints.values())}:
            await session.close()
        self._checkpoints.clear()

    async def _restart(self, cause: SessionLost) -> None:
        """Continue in a fresh session; the old one stays while it holds checkpoints. Raises `cause` if the sandbox is
        at fault."""
        if not cause.by_own_code:
            raise cause
        self._restarts += 1
        seed = derive("python", self._trajectory, self._restarts)
        left, self._session = self._session, await self._start(seed=seed)
        self._notice = RESTARTED
        await self._close_unless_needed(left)

    async def _close_unless_needed(self, session: Session) -> None:
        if session is not self._session and all(session is not used[0] for used in self._checkpoints.values()):
            await session.close()


class Python(ToolKind):
    """`tools = ["python"]`."""

    def spec(self, *, sessions: bool) -> ToolSpec:
        return python_spec(keeps_state=sessions)

    def build(self, setup: ToolSetup) -> Tool | StatefulTool:
        if setup.sessions:
            return PythonSessions(setup.sandbox, output_chars=setup.output_chars)
        return PythonTool(setup.sandbox, output_chars=setup.output_chars, reuse=setup.reuse)
