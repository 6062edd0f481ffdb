"""Grader by a user's function, by import path: `my_package.my_module:my_grade`.

    def my_grade(answer, reply):            # also async; it may take any of these names:
        return answer in reply              # answer, reply, question, task (its id), meta, trajectory

It returns a bool, a number within [0, 1] or a `Verdict`. Reward functions of verl work unchanged: their `solution_str`,
`ground_truth`, `data_source` and `extra_info` are known too, an object with `score` and `acc`, and numbers below 0. A
number above 1 ends the work: its scale, and so what is right, is unknown.

It runs in separate processes, from the working directory, so that one that hangs or eats memory can be ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from retcon.core.codec import to_dict
from retcon.core.errors import InfrastructureFault, RecipeError
from retcon.core.registry import describe_object
from retcon.tasks.graders.text import final_answer
from retcon.tasks.grading.registry import FUNCTION, GRADERS, Host, Kind, Reply, ScoreError, Verdict
from retcon.tasks.grading.worker import find_parameters
from retcon.tasks.types import Task

LINE_BYTES = 1 << 26
"""Most bytes of a process's line."""
IMPORT_SECONDS = 120.0
WORKER = (sys.executable, "-m", "retcon.tasks.grading.worker")


@dataclass(frozen=True, slots=True)
class FunctionSettings:
    path: Annotated[
        str, Field(description="where it stands: my_package.my_module:my_grade", pattern=r"^[\w.]+:[\w.]+$")
    ]
    seconds: Annotated[float, Field(gt=0, description="wall seconds of a call")] = 30.0
    memory_mb: Annotated[int, Field(gt=0, description="memory that a process may add to what it imports, MiB")] = 1024
    at_once: Annotated[int, Field(ge=1, description="calls at a time, each in a process of its own")] = 2
    right_from: Annotated[
        float,
        Field(gt=0, le=1, description="the score from which an answer is right, where the function gives numbers"),
    ] = 1.0


class FunctionGrader:
    """Grader that calls a function in other processes. Implements `Grader`."""

    def __init__(self, settings: FunctionSettings) -> None:
        self._settings = settings
        self._free: asyncio.LifoQueue[_Process | None] = asyncio.LifoQueue()
        for _ in range(settings.at_once):
            self._free.put_nowait(None)

    async def start(self) -> None:
        """Start one of its processes. Raises RecipeError where the function cannot be imported."""
        self._free.get_nowait()
        self._free.put_nowait(await self._start_process())

    async def grade(self, task: Task, reply: Reply) -> Verdict:
        """Grade a reply by the function. Raises ScoreError for a score above 1."""
        process, keep = await self._free.get(), None
        try:
            process = process or await self._start_process()
            async with asyncio.timeout(self._settings.seconds):
                result = await process.ask(_arguments(task, reply, process.wants))
            keep = process
        except TimeoutError:
            raise InfrastructureFault(f"no verdict within {self._settings.seconds:g} s") from None
        except (OSError, EOFError, ValueError) as error:
            raise InfrastructureFault(f"its process died: {error}") from error
        finally:
            self._free.put_nowait(keep)
            if process is not None and keep is None:
                await process.end()
        if "score_error" in result:
            raise ScoreError(f"the grader {self._settings.path} gives {result['score_error']}; divide by its most")
        if "error" in result:
            raise InfrastructureFault(f"it raised {result['error']:.300}")
        right = result["right"] or result["score"] >= self._settings.right_from
        return Verdict(result["score"], right, result["why"], final_answer(reply.text))

    async def check(self, task: Task) -> None:
        """Do nothing: only the function knows its needs."""

    async def close(self) -> None:
        for _ in range(self._settings.at_once):
            process = await self._free.get()
            if process is not None:
                await process.end()
        for _ in range(self._settings.at_once):
            self._free.put_nowait(None)

    async def _start_process(self) -> _Process:
        process = await _Process.start()
        try:
            async with asyncio.timeout(IMPORT_SECONDS):
                result = await process.ask({"path": self._settings.path, "memory_mb": self._settings.memory_mb})
        except (OSError, EOFError, ValueError, TimeoutError) as error:
            await process.end()
            raise RecipeError(f"grader '{self._settings.path}' does not start: {error or 'it hangs'}") from error
        except BaseException:
            await process.end()
            raise
        if "error" in result:
            await process.end()
            raise RecipeError(f"grader '{self._settings.path}' cannot be imported: {result['error']}")
        process.wants = result["wants"]
        return process


class _Process:
    """One worker (`grading/worker.py`)."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.wants: Sequence[str] | None = None

    @classmethod
    async def start(cls) -> _Process:
        return cls(
            await asyncio.create_subprocess_exec(
                *WORKER,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=_environment(),
                limit=LINE_BYTES,
                start_new_session=True,  # the terminal's Ctrl-C is for us; it ends with its standard input
            )
        )

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a message. Raises OSError, EOFError where it died, ValueError for an invalid answer."""
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: PT018 - both are pipes
        self._process.stdin.write(json.dumps(message, default=str).encode() + b"\n")
        await self._process.stdin.drain()
        line = await self._process.stdout.readline()
        if not line:
            raise EOFError(f"exit code {await self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


def _arguments(task: Task, reply: Reply, wants: Sequence[str] | None) -> dict[str, Any]:
    meta = dict(task.meta)
    known: dict[str, Any] = {
        "answer": task.answer,
        "reply": reply.text,
        "question": task.question,
        "task": task.id,
        "meta": meta,
        "solution_str": reply.text,
        "ground_truth": task.answer,
        "data_source": meta.get("data_source") or meta.get("source") or task.id,
        "extra_info": meta.get("extra_info", meta),
    }
    if reply.trajectory is not None and (wants is None or "trajectory" in wants):
        known["trajectory"] = to_dict(reply.trajectory)
    return known if wants is None else {name: value for name, value in known.items() if name in wants}


def _environment() -> dict[str, str]:
    paths = os.pathsep.join([os.getcwd(), *filter(None, sys.path)])  # noqa: PTH109 - as the shell that started us
    return {**os.environ, "PYTHONPATH": paths}


def _ready(settings: FunctionSettings) -> None:
    """Raise RecipeError for a path without a function, and for unknown parameters."""
    found = GRADERS.load(settings.path)
    if isinstance(found, type) or not callable(found):
        raise RecipeError(f"grader '{settings.path}' must be a function (answer, reply) or an instance of "
                          f"{Kind.__module__}.Kind: it is {describe_object(found)}")  # fmt: skip
    try:
        find_parameters(found)
    except TypeError as error:
        raise RecipeError(f"grader '{settings.path}': {error}") from None


async def _open(settings: FunctionSettings, _host: Host) -> FunctionGrader:
    _ready(settings)
    grader = FunctionGrader(settings)
    await grader.start()
    return grader


GRADER = Kind(FUNCTION, FunctionSettings, _open, ready=_ready)
