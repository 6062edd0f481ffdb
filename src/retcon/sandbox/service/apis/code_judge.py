"""code-judge's API, as its clients (rStar2-Agent's and CLEANER's among them) speak it.

Types: `python`, and `cpp` where it can be had; an entry of a batch that is of another is answered by itself.

What is kept of its meaning: `run_success` says that the program ended with exit code 0, `success` that it also printed
`expected_output` where one is given, white space at both ends apart; `cost` is in seconds; fields that it does not know
are let pass. What differs: no call waits so long that it is dropped, and a program's own text cannot change `cost`.
"""

from __future__ import annotations

import uuid
from http import HTTPStatus
from typing import Annotated, Literal

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from retcon.core.together import together
from retcon.http.handling import RequestRefused, answer, parse, read_body, unless_gone
from retcon.sandbox.service.apis.languages import COMPILE_SECONDS, PYTHON, Languages
from retcon.sandbox.service.calls import Calls, own_stderr, room_for
from retcon.sandbox.types import Program, Result

Reason = Literal["", "internal_error", "worker_timeout", "queue_timeout", "invalid_input"]


API = "code_judge"


class Submission(Struct, kw_only=True):
    """A program to run. options: for types of code-judge's that are not served here."""

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


class Judged(Struct):
    """What `/judge` answers for a submission."""

    sub_id: str
    success: bool
    run_success: bool
    cost: float
    reason: Reason


class Ran(Judged):
    """What `/run` answers for a submission."""

    stdout: str | None
    stderr: str | None


class BatchRan(Struct):
    """What the batches below `/run` answer."""

    sub_id: str
    results: list[Ran]


class BatchJudged(Struct):
    """What the batches below `/judge` answer."""

    sub_id: str
    results: list[Judged]


class Status(Struct):
    """queue: calls that wait. num_workers: calls that can run at a time."""

    queue: int
    num_workers: int


class CodeJudgeApi:
    """The handlers of `/run`, `/judge`, their batches and `/status`."""

    def __init__(self, calls: Calls, languages: Languages) -> None:
        self._calls = calls
        self._languages = languages

    async def run(self, request: Request) -> Response:
        return answer(await self._one(request))

    async def judge(self, request: Request) -> Response:
        return answer(_judged(await self._one(request)))

    async def run_batch(self, request: Request) -> Response:
        return await self._batch(request, patient=False)

    async def run_long_batch(self, request: Request) -> Response:
        return await self._batch(request, patient=True)

    async def judge_batch(self, request: Request) -> Response:
        return await self._batch(request, patient=False, judged=True)

    async def judge_long_batch(self, request: Request) -> Response:
        return await self._batch(request, patient=True, judged=True)

    async def status(self, request: Request) -> Response:
        return answer(Status(self._calls.queued, self._calls.settings.workers))

    async def _one(self, request: Request) -> Ran:
        submission = parse(await read_body(request, self._calls.settings.max_body), Submission)
        # RequestRefused by name: the language is the caller's to choose and no program's fault.
        if (problem := await self._problem(submission)) is not None:
            raise RequestRefused.invalid("type", problem)
        return await unless_gone(request, self._ran(submission, patient=False))

    async def _batch(self, request: Request, *, patient: bool, judged: bool = False) -> Response:
        batch = parse(await read_body(request, self._calls.settings.max_body), BatchSubmission)
        self._calls.check_count(batch.submissions, "submissions")
        work = together([self._settled(submission, patient=patient) for submission in batch.submissions])
        results: list[Ran] = await unless_gone(request, work)
        name = batch.sub_id or str(uuid.uuid4())
        return answer(BatchJudged(name, [_judged(ran) for ran in results]) if judged else BatchRan(name, results))

    async def _settled(self, submission: Submission, *, patient: bool) -> Ran:
        """As `_ran`, of a batch: what cannot be run is told of that submission alone."""
        try:
            return await self._ran(submission, patient=patient)
        except RequestRefused as refused:
            unserved = refused.status == HTTPStatus.SERVICE_UNAVAILABLE
            name = submission.sub_id or str(uuid.uuid4())
            reason: Reason = "internal_error" if unserved else "invalid_input"
            return Ran(name, False, False, 0.0, reason, None, refused.message)

    async def _ran(self, submission: Submission, *, patient: bool) -> Ran:
        """patient: wait for room, as the long batches do; else `queue_timeout` where there is none."""
        calls, expected = self._calls, submission.expected_output
        name = submission.sub_id or str(uuid.uuid4())
        limits = calls.settings.limits if expected is None else room_for(calls.settings.limits, expected)
        stdin = submission.input or ""
        try:
            problem = await self._problem(submission) or _unusable(calls, submission)
            if problem is not None:
                return Ran(name, False, False, 0.0, "invalid_input", None, problem)
            ran = await self._languages.run(
                API,
                submission.type,
                Program(submission.solution, stdin=stdin, limits=limits),
                compile_limits=limits.with_(max(COMPILE_SECONDS, limits.wall_seconds)),
                patient=patient,
            )
        except RequestRefused as refused:
            if refused.kind != "busy":
                raise
            calls.metrics.answered(API, "queue_timeout", 0.0)
            return Ran(name, False, False, 0.0, "queue_timeout", None, None)
        result = ran.last
        run_success = ran.started and result.status == "ok"
        cut = calls.settings.judge_chars
        success = run_success and (expected is None or result.stdout.strip() == expected.strip())
        stdout, stderr = result.stdout[:cut], own_stderr(result)[:cut]
        return Ran(name, success, run_success, result.seconds, _reason(result), stdout, stderr)

    async def _problem(self, submission: Submission) -> str | None:
        """Why programs of that type are not run here, None where they are."""
        if submission.type == PYTHON:
            return None
        if submission.type != "cpp":
            return f"type '{submission.type}' is not served here: only python and cpp"
        return await self._languages.problem("cpp")


def _unusable(calls: Calls, submission: Submission) -> str | None:
    try:
        (submission.input or "").encode()
    except UnicodeEncodeError as error:
        return f"input is not Unicode: {error.reason} at character {error.start}"
    return calls.too_long(submission.solution)


def _reason(result: Result) -> Reason:
    if result.status == "timeout":
        return "worker_timeout"
    return "internal_error" if result.status == "infrastructure" else ""


def _judged(ran: Ran) -> Judged:
    return Judged(ran.sub_id, ran.success, ran.run_success, ran.cost, ran.reason)
