"""Grading for those who have no event loop and no sandbox of their own: reward functions of other trainers, say."""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import threading
from contextlib import AsyncExitStack
from typing import Literal, get_args

from retcon.core.errors import nearest
from retcon.sandbox.pool import SandboxPool
from retcon.tasks.graders.mathematics import PACKAGES, MathGrader, need_math_verify
from retcon.tasks.graders.text import same_choice, same_text

Kind = Literal["math", "exact", "choice"]


def grade(*, answer: str, reply: str, kind: Kind = "math") -> bool:
    r"""Whether `reply`, all that a model said in the end, answers rightly; `answer` is the right answer.

        from retcon import grade
        grade(answer="1/2", reply=r"So it is \boxed{0.5}.")    # True

    kind: `math`, equal by Math-Verify; `exact`, the same text but for case and white space; `choice`, the same letter.
    `math` starts a sandbox, which later calls use and which ends with the process; any thread may call.

    Raises ValueError for another kind or an answer that cannot be graded; MissingExtra without Math-Verify;
    InfrastructureFault where it could not be compared (see `MathGrader.equal`); SandboxUnavailable where there is none.
    """
    if kind == "exact":
        return same_text(answer, reply)
    if kind == "choice":
        return same_choice(answer, reply)
    if kind != "math":
        kinds = get_args(Kind)
        raise ValueError(f"no kind of grading {kind!r}{nearest(kind, kinds)}; there are: {', '.join(kinds)}")
    return _grader().equal(answer, reply)


class _Grader:
    """A `MathGrader` with its sandbox and their event loop, in a thread of their own. process: the id of the one that
    it is of: in those that are forked from it there is no such thread."""

    def __init__(self, process: int) -> None:
        need_math_verify()
        self._process = process
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="retcon-grade", daemon=True).start()
        self._open = AsyncExitStack()
        self._grader = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        atexit.register(self._close)

    def equal(self, answer: str, reply: str) -> bool:
        return asyncio.run_coroutine_threadsafe(self._grader.equal(answer, reply), self._loop).result()

    async def _start(self) -> MathGrader:
        sandbox = await self._open.enter_async_context(SandboxPool(packages=PACKAGES))
        return await self._open.enter_async_context(MathGrader(sandbox))

    def _close(self) -> None:
        if os.getpid() == self._process:
            asyncio.run_coroutine_threadsafe(self._open.aclose(), self._loop).result()


_locks: dict[int, threading.Lock] = {}
"""By process: one that is forked while a thread of its parent's begins has that lock too, and nobody who opens it."""
_cached = functools.cache(_Grader)


def _grader() -> _Grader:
    process = os.getpid()
    with _locks.setdefault(process, threading.Lock()):  # two threads that come first at once share one sandbox
        return _cached(process)
