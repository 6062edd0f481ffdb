"""code-judge's API, as its clients (rStar2-Agent's and CLEANER's among them) speak it.

What is kept of its meaning: `run_success` says that the program ended with exit code 0, `success` that it also printed
`expected_output` where one is given, white space at both ends apart; `cost` is in seconds; fields that it does not know
are let pass. What differs: no call waits so long that it is dropped, and a program's own text cannot change `cost`.
"""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from retcon.sandbox.service.body import parse
from retcon.sandbox.service.calls import Calls, own_stderr, room_for
from retcon.sandbox.service.http import answer, read_body, unless_gone
from retcon.sandbox.service.own import gathered
from retcon.sandbox.service.refusal import Refused
from retcon.sandbox.types import Result

SERVED = "python"
Reason = Literal["", "internal_error", "worker_timeout", "queue_timeout", "invalid_input"]


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


class CodeJudgeApi:
    """The handlers of `/run`, `/judge`, their batches and `/status`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

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
        return answer({"queue": self._calls.queued, "num_workers": self._calls.settings.workers})

    async def _one(self, request: Request) -> Ran:
        submission = parse(await read_body(request, self._calls.settings.max_body), Submission)
        _check_type(submission, "type")
        return await unless_gone(request, self._ran(submission, patient=False))

    async def _batch(self, request: Request, *, patient: bool, judged: bool = False) -> Response:
        batch = parse(await read_body(request, self._calls.settings.max_body), BatchSubmission)
        for index, submission in enumerate(batch.submissions):
            _check_type(submission, f"submissions[{index}].type")
        work = gathered([self._ran(submission, patient=patient) for submission in batch.submissions])
        results: list[Any] = await unless_gone(request, work)
        if judged:
            results = [_judged(result) for result in results]
        return answer({"sub_id": batch.sub_id or str(uuid.uuid4()), "results": results})

    async def _ran(self, submission: Submission, *, patient: bool) -> Ran:
        """patient: wait for room, as the long batches do; else `queue_timeout` where there is none."""
        calls, expected = self._calls, submission.expected_output
        name = submission.sub_id or str(uuid.uuid4())
        if (problem := _unusable(calls, submission)) is not None:
            return Ran(name, False, False, 0.0, "invalid_input", None, problem)
        limits = calls.settings.limits if expected is None else room_for(calls.settings.limits, expected)
        stdin = submission.input or ""
        try:
            result = await calls.run(
                "code_judge",
                lambda: calls.sandbox.run(submission.solution, stdin=stdin, limits=limits, echo=False),
                patient=patient,
            )
        except Refused as refused:
            if refused.kind != "busy":
                raise
            calls.metrics.answered("code_judge", "queue_timeout", 0.0)
            return Ran(name, False, False, 0.0, "queue_timeout", None, None)
        ran = result.status == "ok"
        cut = calls.settings.judge_chars
        success = ran and (expected is None or result.stdout.strip() == expected.strip())
        return Ran(name, success, ran, result.seconds, _reason(result), result.stdout[:cut], own_stderr(result)[:cut])


def _check_type(submission: Submission, field: str) -> None:
    """Raises Refused, by name: the language is the caller's to choose and no program's fault."""
    if submission.type != SERVED:
        raise Refused.invalid(field, f"type '{submission.type}' is not served here: only '{SERVED}'")


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
