"""APIs of other code execution services: code-judge and SandboxFusion.

code-judge's fields, as rStar2-Agent's and CLEANER's clients read them: `run_success` means exit code 0, `success` also
that the output equals `expected_output`, if given, apart from white space at both ends; `cost` is in seconds. Unlike
there, no call is dropped after a long wait, and a program's own text cannot change `cost`. Types: `python`, and `cpp`
if g++ is installed; in a batch only the entry of another type fails.

SandboxFusion's, as verl's client reads them: `Success` for exit code 0, `Failed` for any other and for a time limit,
`SandboxError` for the sandbox's own faults; a run that hit its time limit has no return code; files are in base64; the
first MiB of stdout and of stderr is kept. `/run_jupyter`: cells run in one session; one that raises does not stop the
next; the value of a cell's last expression and its figures are its `display`; an exception is its `error`, not part of
its `stderr`. Cells without time left are not run. The status is `Failed` if the time for all cells was too short, or a
cell has ended the interpreter.

Unknown fields are ignored by both.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from retcon.core.concurrency import gather_or_cancel
from retcon.core.errors import SandboxUnavailable, SessionLost, nearest
from retcon.http.endpoints import Handler, RequestRefused, json_response
from retcon.sandbox.jail.scratch import TOTAL_BYTES
from retcon.sandbox.service.calls import Calls, check_paths, check_text, decode_files, fit_text, strip_exit, unavailable
from retcon.sandbox.types import Limits, Program, Result, Session

PYTHON = "python"
PROCESSES = ("bash", "cpp")
"""Languages whose programs, or compiler, start processes; the weaker tiers allow only threads."""
COMPILE_MIB = 1024
"""For the compiler, whatever its program may use: the standard headers alone take about 300."""
COMPILE_SECONDS = 10.0
"""For the compiler, without a timeout of the client."""

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
class Steps:
    """Results of a program. last: of the program or, if not `started`, of its compiler. compiled: the compiler's."""

    last: Result
    compiled: Result | None = None
    started: bool = True


class Languages:
    """Languages that the sandbox supports, which it is asked at first use.

    It may see less than this process, and another interpreter's packages.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._there: frozenset[str] | None = None
        self._asking = asyncio.Lock()

    async def problem(self, language: str) -> str | None:
        """Return why a language is not supported, None if it is. Raises RequestRefused (503) if that is unknown now."""
        if language == PYTHON:
            return None
        message = f"language '{language}' is not served here"
        if language not in _NEEDS:
            served = [PYTHON, *sorted(await self._found())]
            return f"{message}{nearest(language, served)}: only {', '.join(served)}"
        if language in PROCESSES and self._calls.tier != "namespaces":
            here = f"and this is '{self._calls.tier}'"
            return f"{message}: it starts processes, which only the tier 'namespaces' allows, {here}"
        return None if language in await self._found() else f"{message}: it needs {_NEEDS[language]}"

    async def run(
        self,
        api: str,
        language: str,
        program: Program,
        *,
        arguments: Sequence[str] = (),
        compile_limits: Limits,
        patient: bool = False,
    ) -> Steps:
        """Run a program of a language. arguments: pytest's. compile_limits: of a compiler.

        Its `wait` is shared with a compiler's; it has no value. patient: see `Calls.run`. Raises RequestRefused as
        `Calls.run`.
        """

        async def call(asked: Program) -> Result:
            return await self._calls.run(api, lambda: self._calls.sandbox.run(asked), patient=patient)

        program = replace(program, echo=False)
        if language == PYTHON:
            return Steps(await call(program))
        files, text = program.files, _encoded(program.code)
        if language == "pytest":
            name = _free("program.py", files)
            return Steps(await call(_with_driver(program, _PYTEST, [name, *arguments], {name: text})))
        if language == "bash":
            name = _free("program.sh", files)
            return Steps(await call(_with_driver(program, _EXECUTE, ["/bin/bash", name], {name: text})))
        source, binary = _free("program.cpp", files), _free("program", files)
        command = ["g++", "-std=c++17", "-O2", "-pthread", source, "-o", binary]
        started = time.monotonic()
        memory = max((program.limits or self._calls.settings.limits).memory_mb, COMPILE_MIB)
        compiler = replace(program, limits=replace(compile_limits, memory_mb=memory), fetch=[binary], stdin="")
        compiled = await call(_with_driver(compiler, _COMPILE, command, {source: text}))
        made = compiled.files.get(binary)
        if compiled.status == "ok" and made is None:
            compiled = _too_large(compiled)
        if compiled.status != "ok" or made is None:
            return Steps(compiled, compiled, started=False)
        if program.wait is not None:
            waited = time.monotonic() - started - compiled.seconds
            program = replace(program, wait=max(program.wait - waited, 0.0))
        return Steps(await call(_with_driver(program, _EXECUTE, [f"./{binary}"], {binary: made})), compiled)

    async def _found(self) -> frozenset[str]:
        async with self._asking:  # once for concurrent requests
            if self._there is None:
                try:
                    result = await self._calls.sandbox.run(_PROBE, echo=False, wait=self._calls.settings.fusion_wait)
                except SandboxUnavailable as error:
                    raise unavailable(error, "busy") from error
                if result.status != "ok":  # a temporary fault: the next request asks again
                    raise unavailable(SandboxUnavailable(f"the installed packages cannot be listed: {result.stderr}"))
                there = frozenset(json.loads(result.stdout))
                self._there = there if self._calls.tier == "namespaces" else there - set(PROCESSES)
            return self._there


def _with_driver(program: Program, driver: str, arguments: Sequence[str], files: Mapping[str, bytes]) -> Program:
    """Return the program as run by `driver`, with `arguments` and these files."""
    return replace(program, code=driver.format(arguments=list(arguments)), files={**program.files, **files})


def _too_large(compiled: Result) -> Result:
    """Return the compiler's result for a binary that is too large to move to the program's call."""
    stderr = f"{compiled.stderr}OSError: the program is larger than {TOTAL_BYTES >> 20} MiB\n"
    return replace(compiled, status="limit", error_type="OSError", stderr=stderr, exit_code=1)


def _free(name: str, taken: Container[str]) -> str:
    """Return the name, with `_` in front until no file of the client has it."""
    while name in taken:
        name = f"_{name}"
    return name


def _encoded(code: str) -> bytes:
    """Encode code; lone surrogates, which JSON can hold, become bytes that the compiler or shell refuses."""
    return code.encode("utf-8", "surrogatepass")


Reason = Literal["", "internal_error", "worker_timeout", "queue_timeout", "invalid_input"]
CODE_JUDGE, FUSION = "code_judge", "sandbox_fusion"  # in metrics


class Submission(Struct, kw_only=True):
    """A program to run. options: for types that are not served here."""

    type: str
    solution: str
    input: str | None = None
    expected_output: str | None = None
    sub_id: str | None = None
    options: dict[str, str] | None = None


class BatchSubmission(Struct, kw_only=True):
    submissions: Annotated[list[Submission], Meta(min_length=1)]
    sub_id: str | None = None
    type: Literal["batch"] = "batch"


class JudgeResult(Struct):
    """Answer of `/judge` to a submission."""

    sub_id: str
    success: bool
    run_success: bool
    cost: float
    reason: Reason


class RunResult(JudgeResult):
    """Answer of `/run` to a submission."""

    stdout: str | None
    stderr: str | None


class BatchRunResult(Struct):
    """Answer of the batches below `/run`."""

    sub_id: str
    results: list[RunResult]


class BatchJudgeResult(Struct):
    """Answer of the batches below `/judge`."""

    sub_id: str
    results: list[JudgeResult]


class Status(Struct):
    """Answer of `/status`. queue: waiting calls. num_workers: concurrent calls."""

    queue: int
    num_workers: int


class CodeJudgeApi:
    """`/run`, `/judge`, their batches and `/status`. Raises RequestRefused."""

    def __init__(self, calls: Calls, languages: Languages) -> None:
        self._calls = calls
        self._languages = languages

    async def run(self, submission: Submission) -> RunResult:
        if (problem := await self._type_problem(submission)) is not None:
            raise RequestRefused.invalid("type", problem)
        return await self._run(submission, patient=False)

    async def judge(self, submission: Submission) -> JudgeResult:
        return _judged(await self.run(submission))

    async def run_batch(self, batch: BatchSubmission, *, patient: bool = False) -> BatchRunResult:
        """Run a batch. patient: wait for room, as the long batches do."""
        self._calls.check_count(batch.submissions, "submissions")
        work = [self._run_of_batch(submission, patient=patient) for submission in batch.submissions]
        return BatchRunResult(batch.sub_id or str(uuid.uuid4()), await gather_or_cancel(work))

    async def judge_batch(self, batch: BatchSubmission, *, patient: bool = False) -> BatchJudgeResult:
        ran = await self.run_batch(batch, patient=patient)
        return BatchJudgeResult(ran.sub_id, [_judged(one) for one in ran.results])

    async def status(self, _: Request) -> Response:
        return json_response(Status(self._calls.queued, self._calls.settings.workers))

    async def _run_of_batch(self, submission: Submission, *, patient: bool) -> RunResult:
        """Run a submission of a batch; a refusal is its own result."""
        try:
            return await self._run(submission, patient=patient)
        except RequestRefused as refused:
            unserved = refused.status == HTTPStatus.SERVICE_UNAVAILABLE
            return _not_run(submission, "internal_error" if unserved else "invalid_input", refused.message)

    async def _run(self, submission: Submission, *, patient: bool) -> RunResult:
        calls, expected = self._calls, submission.expected_output
        limits = calls.settings.limits if expected is None else fit_text(calls.settings.limits, expected)
        try:
            stdin = check_text(submission.input or "", "input")
            problem = await self._type_problem(submission) or calls.too_long(submission.solution)
            if problem is not None:
                return _not_run(submission, "invalid_input", problem)
            ran = await self._languages.run(
                CODE_JUDGE,
                submission.type,
                Program(submission.solution, stdin=stdin, limits=limits),
                compile_limits=limits.with_(max(COMPILE_SECONDS, limits.wall_seconds)),
                patient=patient,
            )
        except RequestRefused as refused:
            if refused.field == "input":
                return _not_run(submission, "invalid_input", f"input is {refused.message}")
            if refused.kind != "busy":
                raise
            calls.metrics.answered(CODE_JUDGE, "queue_timeout", 0.0)
            return _not_run(submission, "queue_timeout")
        result = ran.last
        run_success = ran.started and result.status == "ok"
        most = calls.settings.judge_chars
        return RunResult(
            submission.sub_id or str(uuid.uuid4()),
            run_success and (expected is None or result.stdout.strip() == expected.strip()),
            run_success,
            result.seconds,
            _REASONS.get(result.status, ""),
            result.stdout[:most],
            strip_exit(result)[:most],
        )

    async def _type_problem(self, submission: Submission) -> str | None:
        """Return why programs of that type are not supported, None if they are."""
        if submission.type == PYTHON:
            return None
        if submission.type != "cpp":
            return f"type '{submission.type}' is not served here: only python and cpp"
        return await self._languages.problem("cpp")


_REASONS: dict[str, Reason] = {"timeout": "worker_timeout", "infrastructure": "internal_error"}


def _not_run(submission: Submission, reason: Reason, message: str | None = None) -> RunResult:
    return RunResult(submission.sub_id or str(uuid.uuid4()), False, False, 0.0, reason, None, message)


def _judged(ran: RunResult) -> JudgeResult:
    return JudgeResult(ran.sub_id, ran.success, ran.run_success, ran.cost, ran.reason)


POD = "MY_POD_NAME"
"""Environment variable with the value of `executor_pod_name`."""
Whole = Literal["Success", "Failed", "SandboxError"]
Seconds = Annotated[float, Meta(gt=0)]
SECONDS = 10.0
"""SandboxFusion's default timeout for compiling and for running."""


class RunCode(Struct, kw_only=True):
    """A program to run. compile_timeout, run_timeout: by default SandboxFusion's 10 s, at most the server's maximum.
    memory_limit_MB: MiB; the server's if 0 or below. args: pytest's.

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
    """Result of the compiler or the program. execution_time: seconds."""

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class RunCodeResponse(Struct, kw_only=True):
    """Answer of `/run_code`. files: path to content in base64."""

    status: Whole
    message: str = ""
    compile_result: Command | None = None
    run_result: Command | None = None
    executor_pod_name: str | None = None
    files: dict[str, bytes] = {}


class FusionApi:
    """`/run_code` and `/run_jupyter`. Raises RequestRefused."""

    def __init__(self, calls: Calls, languages: Languages) -> None:
        self._calls = calls
        self._languages = languages

    async def run_code(self, asked: RunCode) -> RunCodeResponse:
        calls, settings = self._calls, self._calls.settings
        if (problem := calls.too_long(asked.code)) is not None:
            raise RequestRefused.invalid("code", problem)
        limits = request_limits(calls, "run_timeout", asked.run_timeout, SECONDS, asked.memory_limit_MB)
        calls.check_bounds({"compile_timeout": asked.compile_timeout}, {})
        compile_seconds = asked.compile_timeout or min(SECONDS, settings.max_timeout)
        # A client with a compile timeout waits for that long too: without compiling it extends the wait.
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
        steps = await self._languages.run(FUSION, asked.language, program, arguments=arguments, compile_limits=limits)
        last, most = steps.last, settings.fusion_bytes
        whole: Whole = "Success" if steps.started and last.status == "ok" else "Failed"
        return RunCodeResponse(
            status="SandboxError" if last.status == "infrastructure" else whole,
            message=last.stderr if last.status == "infrastructure" else "",
            compile_result=None if steps.compiled is None else _command(steps.compiled, most),
            run_result=_command(last, most) if steps.started else None,
            executor_pod_name=pod_name(),
            files=dict(last.files) if steps.started else {},
        )

    async def run_jupyter(self, asked: RunJupyter) -> RunJupyterResponse:
        calls = self._calls
        for index, cell in enumerate(asked.cells):
            if (problem := calls.too_long(cell)) is not None:
                raise RequestRefused.invalid(f"cells[{index}]", problem)
        limits = request_limits(calls, "total_timeout", asked.total_timeout, TOTAL_SECONDS, asked.memory_limit_MB)
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


def request_limits(calls: Calls, field: str, seconds: float | None, usual: float, mib: int) -> Limits:
    """Return a program's limits, with this API's output limit.

    field: of the timeout `seconds`, by default `usual` or the service's maximum. Raises RequestRefused above the
    service's maxima.
    """
    memory = mib if mib > 0 else None
    calls.check_bounds({field: seconds}, {"memory_limit_MB": memory})
    # Twice the answer's size, since the sandbox keeps head and tail: the answer is then within the head.
    limits = replace(calls.settings.limits, output_bytes=2 * calls.settings.fusion_bytes)
    return limits.with_(seconds or min(usual, calls.settings.max_timeout), memory)


def busy_as_504(calls: Calls, handler: Handler, kind: Callable[..., Struct]) -> Handler:
    """Wrap a handler to answer 504 with `SandboxError` when busy.

    504 is the only status after which verl's client tries again; SandboxFusion's own does after any.
    """

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except RequestRefused as refused:
            if refused.status != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            calls.metrics.answered(FUSION, refused.kind, 0.0)
            body = kind(status="SandboxError", message=refused.message, executor_pod_name=pod_name())
            return json_response(body, HTTPStatus.GATEWAY_TIMEOUT, dict(refused.headers or {}))

    return handle


def pod_name() -> str | None:
    return os.environ.get(POD)


def cut_utf8(text: str, most: int) -> str:
    """Return the first `most` bytes of a text as UTF-8."""
    return text if len(text) * 4 <= most else text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


def _command(result: Result, most: int) -> Command:
    if result.status == "infrastructure":
        return Command(status="Error", stdout=cut_utf8(result.stdout, most), stderr=cut_utf8(result.stderr, most))
    late = result.status == "timeout"
    return Command(
        status="TimeLimitExceeded" if late else "Finished",
        execution_time=result.seconds,
        return_code=None if late else result.exit_code,
        stdout=cut_utf8(result.stdout, most),
        stderr=cut_utf8(strip_exit(result), most),
    )


TOTAL_SECONDS = 45.0
"""SandboxFusion's default timeout for all cells."""
OWN_SECONDS = 10.0
"""For our own cells between the client's, files and figures, each time."""
_TRACEBACK = "Traceback (most recent call last):\n"
_CHAINED = (
    "\nDuring handling of the above exception, another exception occurred:\n\n",
    "\nThe above exception was the direct cause of the following exception:\n\n",
)

# They run inside the session, with the program's rights: their output is as untrusted as the program's.
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
    """Cells to run. cell_timeout: seconds, 0 for only total_timeout, by default SandboxFusion's 45 s, at most the
    server's maximum. memory_limit_MB, files: see RunCode."""

    cells: list[str]
    cell_timeout: Annotated[float, Meta(ge=0)] = 0.0
    total_timeout: Seconds | None = None
    memory_limit_MB: int = -1
    kernel: Literal["python3"] = "python3"
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []


class CellError(Struct, kw_only=True):
    """An exception: class name, message and traceback lines."""

    ename: str
    evalue: str
    traceback: list[str]


class CellRunResult(Struct, kw_only=True):
    """Result of a cell. display: each output's content by MIME type (`text/plain`, `image/png` in base64)."""

    stdout: str = ""
    stderr: str = ""
    display: list[dict[str, str]] = []
    error: list[CellError] = []


class RunJupyterResponse(Struct, kw_only=True):
    """Answer of `/run_jupyter`. driver: result of the whole run."""

    status: Whole
    message: str = ""
    driver: Command | None = None
    cells: list[CellRunResult] = []
    executor_pod_name: str | None = None
    files: dict[str, str] = {}


class SandboxFault(Exception):
    """A cell, or our own between cells, failed through the sandbox's fault."""


class _Notebook:
    """One request's session. left: seconds for its cells; late: these were too few."""

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

    async def run(self, cells: list[str], files: dict[str, bytes], fetch: list[str]) -> RunJupyterResponse:
        started = time.monotonic()
        ran: list[CellRunResult] = []
        found: dict[str, str] = {}
        alive, problem = True, ""
        try:
            await self._put(files)
            for cell in cells:
                if self._left <= 0:
                    self._late = True
                    break
                result = await self._cell(cell)
                ran.append(self._cell_result(result))
                alive = result.exit_code is None  # a cell may end the interpreter, like a notebook's kernel
                if alive:
                    ran[-1].display += await self._draw_figures(cell)
            if fetch and alive:
                result = await self._run_cell(Program("pass", limits=self._limits.with_(OWN_SECONDS), fetch=fetch))
                found = {name: base64.b64encode(content).decode() for name, content in result.files.items()}
        except SandboxFault as fault:
            problem = str(fault)
        except SessionLost as lost:
            alive = False
            if lost.by_own_code:
                ran += [CellRunResult(error=[CellError(ename="DeadKernelError", evalue=str(lost), traceback=[])])]
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
        return RunJupyterResponse(
            status=whole, message=problem, driver=driver, cells=ran, executor_pod_name=pod_name(), files=found
        )

    async def _cell(self, code: str) -> Result:
        left = self._left
        seconds = min(left, self._cell_seconds or left)
        result = await self._run_cell(Program(code, limits=self._limits.with_(seconds)))
        self._left -= result.seconds
        if result.status == "timeout" and seconds == left:
            self._left, self._late = 0.0, True
        return result

    async def _put(self, files: dict[str, bytes]) -> None:
        """Write files: relative ones like any call's, absolute ones from inside, where only this session is."""
        beside = {name: base64.b64encode(content) for name, content in files.items() if name.startswith("/")}
        near = {name: content for name, content in files.items() if name not in beside}
        if files:
            code = _PUT.format(files=beside) if beside else "pass"
            put = Program(code, limits=self._limits.with_(OWN_SECONDS), echo=False, files=near)
            result = await self._run_cell(put)
            if result.status != "ok":
                raise RequestRefused.invalid("files", f"they cannot be written: {result.stderr}")

    async def _draw_figures(self, code: str) -> list[dict[str, str]]:
        """Draw and close the open figures, on the program's time.

        Only after a cell has imported anything, as pandas or a module of the program may draw too.
        """
        self._imports = self._imports or "import" in code
        if not self._imports or self._left <= 0:
            return []
        limits = replace(self._limits.with_(min(self._left, OWN_SECONDS)), output_bytes=16 * self._most)
        result = await self._run_cell(Program(_DRAW, limits=limits, echo=False))
        self._left -= result.seconds
        self._late = self._late or self._left <= 0
        if result.status == "ok":
            with contextlib.suppress(ValueError, msgspec.DecodeError):  # the program may print anything
                return msgspec.json.decode(result.stdout, type=list[dict[str, str]])
        return []

    async def _run_cell(self, cell: Program) -> Result:
        """Run a cell; a notebook that has begun waits for room rather than lose its results. Raises SandboxFault,
        SessionLost."""
        result = await self._calls.run(FUSION, lambda: self._session.run(cell), patient=self._begun)
        self._begun = True
        if result.status == "infrastructure":
            raise SandboxFault(result.stderr)
        return result

    def _cell_result(self, result: Result) -> CellRunResult:
        stderr, error = result.stderr, []
        if result.error_type is not None:
            stderr, trace = _split_stderr(result.stderr)
            lines = trace.rstrip("\n").split("\n")
            error = [CellError(ename=result.error_type, evalue=_evalue(lines, result.error_type), traceback=lines)]
        display = [] if result.value is None else [{"text/plain": result.value}]
        return CellRunResult(
            stdout=cut_utf8(result.stdout, self._most),
            stderr=cut_utf8(stderr, self._most),
            display=display,
            error=error,
        )


def _split_stderr(stderr: str) -> tuple[str, str]:
    """Split stderr into a cell's own output and the report of its exception.

    For display only: a program that ends with its own printed traceback may move the border.
    """
    start = stderr.rfind(_TRACEBACK)
    if start < 0:
        start = stderr.rfind('  File "<')  # a syntax error's
    if start < 0:  # one line names the exceeded limit of the sandbox
        start = stderr[:-1].rfind("\n") + 1
    while stderr.endswith(_CHAINED, 0, start) and (before := stderr.rfind(_TRACEBACK, 0, start)) >= 0:
        start = before
    return stderr[:start], stderr[start:]


def _evalue(lines: list[str], ename: str) -> str:
    """Return the exception's message: after its name, on the last line that begins with that."""
    for index in range(len(lines) - 1, -1, -1):
        name, _, message = lines[index].partition(": ")
        if name.rpartition(".")[2] == ename:
            return "\n".join([message, *lines[index + 1 :]])
    return ""
