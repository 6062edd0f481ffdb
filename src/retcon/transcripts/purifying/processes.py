"""Processes that compute for this one, any of which may be killed at any moment, in the middle of an answer too.

`concurrent.futures.ProcessPoolExecutor` has one pipe for the answers of all processes: where one is killed that has
written a part of its answer, it waits for the rest for ever. Here each has a channel of its own, which ends with it.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from queue import SimpleQueue
from typing import Generic, ParamSpec, TypeVar

from retcon.core.errors import RetconError

P = ParamSpec("P")
T = TypeVar("T")


class ProcessKilled(RetconError):
    """A process is gone, with what it was at; nothing need be wrong with that."""


class Processes(Generic[P, T]):
    """So many processes that call one function, begun with the first call and ended by `close`.

    Each is spoken to by a thread of its own, which waits for it.
    """

    def __init__(self, number: int, function: Callable[P, T]) -> None:
        """function: of a module, as the processes import it."""
        self.number = number
        self._function = function
        self._threads = ThreadPoolExecutor(number)
        self._started: list[tuple[ForkServerProcess, Connection]] = []
        self._free: SimpleQueue[Connection] = SimpleQueue()

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """What the function gives or raises, or ProcessKilled. Raises RetconError where no process can be started."""
        if not self._started:
            self._start()
        return self._threads.submit(self._ask, *args, **kwargs)

    def close(self) -> None:
        """End them, and what they are at."""
        for process, _ in self._started:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process, channel in self._started:
            process.join()
            channel.close()
        self._started.clear()

    def _start(self) -> None:
        _start_server()
        context = get_context("forkserver")
        try:
            for _ in range(self.number):
                ours, theirs = context.Pipe()
                with theirs:
                    process = context.Process(target=_serve, args=(theirs, self._function), daemon=True)
                    process.start()
                self._started.append((process, ours))
                self._free.put(ours)
        except OSError as error:
            raise RetconError(f"{self.number} processes cannot be started: {error}") from error

    def _ask(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """In a thread: there are as many as there are processes, so that one is free."""
        channel = self._free.get()
        try:
            channel.send((args, kwargs))
            answer: T
            error: Exception | None
            answer, error = channel.recv()
        except (EOFError, OSError) as gone:
            raise ProcessKilled("a process was killed") from gone
        finally:
            self._free.put(channel)
        if error is not None:
            raise error
        return answer


def _start_server() -> None:
    """Start what the processes are forked from, with Ctrl-C blocked, there and in them, from their first moment on: it
    reaches all processes of a terminal, and what it means is the first one's to say."""
    resource_tracker.ensure_running()  # or it is started next, and unblocks what it blocks
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(channel: Connection, function: Callable[..., object]) -> None:
    """In such a process: answer until nobody asks any more."""
    with suppress(EOFError, OSError):
        while True:
            args, kwargs = channel.recv()
            try:
                answer, error = function(*args, **kwargs), None
            except Exception as raised:  # noqa: BLE001 - whoever asked is to have it
                raised.add_note("".join(traceback.format_exception(raised)))
                answer, error = None, raised
            channel.send((answer, error))
