"""Right answers are read before work: all of them, though one hangs or takes its session along."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Unpack

import pytest

from retcon.core.errors import SandboxUnavailable, SessionLost
from retcon.sandbox.types import Limits, Program, ProgramOptions, Result
from retcon.tasks.graders import mathematics as readable

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


def test_mathematics_that_does_not_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = Reading(starts=False)
    with pytest.raises(SandboxUnavailable, match="does not start in the sandbox: ModuleNotFoundError: no math_verify"):
        read(sandbox, ["1/2"], monkeypatch)
    assert sandbox.closed == sandbox.opened == 1
