r"""Grading by mathematical equality: `\frac12`, `0.5` and `50\%` are one. By Math-Verify, of the extra [grade].

Reading and comparing expressions can hang and take any amount of memory (`9^{9^{9^9}}`), and it is a model that writes
them: it runs in sessions of the sandbox, with limits. Each session is warmed up once (the first expression costs half a
second, the next some milliseconds) and goes back to that state after every answer, so that no answer meets what
another left.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple, Self

from retcon.core.errors import InfrastructureFault, RetconError
from retcon.core.types import Trajectory
from retcon.sandbox.types import Limits, Sandbox, Session
from retcon.tasks.graders.text import final_answer, integer
from retcon.tasks.registry import RIGHT, WRONG
from retcon.tasks.types import Task

PACKAGES = {"math-verify": ("math_verify",)}
"""For `SandboxPool(packages=…)`: the sandbox that a `MathGrader` is given must have this preloaded."""

REPLY_CHARS = 4000
"""Of a reply that marks no answer, its end, in which Math-Verify looks for one; a longer marked answer is none."""

_WARM = r"""
import json, logging
logging.disable(logging.CRITICAL)
from math_verify import parse, verify
for gold, reply in ((r"$\boxed{\frac{1}{2}}$", "it is 0.5"), (r"$\boxed{(1, 2]}$", r"$\boxed{x^2 + 1}$")):
    verify(parse(gold, parsing_timeout=None), parse(reply, parsing_timeout=None), timeout_seconds=None)
"""
_COMPARE = """
gold, reply = (parse(text, parsing_timeout=None) for text in json.load(open("case.json")))
"unreadable" if not gold else verify(gold, reply, timeout_seconds=None)
"""


class _Warm(NamedTuple):
    session: Session
    state: str


class MathGrader:
    r"""Whether a reply's answer equals a task's. Used as `async with`.

        async with SandboxPool(packages=PACKAGES) as sandbox, MathGrader(sandbox) as grader:
            await grader.equal("1/2", r"so it is \boxed{0.5}")

    at_once: answers that are compared at a time, each in a session of its own. seconds: CPU and wall, of a comparison.
    memory_mb: of a session.
    """

    def __init__(self, sandbox: Sandbox, *, at_once: int = 2, seconds: float = 10.0, memory_mb: int = 1024) -> None:
        self._sandbox = sandbox
        self._seconds = seconds
        self._limits = Limits(cpu_seconds=60.0, wall_seconds=120.0, memory_mb=memory_mb)
        self._free: asyncio.LifoQueue[_Warm | None] = asyncio.LifoQueue()
        self._at_once = at_once
        for _ in range(at_once):
            self._free.put_nowait(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _ in range(self._at_once):
            warm = await self._free.get()
            if warm is not None:
                await warm.session.close()

    async def equal(self, answer: str, reply: str) -> bool:
        r"""Whether the answer that `reply` gives, in `\boxed{…}`, behind `####` or in plain words, equals `answer`.

        Raises ValueError where Math-Verify can read nothing in `answer`; InfrastructureFault where the comparison
        raised, hung or took too much memory, or the sandbox had a fault.
        """
        said = final_answer(reply)
        if said is not None:
            if said == answer.strip():
                return True
            numbers = integer(said), integer(answer)
            if None not in numbers:
                return numbers[0] == numbers[1]
            if len(said) > REPLY_CHARS:
                return False
        marked = answer if "\\boxed" in answer else _boxed(answer.strip().strip("$"))
        value = await self._compare([marked, reply[-REPLY_CHARS:] if said is None else _boxed(said.strip("$"))])
        if value == "'unreadable'":
            raise ValueError(f"answer {answer!r} cannot be graded: Math-Verify finds no mathematics in it")
        return value == "True"

    async def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        """The trajectory with its answer and its reward (±1); without a reward, and with stop `infrastructure`, where
        it could not be graded. Raises ValueError as `equal` does."""
        if trajectory.stop == "infrastructure":
            return trajectory
        if not trajectory.turns or trajectory.stop != "answer":
            return replace(trajectory, answer=None, reward=WRONG)
        reply = trajectory.turns[-1].text
        answer = final_answer(reply)
        try:
            right = await self.equal(task.answer, reply)
        except InfrastructureFault:
            return replace(trajectory, answer=answer, stop="infrastructure")
        return replace(trajectory, answer=answer, reward=RIGHT if right else WRONG)

    async def _compare(self, texts: list[str]) -> str | None:
        warm = await self._free.get()
        keep = None
        try:
            keep = warm = warm or await self._warmed()
            files = {"case.json": json.dumps(texts).encode()}
            result = await warm.session.run(_COMPARE, files=files, timeout=self._seconds)
            if result.status != "ok":
                keep = None
                last = result.stderr.strip().rpartition("\n")[2]
                raise InfrastructureFault(f"an answer could not be graded: {result.status}: {last}")
            await warm.session.rollback(warm.state)
            return result.value
        except InfrastructureFault:
            raise
        except RetconError as error:
            keep = None
            raise InfrastructureFault(f"an answer could not be graded: {error}") from error
        finally:
            self._free.put_nowait(keep)
            if warm is not None and keep is None:
                await warm.session.close()

    async def _warmed(self) -> _Warm:
        """Raises RetconError."""
        session = await self._sandbox.session(limits=self._limits)
        result = await session.run(_WARM)
        if result.status != "ok":
            await session.close()
            last = result.stderr.strip().rpartition("\n")[2]
            raise InfrastructureFault(f"Math-Verify does not start in the sandbox: {last}")
        return _Warm(session, await session.checkpoint())


def _boxed(text: str) -> str:
    return f"$\\boxed{{{text}}}$"
