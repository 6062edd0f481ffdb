"""Grade a text from synchronous code, such as another trainer's reward function."""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import threading
from contextlib import AsyncExitStack

from retcon.tasks.graders.text import same_choice, same_text
from retcon.tasks.grading.grading import GradeSettings, Grading
from retcon.tasks.grading.registry import Reply, settings_for
from retcon.tasks.types import Task


def grade(*, answer: str, reply: str, kind: str = "math") -> bool:
    r"""Return whether `reply`, the model's last message, is right.

        from retcon import grade
        grade(answer="1/2", reply=r"So it is \boxed{0.5}.")    # True

    Any thread may call it. Graders and their sandbox start at the first call that needs them and end with the process.

    Args:
        answer: the right answer.
        kind: a grader's name (`math`, `exact`, `choice`, …) or a function's import path, `my_module:my_grade`.

    Raises:
        RecipeError: an unknown grader, or one that needs settings, such as `judge`.
        ValueError: an answer that cannot be graded.
        MissingExtra, SandboxUnavailable: a package or a sandbox that the grader needs is missing.
        InfrastructureFault: the grader failed (`Grader.grade`).
    """
    if kind == "exact":
        return same_text(answer, reply)
    if kind == "choice":
        return same_choice(answer, reply)
    settings_for(kind, {})
    return _background().right(answer, reply, kind)


class _Background:
    """A `Grading` whose event loop runs in a thread. process: id of the process that started the thread."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="retcon-grade", daemon=True).start()
        self._open = AsyncExitStack()
        self._grading = Grading(GradeSettings())
        asyncio.run_coroutine_threadsafe(self._open.enter_async_context(self._grading), self._loop).result()
        atexit.register(self._close)

    def right(self, answer: str, reply: str, kind: str) -> bool:
        return asyncio.run_coroutine_threadsafe(self._right(answer, reply, kind), self._loop).result()

    async def _right(self, answer: str, reply: str, kind: str) -> bool:
        grader = await self._grading.grader(kind)
        return (await grader.grade(Task("answer", "", answer), Reply(reply))).right

    def _close(self) -> None:
        if os.getpid() == self._process:
            asyncio.run_coroutine_threadsafe(self._open.aclose(), self._loop).result()


_locks: dict[int, threading.Lock] = {}
"""By process id: a process forked while its parent starts must not inherit the held lock."""
_cached = functools.cache(_Background)


def _background() -> _Background:
    process = os.getpid()
    with _locks.setdefault(process, threading.Lock()):
        return _cached(process)
