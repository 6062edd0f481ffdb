"""Python, with a memory where `sandbox.sessions` says so."""

from __future__ import annotations

import ast
import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Protocol, Self

from retcon.core.errors import CheckpointRefused, InfrastructureFault, RetconError, SessionLost
from retcon.core.programs import error_line, parse_program
from retcon.core.seeds import derive
from retcon.core.types import Observation, ToolCall, ToolSpec
from retcon.sandbox.jail.capture import cut_middle
from retcon.sandbox.types import Limits, Result, Sandbox, Session
from retcon.tools.loading import ToolKind, ToolSetup
from retcon.tools.schema import python_spec
from retcon.tools.types import OpenTool, StatefulTool, Tool

# Programs that were called before: what one came to, where that follows from its text alone.
#
# The rollouts of a group call the same few programs over and over, and so do those of an evaluation. Nothing that reads
# a clock, random numbers, files or what is outside is among them, so the answer is one that running it again would
# give.

MODULES = frozenset({
    "bisect", "cmath", "collections", "decimal", "fractions", "functools", "heapq", "itertools", "math", "numbers",
    "operator", "re", "string", "textwrap",
})  # fmt: skip
"""What a program may import, and still follow from its text."""
_REACHING = frozenset({
    "attrgetter", "bltns", "builtins", "f_builtins", "f_globals", "f_locals", "get_field", "methodcaller", "os", "sys",
})  # fmt: skip
"""Names, of whatever, by which it may get at more than it says."""
_BUILTINS = frozenset({
    "breakpoint", "compile", "delattr", "dir", "eval", "exec", "getattr", "globals", "hash", "help", "id", "input",
    "license", "locals", "memoryview", "open", "setattr", "vars",
})  # fmt: skip
"""The same, or what differs from one process to the next, among what needs no import."""
_COMPILING = ("SyntaxError", "IndentationError", "TabError")
LONGEST = 4000
"""Characters of a program, and of what it came to, that are kept at most."""


class ResultCache:
    """What up to `most` programs came to, those that were called last. limits: under which all of them run."""

    def __init__(self, limits: Limits, most: int = 8192) -> None:
        self._limits, self._most = limits, most
        self._known: OrderedDict[str, Result] = OrderedDict()
        self._running: dict[str, asyncio.Future[None]] = {}

    async def run(self, code: str, call: Callable[[], Awaitable[Result]]) -> Result:
        """What `call`, which runs the program, gives, or gave before: then in 0 seconds. One that is running is waited
        for; where that comes to what cannot be kept (most limits, a fault), the program runs once more."""
        if len(code) > LONGEST:
            return await call()
        if code in self._running:
            await asyncio.wait([self._running[code]])
        if (known := self._known.get(code)) is not None:
            self._known.move_to_end(code)
            return replace(known, seconds=0.0)
        runs = follows_from_text(code)
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
        """Whether it ended by itself, or had used up its CPU time: no signal, no fault, and not the wall's clock, which
        goes by what else the machine does."""
        if result.status == "timeout":
            return 0 < result.seconds < self._limits.wall_seconds
        by_itself = result.exit_code is not None and result.exit_code >= 0
        return result.status == "ok" or (result.status == "error" and by_itself and result.error_type != "MemoryError")

    def _keep(self, code: str, result: Result) -> None:
        if len(result.stdout) + len(result.stderr) + len(result.value or "") <= LONGEST:
            self._known[code] = result
            if len(self._known) > self._most:
                self._known.popitem(last=False)


def follows_from_text(code: str) -> bool | None:
    """Whether a fresh interpreter can do but one thing with a program, time, limits and the addresses of objects (the
    order of a set of them) aside; None where Python does not take it, as far as ours says: then nothing of it runs.

    True errs on the side of caution, and is no protection: the sandbox contains what is run, this only decides whether
    it runs again.
    """
    tree = parse_program(code)
    return None if tree is None else all(map(_plain, ast.walk(tree)))


def _plain(node: ast.AST) -> bool:
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
FAULTS = (RetconError, OSError, ValueError)
"""What a sandbox raises through no fault of the program; ValueError: its server refuses a request, such as one for more
seconds than it allows."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]{6,16}>")
"""As a repr has it, `<function f at 0x7f51411e20c0>`: another one in every process."""


class ObservationFormatter:
    """Formats results as observations of `output_chars` characters at most.

    From 200 on they show stdout, the value of the last expression and, after a failure, the traceback, the middle cut
    where it is too long. Below, where there is no room for both ends: the head of the output, or Python's own last line
    (`NameError: name 'x' is not defined`). Addresses in the reprs of objects, which are others in every process, are
    shown as `0x...`, so that the same rollout reads the same again. Raises ValueError where `output_chars` is below 1.
    """

    def __init__(self, name: str, output_chars: int) -> None:
        if output_chars < 1:
            raise ValueError(f"output_chars is {output_chars}: it must be 1 or more")
        self.name = name
        self._output_chars = output_chars

    def malformed(self, call: ToolCall) -> Observation | None:
        """Report a call that holds no program, which must not be run; rollouts check the whole schema before."""
        if isinstance(call.arguments, dict) and isinstance(call.arguments.get("code"), str):
            return None
        return Observation(call.id, self._cut("malformed call: the arguments hold no 'code' that is text"), "malformed")

    def fault(self, call: ToolCall, error: Exception) -> Observation:
        """Report a sandbox fault as an observation."""
        return Observation(call.id, self._cut(f"sandbox fault: {error}"), "infrastructure", type(error).__name__)

    def observation(self, call: ToolCall, result: Result, notice: str = "") -> Observation:
        """notice: a line above the output."""
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
    """The line of stderr that names what ended the call; a message may go on for further lines after it."""
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    return error_line(lines, result.error_type) or (lines[-1] if lines else (result.error_type or ""))


class PythonTool:
    """Implements `retcon.tools.types.Tool` over a sandbox: a fresh interpreter for every call.

    output_chars: characters of an observation at most (`retcon.tools.kinds.python`). reuse: the limits of all
    calls, where a program that was called before, and can come to but one thing, is to be answered with that
    (`retcon.tools.kinds.python`). Random numbers follow from the call's id and its code, so that a rollout repeats.
    """

    def __init__(
        self, sandbox: Sandbox, *, name: str = "python", output_chars: int = 2000, reuse: Limits | None = None
    ) -> None:
        self.name = name
        self.spec = python_spec(name)
        self._sandbox = sandbox
        self._formatter = ObservationFormatter(name, output_chars)
        self._repeats = None if reuse is None else ResultCache(reuse)

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
        return await self._sandbox.run(call.code, seed=derive("python", call.id, call.code))


class StartSession(Protocol):
    """Opens the interpreter of a trajectory, and a further one where its code ended that."""

    async def __call__(self, *, seed: int) -> Session: ...


RESTARTED = "[The interpreter was restarted: variables and files are gone.]"


class PythonSessions:
    """Implements `retcon.tools.types.StatefulTool` over a sandbox: a session for every trajectory.

    output_chars: characters of an observation at most. limits: of each call, the sandbox's own
    where None. Random numbers follow from the trajectory's id, and from how often its interpreter was restarted on the
    way to where it is now, so that a rollout repeats.
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
    """Implements `retcon.tools.types.OpenTool`.

    Code that ends its interpreter has that as its own observation, and the next call a fresh interpreter, which is
    said. So has code whose state cannot be gone back to through its own doing (it ended the frozen copies): it must not
    come out as a fault of ours, for which a rollout is dropped. A state that cannot be kept (threads, processes and
    sockets that are open, folders nested too deep) stays as it is: CheckpointRefused. Where the sandbox lost the
    session (evicted, worker died), every further call is `infrastructure`.
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
        """Raises InfrastructureFault."""
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
            raise InfrastructureFault(f"no checkpoint {checkpoint!r} to go back to")
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
        """Go on in a fresh session; the old one stays while there are checkpoints in it. Raises `cause` where that is
        the sandbox's fault."""
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
