"""What the grader of programs asks of a sandbox, whose faults make no program wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Unpack

import pytest

from retcon.core.errors import InfrastructureFault, SandboxUnavailable, SessionLost
from retcon.sandbox.types import Limits, Program, ProgramOptions, Result
from retcon.tasks.graders import mathematics as readable
from retcon.tasks.graders.code import CodeGrader, CodeSettings
from retcon.tasks.grading.registry import Reply, Verdict
from retcon.tasks.types import Task

OK = Result("ok", value="None")
GONE = Result("infrastructure", stderr="no server answers")
READS = {"tests": [{"input": "1\n", "output": "2\n"}]}
CALLED = {"input_output": {"fn_name": "f", "inputs": [[1]], "outputs": [2]}}
CHECKED = {"tests": ["assert f(1) == 2"]}


class Answering:
    """A sandbox, and its one session: notes under which limits it is asked, and answers as it was told to."""

    id = "0"

    def __init__(self, *answers: Result) -> None:
        self.answers = list(answers)
        self.opened: list[Limits | None] = []
        self.limits: list[Limits | None] = []
        self.closed = 0

    async def session(self, *, limits: Limits | None = None, seed: int | None = None) -> Answering:
        self.opened.append(limits)
        return self

    async def run(self, program: str | Program, /, **options: Unpack[ProgramOptions]) -> Result:
        self.limits.append(options.get("limits"))
        return self.answers.pop(0)

    async def checkpoint(self) -> str:
        return "first"

    async def rollback(self, checkpoint: str) -> None:
        """Nothing changes."""

    async def discard(self, checkpoint: str) -> None:
        """Nothing is kept."""

    async def close(self) -> None:
        self.closed += 1


def graded(sandbox: Answering, meta: dict[str, Any], **settings: Any) -> Verdict:
    async def main() -> Verdict:
        grader = CodeGrader(sandbox, CodeSettings(**settings))
        try:
            return await grader.grade(Task("t/0", "?", "", meta=meta), Reply("```python\ndef f(a): return a + 1\n```"))
        finally:
            await grader.close()

    return asyncio.run(main())


@pytest.mark.parametrize("score", ["all", "share"])
@pytest.mark.parametrize(
    ("meta", "before"),
    [
        (READS, []),
        (CALLED, []),
        (CHECKED, [OK]),  # the session is ready, and the answer is lost
        (CHECKED, [OK, OK, OK]),  # so is its test
    ],
    ids=["program", "call", "answer", "test"],
)
def test_a_sandbox_that_goes_makes_no_program_wrong(score: str, meta: dict[str, Any], before: Sequence[Result]) -> None:
    sandbox = Answering(*before, GONE)
    with pytest.raises(InfrastructureFault, match="could not be graded: no server answers"):
        graded(sandbox, meta, score=score)
    assert sandbox.answers == []
    assert sandbox.closed == len(sandbox.opened)


def test_its_settings_are_the_limits_of_every_case() -> None:
    """The clock is wider than the CPU time, as machines are busy."""
    bound = {"cpu_seconds": 2.0, "wall_seconds": 20.0, "memory_mb": 300}
    sandbox = Answering(*[OK] * 9)
    for meta in (READS, CALLED, CHECKED):
        graded(sandbox, meta, seconds=2.0, memory_mb=300)
    asked = [limits for limits in (*sandbox.limits, *sandbox.opened) if limits is not None]
    assert [{name: getattr(limits, name) for name in bound} for limits in asked] == [bound] * 3


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_what_a_case_expects_is_never_cut_off_of_what_an_answer_gives(size: int) -> None:
    text = "x" * size
    for meta in ({"tests": [{"input": "", "output": text}]},
                 {"input_output": {"fn_name": "f", "inputs": [[1]], "outputs": [text]}}):  # fmt: skip
        sandbox = Answering(Result("ok", stdout=text, value=repr(json.dumps(text).encode().hex())))
        assert graded(sandbox, meta).right
        (limits,) = sandbox.limits
        assert limits is not None
        assert limits.output_bytes >= 2 * size + 65536


@pytest.mark.parametrize(("exact", "right"), [(True, False), (False, True)])
def test_decimals_are_compared_as_the_data_set_does(exact: bool, right: bool) -> None:
    case = {"input": "", "output": "0.333333"}
    meta = {"public_test_cases": json.dumps([{**case, "testtype": "stdin"}])} if exact else {"tests": [case]}
    for score in ("all", "share"):
        assert graded(Answering(Result("ok", stdout="0.3333333333")), meta, score=score).right is right


class Waiting(Answering):
    """Answers as it was told to, and then no more. ended: calls that were given up."""

    ended = 0

    async def run(self, program: str | Program, /, **options: Unpack[ProgramOptions]) -> Result:
        if self.answers:
            return await super().run(program, **options)
        try:
            await asyncio.Event().wait()
        finally:
            self.ended += 1
        return OK


def test_the_cases_beside_one_that_cannot_be_graded_are_given_up() -> None:
    async def main() -> int:
        sandbox = Waiting(GONE)
        grader = CodeGrader(sandbox, CodeSettings(score="share"))
        task = Task("t/0", "?", "", meta={"tests": READS["tests"] * 3})
        with pytest.raises(InfrastructureFault):
            await grader.grade(task, Reply("```python\nprint(2)\n```"))
        return sandbox.ended

    assert asyncio.run(main()) == 2


# Right answers are read before work: all of them, though one hangs or takes its session along.


PACKAGES = {"math-verify": ("math_verify",)}


class Reading:
    """A sandbox whose sessions find no mathematics in what ends with `?`, hang at `slow`, and are gone after `deadly`.

    opened, closed: how many sessions. starts: whether they become ready.
    """

    def __init__(self, *, starts: bool = True) -> None:
        self.opened = self.closed = 0
        self.starts = starts
        self.packages: Any = None

    def __call__(self, *, packages: Any) -> Reading:
        self.packages = packages
        return self

    async def __aenter__(self) -> Reading:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is open."""

    async def session(self, *, limits: Limits | None = None) -> _Session:
        self.opened += 1
        return _Session(self)


class _Session:
    def __init__(self, of: Reading) -> None:
        self._of = of

    async def run(self, program: str | Program, /, **options: Unpack[ProgramOptions]) -> Result:
        if (files := options.get("files")) is None:
            return Result("ok") if self._of.starts else Result("error", stderr="ModuleNotFoundError: no math_verify\n")
        batch = json.loads(files["answers.json"])
        if "deadly" in batch:
            raise SessionLost("its interpreter ended")
        if "slow" in batch:
            return Result("timeout")
        return Result("ok", value=str([n for n, answer in enumerate(batch) if answer.endswith("?")]))

    async def close(self) -> None:
        self._of.closed += 1


def read(sandbox: Reading, answers: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(readable, "SandboxPool", sandbox)
    return asyncio.run(readable._read_all(answers, PACKAGES))


def test_what_hangs_is_found_and_all_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [*map(str, range(150)), "slow", "what?", "1/2", "deadly", "and?", *map(str, range(150, 250)), "who?"]
    sandbox = Reading()
    found = read(sandbox, answers, monkeypatch)
    ends = "Math-Verify does not come to an end with it: "
    assert found == {
        **dict.fromkeys(("what?", "and?", "who?"), readable.NO_MATHEMATICS),
        "slow": f"{ends}timeout", "deadly": f"{ends}its interpreter ended",
    }  # fmt: skip
    assert sandbox.packages == PACKAGES
    assert sandbox.closed == sandbox.opened > 1


def test_mathematics_that_does_not_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = Reading(starts=False)
    with pytest.raises(SandboxUnavailable, match="does not start in the sandbox: ModuleNotFoundError: no math_verify"):
        read(sandbox, ["1/2"], monkeypatch)
    assert sandbox.closed == sandbox.opened == 1
