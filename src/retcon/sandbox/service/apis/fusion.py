"""SandboxFusion's `/run_code`, as verl's client speaks it.

Kept of its meaning: `Success` for exit code 0, `Failed` for any other and for a time limit, `SandboxError` for the
sandbox's own faults; a run that hit its time limit has no return code; files travel in base64; of output the first MiB
is kept, of stdout and of stderr each; fields that it does not know are let pass.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from retcon.core.errors import SandboxUnavailable, SessionLost
from retcon.http.handling import RequestRefused, answer, parse, read_body, unless_gone
from retcon.sandbox.service.apis.languages import Languages, Ran
from retcon.sandbox.service.calls import Calls, check_paths, check_text, decode_files, own_stderr, unavailable
from retcon.sandbox.types import Limits, Program, Result, Session

API = "sandbox_fusion"
POD = "MY_POD_NAME"
"""The environment variable whose value is answered as `executor_pod_name`."""
Whole = Literal["Success", "Failed", "SandboxError"]
Seconds = Annotated[float, Meta(gt=0)]
SECONDS = 10.0
"""SandboxFusion's own, for compiling and for running, where a request names none."""


class RunCode(Struct, kw_only=True):
    """A program to run. compile_timeout, run_timeout: SandboxFusion's 10 s, or the most that is allowed here, where
    absent. memory_limit_MB: MiB; 0 and below take the server's own. args: pytest's.

    files: path to content in base64. Paths are relative to the program's folder or, in the tier `namespaces`, below
    /tmp, /dev/shm, /mnt, /data or /workspace, of which the last three are one folder.
    """

    code: str
    language: str
    compile_timeout: Seconds | None = None
    run_timeout: Seconds | None = None
    memory_limit_MB: int = -1
    stdin: str | None = None
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []
    args: list[str] = []


class Command(Struct, kw_only=True):
    """How the compiler or the program ended. execution_time: seconds."""

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class CodeRan(Struct, kw_only=True):
    """What `/run_code` answers. files: path to content in base64."""

    status: Whole
    message: str = ""
    compile_result: Command | None = None
    run_result: Command | None = None
    executor_pod_name: str | None = None
    files: dict[str, bytes] = {}


class FusionApi:
    """The handler of `/run_code`."""

    def __init__(self, calls: Calls, languages: Languages) -> None:
        self._calls = calls
        self._languages = languages

    async def run_code(self, request: Request) -> Response:
        asked = parse(await read_body(request, self._calls.settings.max_body), RunCode)
        return await answered(self._calls, unless_gone(request, self._run(asked)), CodeRan)

    async def _run(self, asked: RunCode) -> CodeRan:
        calls, settings = self._calls, self._calls.settings
        if (problem := calls.too_long(asked.code)) is not None:
            raise RequestRefused.invalid("code", problem)
        limits = bounded(calls, "run_timeout", asked.run_timeout, SECONDS, asked.memory_limit_MB)
        calls.check_bounds({"compile_timeout": asked.compile_timeout}, {})
        compile_seconds = asked.compile_timeout or min(SECONDS, settings.max_timeout)
        # Who names a time for compiling waits for that long too: it may go into waiting where nothing is compiled.
        spare = compile_seconds if asked.language != "cpp" else 0.0
        program = Program(
            asked.code,
            stdin=check_text(asked.stdin or "", "stdin"),
            files=decode_files(asked.files, "files", calls.tier, calls.folders),
            fetch=check_paths(asked.fetch_files, "fetch_files", calls.tier, calls.folders),
            limits=limits,
            wait=settings.fusion_wait + spare,
        )
        arguments = [check_text(argument, f"args[{index}]") for index, argument in enumerate(asked.args)]
        if (problem := await self._languages.problem(asked.language)) is not None:
            raise RequestRefused.invalid("language", problem)
        limits = limits.with_(compile_seconds)
        ran = await self._languages.run(API, asked.language, program, arguments=arguments, compile_limits=limits)
        return _from_steps(ran, settings.fusion_bytes)


def bounded(calls: Calls, field: str, seconds: float | None, usual: float, mib: int) -> Limits:
    """The limits of a program, whose output is kept as far as this API gives it.

    field: which says how long it may run, `seconds`, or `usual` where that is allowed and it says nothing. Raises
    RequestRefused for one above what the service allows.
    """
    memory = mib if mib > 0 else None
    calls.check_bounds({field: seconds}, {"memory_limit_MB": memory})
    # Twice as much as is given, since the sandbox keeps head and tail: the head is then as long as what is given.
    limits = replace(calls.settings.limits, output_bytes=2 * calls.settings.fusion_bytes)
    return limits.with_(seconds or min(usual, calls.settings.max_timeout), memory)


async def answered(calls: Calls, work: Awaitable[Struct], kind: Callable[..., Struct]) -> Response:
    """What `work` comes to, or `kind` with status `SandboxError` where there is no room for it.

    That goes out as 504, the one status after which verl's client asks again; SandboxFusion's own does after any.
    """
    try:
        return answer(await work)
    except RequestRefused as refused:
        if refused.status != HTTPStatus.SERVICE_UNAVAILABLE:
            raise
        calls.metrics.answered(API, refused.kind, 0.0)
        said = kind(status="SandboxError", message=refused.message, executor_pod_name=pod())
        return answer(said, HTTPStatus.GATEWAY_TIMEOUT, dict(refused.headers or {}))


def pod() -> str | None:
    return os.environ.get(POD)


def head(text: str, most: int) -> str:
    """The first `most` bytes of its UTF-8."""
    return text if len(text) * 4 <= most else text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


def _from_steps(ran: Ran, most: int) -> CodeRan:
    last = ran.last
    whole: Whole = "Success" if ran.started and last.status == "ok" else "Failed"
    message = ""
    if last.status == "infrastructure":
        whole, message = "SandboxError", last.stderr
    return CodeRan(
        status=whole,
        message=message,
        compile_result=None if ran.compiled is None else _command(ran.compiled, most),
        run_result=_command(last, most) if ran.started else None,
        executor_pod_name=pod(),
        files=dict(last.files) if ran.started else {},
    )


def _command(result: Result, most: int) -> Command:
    if result.status == "infrastructure":
        return Command(status="Error", stdout=head(result.stdout, most), stderr=head(result.stderr, most))
    late = result.status == "timeout"
    return Command(
        status="TimeLimitExceeded" if late else "Finished",
        execution_time=result.seconds,
        return_code=None if late else result.exit_code,
        stdout=head(result.stdout, most),
        stderr=head(own_stderr(result), most),
    )


# SandboxFusion's `/run_jupyter`: the cells of a notebook, in one session that is closed at their end.
#
# Kept of its meaning: a cell that raises does not stop those behind it; the value of a cell's last expression and the
# figures that it drew are its `display`; an exception is its `error` and no part of its `stderr`. Cells that the time
# for all of them leaves no room for are not run. The status is `Failed` where that time was too short, be it for the
# last cell, and where a cell has ended the interpreter.

TOTAL_SECONDS = 45.0
"""SandboxFusion's own, for all cells, where a request names none."""
OWN_SECONDS = 10.0
"""For what is run between cells, files and figures, each time."""
_TRACEBACK = "Traceback (most recent call last):\n"
_CHAINED = (
    "\nDuring handling of the above exception, another exception occurred:\n\n",
    "\nThe above exception was the direct cause of the following exception:\n\n",
)

# They run inside the session, with the program's rights and at its mercy: what they print is the program's word.
_PUT = """for _name, _content in {files!r}.items():
    __import__('os').makedirs(__import__('os').path.dirname(_name), exist_ok=True)
    open(_name, 'wb').write(__import__('base64').b64decode(_content))
del _name, _content
"""
_DRAW = """def _draw():
    import base64, io, sys
    drawn, pyplot = [], sys.modules.get('matplotlib.pyplot')
    for number in pyplot.get_fignums() if pyplot else ():
        out = io.BytesIO()
        pyplot.figure(number).savefig(out, format='png', bbox_inches='tight')
        png = base64.b64encode(out.getvalue()).decode()
        drawn.append({'text/plain': repr(pyplot.figure(number)), 'image/png': png})
    if pyplot:
        pyplot.close('all')
    return drawn
open(1, 'w', closefd=False).write(__import__('json').dumps(_draw()))
del _draw
"""


class RunJupyter(Struct, kw_only=True):
    """Cells to run. cell_timeout: seconds, 0 for no limit but total_timeout's, which is SandboxFusion's 45 s, or the
    most that is allowed here, where absent. memory_limit_MB, files: see RunCode."""

    cells: list[str]
    cell_timeout: Annotated[float, Meta(ge=0)] = 0.0
    total_timeout: Seconds | None = None
    memory_limit_MB: int = -1
    kernel: Literal["python3"] = "python3"
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []


class Raised(Struct, kw_only=True):
    """An exception: its class's name, what it says, and its traceback's lines."""

    ename: str
    evalue: str
    traceback: list[str]


class CellRan(Struct, kw_only=True):
    """display: of each thing shown, its kinds (`text/plain`, `image/png` in base64) and their content."""

    stdout: str = ""
    stderr: str = ""
    display: list[dict[str, str]] = []
    error: list[Raised] = []


class JupyterRan(Struct, kw_only=True):
    """What `/run_jupyter` answers. driver: how the whole went."""

    status: Whole
    message: str = ""
    driver: Command | None = None
    cells: list[CellRan] = []
    executor_pod_name: str | None = None
    files: dict[str, str] = {}


class JupyterApi:
    """The handler of `/run_jupyter`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def run_jupyter(self, request: Request) -> Response:
        asked = parse(await read_body(request, self._calls.settings.max_body), RunJupyter)
        return await answered(self._calls, unless_gone(request, self._run(asked)), JupyterRan)

    async def _run(self, asked: RunJupyter) -> JupyterRan:
        calls = self._calls
        for index, cell in enumerate(asked.cells):
            if (problem := calls.too_long(cell)) is not None:
                raise RequestRefused.invalid(f"cells[{index}]", problem)
        limits = bounded(calls, "total_timeout", asked.total_timeout, TOTAL_SECONDS, asked.memory_limit_MB)
        calls.check_bounds({"cell_timeout": asked.cell_timeout}, {})
        files = decode_files(asked.files, "files", calls.tier, calls.folders)
        fetch = check_paths(asked.fetch_files, "fetch_files", calls.tier, calls.folders)
        try:
            async with asyncio.timeout(calls.settings.fusion_wait):
                session = await calls.sandbox.session(limits=limits)
            try:
                # For a worker, the files that are put, the cells, and the files that are fetched.
                async with asyncio.timeout(calls.settings.fusion_wait + limits.wall_seconds + 3 * OWN_SECONDS):
                    return await _Notebook(calls, session, limits, asked.cell_timeout).run(asked.cells, files, fetch)
            finally:
                await session.close()
        except TimeoutError:
            raise RequestRefused(503, "busy", "its cells had to wait for too long: try again later") from None
        except SandboxUnavailable as error:
            raise unavailable(error, "busy") from error


class SandboxFault(Exception):
    """What a cell, or what is run between cells, came to through no fault of the notebook."""


class _Notebook:
    """One request's session, and the time that its cells have left; late: it was too short for them."""

    def __init__(self, calls: Calls, session: Session, limits: Limits, cell_seconds: float) -> None:
        self._calls = calls
        self._session = session
        self._limits = limits
        self._cell_seconds = cell_seconds
        self._left = limits.wall_seconds
        self._late = False
        self._most = calls.settings.fusion_bytes
        self._imports = False
        self._begun = False

    async def run(self, cells: list[str], files: dict[str, bytes], fetch: list[str]) -> JupyterRan:
        started = time.monotonic()
        ran: list[CellRan] = []
        found: dict[str, str] = {}
        alive, problem = True, ""
        try:
            await self._put(files)
            for cell in cells:
                if self._left <= 0:
                    self._late = True
                    break
                result = await self._cell(cell)
                ran.append(self._shown(result))
                alive = result.exit_code is None  # a cell may end the interpreter, as one may end a notebook's kernel
                if alive:
                    ran[-1].display += await self._drawn(cell)
            if fetch and alive:
                result = await self._asked(Program("pass", limits=self._limits.with_(OWN_SECONDS), fetch=fetch))
                found = {name: base64.b64encode(content).decode() for name, content in result.files.items()}
        except SandboxFault as fault:
            problem = str(fault)
        except SessionLost as lost:
            alive = False
            if lost.by_own_code:
                ran += [CellRan(error=[Raised(ename="DeadKernelError", evalue=str(lost), traceback=[])])]
            else:
                problem = str(lost)
        whole: Whole = "SandboxError" if problem else "Success" if alive and not self._late else "Failed"
        driver = Command(
            status="Error" if problem else "TimeLimitExceeded" if self._late else "Finished",
            execution_time=time.monotonic() - started,
            return_code=None if problem or self._late else int(not alive),
            stdout="",
            stderr="",
        )
        return JupyterRan(status=whole, message=problem, driver=driver, cells=ran, executor_pod_name=pod(), files=found)

    async def _cell(self, code: str) -> Result:
        left = self._left
        seconds = min(left, self._cell_seconds or left)
        result = await self._asked(Program(code, limits=self._limits.with_(seconds)))
        self._left -= result.seconds
        if result.status == "timeout" and seconds == left:
            self._left, self._late = 0.0, True
        return result

    async def _put(self, files: dict[str, bytes]) -> None:
        """Relative ones as any call's; absolute ones from inside, where they can be no one else's."""
        beside = {name: base64.b64encode(content) for name, content in files.items() if name.startswith("/")}
        near = {name: content for name, content in files.items() if name not in beside}
        if files:
            code = _PUT.format(files=beside) if beside else "pass"
            put = Program(code, limits=self._limits.with_(OWN_SECONDS), echo=False, files=near)
            result = await self._asked(put)
            if result.status != "ok":
                raise RequestRefused.invalid("files", f"they cannot be written: {result.stderr}")

    async def _drawn(self, code: str) -> list[dict[str, str]]:
        """The figures that are open, which are closed. Drawing them is the program's work, on its time.

        Asked for once a cell has imported anything: what draws may be pandas or a module of the program's own.
        """
        self._imports = self._imports or "import" in code
        if not self._imports or self._left <= 0:
            return []
        limits = replace(self._limits.with_(min(self._left, OWN_SECONDS)), output_bytes=16 * self._most)
        result = await self._asked(Program(_DRAW, limits=limits, echo=False))
        self._left -= result.seconds
        self._late = self._late or self._left <= 0
        if result.status == "ok":
            with contextlib.suppress(ValueError, msgspec.DecodeError):  # the program could print anything
                return msgspec.json.decode(result.stdout, type=list[dict[str, str]])
        return []

    async def _asked(self, cell: Program) -> Result:
        """A notebook that has begun waits for room rather than lose what its cells have come to. Raises SandboxFault,
        SessionLost."""
        result = await self._calls.run(API, lambda: self._session.run(cell), patient=self._begun)
        self._begun = True
        if result.status == "infrastructure":
            raise SandboxFault(result.stderr)
        return result

    def _shown(self, result: Result) -> CellRan:
        stderr, error = result.stderr, []
        if result.error_type is not None:
            stderr, trace = _parted(result.stderr)
            lines = trace.rstrip("\n").split("\n")
            error = [Raised(ename=result.error_type, evalue=_evalue(lines, result.error_type), traceback=lines)]
        display = [] if result.value is None else [{"text/plain": result.value}]
        return CellRan(
            stdout=head(result.stdout, self._most), stderr=head(stderr, self._most), display=display, error=error
        )


def _parted(stderr: str) -> tuple[str, str]:
    """What a cell wrote to stderr, and the report of the exception that ended it, which the sandbox put behind it.

    For show alone: a program that prints a traceback of its own, as its last words, may move the border.
    """
    start = stderr.rfind(_TRACEBACK)
    if start < 0:
        start = stderr.rfind('  File "<')  # a syntax error's
    if start < 0:  # one line says which of the sandbox's limits it was
        start = stderr[:-1].rfind("\n") + 1
    while stderr.endswith(_CHAINED, 0, start) and (before := stderr.rfind(_TRACEBACK, 0, start)) >= 0:
        start = before
    return stderr[:start], stderr[start:]


def _evalue(lines: list[str], ename: str) -> str:
    """What the exception says: behind its name, on the last line that begins with that."""
    for index in range(len(lines) - 1, -1, -1):
        name, _, said = lines[index].partition(": ")
        if name.rpartition(".")[2] == ename:
            return "\n".join([said, *lines[index + 1 :]])
    return ""
