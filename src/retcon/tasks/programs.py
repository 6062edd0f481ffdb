"""Grading answers that are programs: what a model wrote runs with its tests in the sandbox, never in this process."""

from __future__ import annotations

import secrets
from dataclasses import replace

from retcon.chat.markdown import find_calls
from retcon.core.errors import InfrastructureFault, RetconError, SessionLost
from retcon.core.types import Trajectory
from retcon.sandbox.types import Limits, Sandbox
from retcon.tasks.registry import RIGHT, WRONG
from retcon.tasks.types import Task


def last_program(reply: str) -> str | None:
    """The last whole block of Python in a reply, None where there is none."""
    blocks = [str(call.arguments["code"]) for call in find_calls(reply) if not isinstance(call.arguments, str)]
    return blocks[-1] if blocks else None


def answered_program(trajectory: Trajectory) -> str | None:
    """The program that a trajectory answers with; None where there is none, or no answer.

    The last block of its last turn. Where blocks are calls, an answer can hold none: then the last program that ran
    without failing.
    """
    if not trajectory.turns or trajectory.stop != "answer":
        return None
    program = last_program(trajectory.turns[-1].text)
    if program is not None:
        return program
    worked = [
        call.code
        for turn in trajectory.turns
        for call, observation in zip(turn.calls, turn.observations, strict=True)
        if observation.status == "ok" and not call.malformed and "code" in call.arguments
    ]
    return worked[-1] if worked else None


class ProgramGrader:
    """Grades by tests: the answer is right if the tests run to their end after it, without a failure.

    A task's `meta["tests"]` is Python that raises where the answer is wrong (HumanEval's `test` and a call of `check`,
    MBPP's asserts). Answer and tests are two cells of one session, and the tests end with a word drawn after the answer
    has run: an answer that ends the interpreter or leaves it early (`os._exit(0)`, `sys.exit()`) does not reach it.
    What tests in the same interpreter cannot see stays theirs to guard against, such as a result whose `==` says yes to
    everything.
    """

    def __init__(self, sandbox: Sandbox, limits: Limits | None = None) -> None:
        self._sandbox = sandbox
        self._limits = limits

    async def passes(self, program: str, tests: str) -> bool:
        """Whether `program` passes `tests`. Raises InfrastructureFault where the sandbox could not tell."""
        try:
            session = await self._sandbox.session(limits=self._limits)
        except RetconError as error:
            raise InfrastructureFault(f"an answer could not be graded: {error}") from error
        word = secrets.token_hex(8)
        try:
            for code in (program, f"{tests}\n{word!r}"):
                result = await session.run(code)
                if result.status == "infrastructure":
                    raise InfrastructureFault(f"an answer could not be graded: {result.stderr}")
                if result.status != "ok":
                    return False
            return result.value == repr(word)
        except SessionLost as lost:
            if lost.by_own_code:
                return False
            raise InfrastructureFault(f"an answer could not be graded: {lost}") from lost
        finally:
            await session.close()

    async def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        """The trajectory with its answer (`answered_program`) and its reward (±1).

        Where the sandbox had a fault it ends with stop `infrastructure` and no reward. Raises ValueError for a task
        without tests.
        """
        tests = task.meta.get("tests")
        if not isinstance(tests, str) or not tests.strip():
            raise ValueError(f"task {task.id} has no tests: meta['tests'] must be Python that checks an answer")
        if trajectory.stop == "infrastructure":
            return trajectory
        answer = answered_program(trajectory)
        try:
            right = answer is not None and await self.passes(answer, tests)
        except InfrastructureFault:
            return replace(trajectory, answer=answer, stop="infrastructure")
        return replace(trajectory, answer=answer, reward=RIGHT if right else WRONG)
