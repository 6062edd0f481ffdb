"""The keeper's ends of the channel to a session's interpreter and of its output. Standard library only.

Any process of the session can have the other end: close it, fill it, leave it unread, write whatever it likes to it. So
nothing here waits, and of what comes no more is kept than one answer may be long.
"""

from __future__ import annotations

import contextlib
import marshal
import math
import os
import select
import signal
import socket
import time
from collections.abc import Collection, Container, Mapping
from typing import NamedTuple

from retcon.sandbox.jail import messages as wire
from retcon.sandbox.jail.capture import Capture
from retcon.sandbox.jail.session.functions import HostChannel
from retcon.sandbox.jail.session.interpreter import DONE, EARLY, FAILED, CellCommand, FreezeCommand
from retcon.sandbox.jail.session.processes import SWEEP_SECONDS, Child, Copy, Tree, cpu_seconds
from retcon.sandbox.jail.watchdog import Watchdog, no_end

CHUNK = 1 << 16
MOST_CHUNKS = 16  # 1 MiB: the most that a user may have a pipe hold
NEVER = bytes(16)  # a `timeval`
SPARE = 4096  # bytes of an answer besides the value


class InterpreterReply(NamedTuple):
    """What the interpreter said of a command. early: the name of an exception, before it was shown. done: the rest,
    None where it has not said that."""

    early: str | None = None
    done: str | None = None


class Control:
    """One command at a time, and what is said to it between two copies of a token. theirs: the other end."""

    def __init__(self) -> None:
        self._socket, self.theirs = socket.socketpair()
        self._socket.setblocking(False)
        self._unsent = memoryview(b"")
        self._heard = bytearray()
        self._token = b""
        self._cap = 0
        self.said = InterpreterReply()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def events(self) -> int:
        """What to poll for."""
        return select.POLLIN | select.POLLHUP | (select.POLLOUT if self._unsent else 0)

    def ask(self, command: CellCommand | FreezeCommand) -> None:
        command["token"] = self._token = os.urandom(16)
        self._cap = 16 * (command["output"] if command["op"] == "cell" else 0) + SPARE
        self._heard.clear()
        self.said = InterpreterReply()
        self._unsent = memoryview(wire.framed(marshal.dumps(dict(command))))

    def send(self) -> None:
        """What there is room for. Raises OSError where nothing is taken any more."""
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]

    def receive(self) -> bool:
        """What has come; False where no more will."""
        try:
            chunk = self._socket.recv(CHUNK)
        except BlockingIOError:
            return True
        except OSError:  # it ended with a command unread
            return False
        self._heard += chunk
        for text in between(self._heard, self._token, self._cap):
            if self.said.done is not None:
                break
            if text.startswith(EARLY) and self.said.early is None:
                self.said = self.said._replace(early=text[1:])
            elif text.startswith((DONE, FAILED)):
                self.said = self.said._replace(done=text)
        return bool(chunk)

    def forget(self) -> None:
        """Drop what waits at either end: an interpreter may have ended before it read all of a command. A time-out that
        a cell has set at its end is not the next one's. Nothing may run that could say more."""
        self._unsent = memoryview(b"")
        for kind in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self.theirs.setsockopt(socket.SOL_SOCKET, kind, NEVER)
        for end in (self._socket, self.theirs):
            with contextlib.suppress(OSError):
                while end.recv(CHUNK, socket.MSG_DONTWAIT):
                    pass


class Output:
    """stdout and stderr. writes: their other ends, which this process keeps too, so that they never hang up."""

    def __init__(self) -> None:
        self.reads, self.writes = zip(os.pipe(), os.pipe(), strict=True)
        for fd in self.reads:
            os.set_blocking(fd, False)
        self._sinks = {fd: Capture(1) for fd in self.reads}

    def keep(self, limit: int) -> None:
        """From here on, this many bytes of each."""
        self._sinks = {fd: Capture(limit) for fd in self.reads}

    def read(self, ready: Container[int]) -> None:
        """Some of what is in those that are ready."""
        for fd, sink in self._sinks.items():
            if fd in ready:
                with contextlib.suppress(BlockingIOError):
                    sink.add(os.read(fd, CHUNK))

    def take(self) -> list[str]:
        """All of it, and what is in the pipes now; no more than they can hold, as something may still write to them."""
        for fd, sink in self._sinks.items():
            with contextlib.suppress(BlockingIOError):
                for _ in range(MOST_CHUNKS):
                    sink.add(os.read(fd, CHUNK))
        return [sink.text() for sink in self._sinks.values()]


def between(heard: bytearray, token: bytes, cap: int) -> list[str]:
    """Take out of `heard` what stands between two tokens; of the rest keep what may yet become that, up to `cap`."""
    found: list[str] = []
    while (start := heard.find(token)) >= 0:
        end = heard.find(token, start + len(token))
        if end < 0:
            del heard[: start if len(heard) - start <= cap else len(heard)]
            return found
        found.append(heard[start + len(token) : end].decode("utf-8", "replace"))
        del heard[:end]  # which may be the first of the next two: a cell may have broken off in what it put between
    del heard[: max(0, len(heard) - len(token) + 1)]
    return found


INTERRUPT_SECONDS = 1.0  # that a cell has to obey the interrupt; `subprocess.run` takes .25 of them to end its process
FLUSH_SECONDS = 0.2  # between SIGXCPU, at which printed output is written out, and SIGKILL
SHORTEST = 0.01  # seconds between two looks at the CPU clock


class Deadlines:
    """Watches the interpreter `pid` of the session's `tree`, and its frozen `copies`, from now on.

    over: the line that tells which limit the interpreter went over, empty while it went over none.

    Over a clock it gets an interrupt, after which it may live on, then a chance to write out, then the end; over
    `watchdog`'s limits the end at once. The CPU limit of a cell is the interpreter's alone; another process that uses
    as much in its life is ended, and so is a frozen copy that runs.
    """

    def __init__(
        self,
        pid: int,
        tree: Tree,
        copies: Collection[Copy],
        *,
        cpu_limit: float,
        wall_limit: float,
        watchdog: Watchdog,
    ) -> None:
        self.over = ""
        self._pid, self._tree, self._copies = pid, tree, copies
        self._cpu_limit, self._wall_limit = cpu_limit, wall_limit
        self._watchdog = watchdog
        self._cpu = cpu_seconds(pid)
        self._end = time.monotonic() + wall_limit
        self._paused_at: float | None = None
        self.paused = 0.0
        self._cores = os.cpu_count() or 1
        self._steps = [
            (signal.SIGINT, INTERRUPT_SECONDS),
            (signal.SIGXCPU, FLUSH_SECONDS),
            (signal.SIGKILL, SWEEP_SECONDS),
        ]

    def pause(self, waits: bool) -> None:
        """Stop the wall clock, or let it go on. paused: seconds that it stood still."""
        now = time.monotonic()
        if waits and self._paused_at is None:
            self._paused_at = now
        elif not waits and self._paused_at is not None:
            self.paused += now - self._paused_at
            if not self.over:
                self._end += now - self._paused_at
            self._paused_at = None

    def wait(self) -> float:
        """Seconds until `check` is due."""
        now = time.monotonic()
        left = self._end - now
        if self._paused_at is not None and not self.over:
            left = math.inf
        if not self.over:
            left = min(left, max(self._cpu_left() / self._cores, SHORTEST), self._watchdog.due - now)
        return max(left, 0.0)

    def check(self) -> None:
        """Take the next step if it is time. Raises OSError where the interpreter cannot even be killed."""
        now = time.monotonic()
        if not self.over:
            self._end_spinners()
            if now >= self._watchdog.due and self._watchdog.look():
                self.over = self._watchdog.said
                del self._steps[:-1]
            elif self._cpu_left() <= 0:
                self.over = no_end(self._cpu_limit, " of CPU time")
            elif now >= self._end and self._paused_at is None:
                self.over = no_end(self._wall_limit)
            else:
                return
        elif now < self._end:
            return
        if not self._steps:
            raise OSError("the interpreter of a session cannot be ended")
        sent, seconds = self._steps.pop(0)
        os.kill(self._pid, sent)
        self._end = time.monotonic() + seconds

    def starved(self, status: int) -> bool:
        """After the interpreter ended with `status`: see `Watchdog.judge`."""
        starved = self._watchdog.judge(status)
        self.over = self.over or self._watchdog.said
        return starved

    def _cpu_left(self) -> float:
        return self._cpu_limit - (cpu_seconds(self._pid) - self._cpu)

    def _end_spinners(self) -> None:
        tree, copies = self._tree, self._copies
        for copy in copies:
            if not copy.is_fit(tree):
                copy.signal(signal.SIGKILL)
        for number in tree.below([copy.number for copy in copies]):
            pid = tree.pid(number)
            if pid != self._pid and cpu_seconds(pid) > self._cpu_limit:
                tree.signal(number, signal.SIGKILL)


def refuse_starved(interpreter: Child, watchdog: Watchdog) -> None:
    """Raises OSError where the kernel has ended the interpreter, as the machine was out of memory, since the watchdog
    was set."""
    if interpreter.was_killed and watchdog.judge(signal.SIGKILL):
        raise OSError("the kernel ended the interpreter: the machine was out of memory")


# One command to a session's interpreter: handed over, watched, until it is answered or the interpreter has ended.

READY = select.POLLIN | select.POLLHUP


class HostGone(Exception):
    """The host closed the worker's channel: nobody waits for the answer any more."""


def exchange(
    command: CellCommand | FreezeCommand,
    *,
    interpreter: Child,
    control: Control,
    output: Output,
    host: socket.socket,
    deadlines: Deadlines,
    functions: HostChannel | None = None,
) -> None:
    """What was said is in `control` when it returns, what was printed in `output`.

    host: the worker's channel. functions: through which the cell calls functions of the host; the wall clock stands
    still while such a call is open. Raises HostGone, and OSError where the interpreter cannot be ended.
    """
    control.ask(command)
    _send(control, interpreter)
    said = control.fileno()
    poller = select.poll()
    poller.register(host, select.POLLRDHUP)  # the next request may be there already
    calls = None if functions is None else Forwarding(functions, host, deadlines, poller)
    poller.register(said, control.events)
    for fd in (interpreter.ended, *output.reads):
        poller.register(fd, READY)
    while True:
        ready = dict(poller.poll(math.ceil(1000 * deadlines.wait())))
        if ready.get(host.fileno(), 0) & ~select.POLLIN:
            raise HostGone
        if calls is not None:
            calls.step(ready)
        if said in ready:
            if ready[said] & select.POLLOUT:
                _send(control, interpreter)
            if not ready[said] & READY or control.receive():
                poller.modify(said, control.events)
            else:
                poller.unregister(said)
        if interpreter.ended in ready or control.said.done is not None:
            if calls is not None:
                calls.end()
            return
        output.read(ready)
        deadlines.check()


class Forwarding:
    """Passes a cell's calls of functions to the host, and the host's answers back."""

    def __init__(self, functions: HostChannel, host: socket.socket, deadlines: Deadlines, poller: select.poll) -> None:
        self._functions, self._host, self._deadlines, self._poller = functions, host, deadlines, poller
        self._watch()

    def step(self, ready: Mapping[int, int]) -> None:
        """Do what can be done without waiting. Raises HostGone."""
        functions, events = self._functions, ready.get(self._functions.fileno(), 0)
        if events & select.POLLOUT:
            functions.send()
        calls = functions.receive() if events & ~select.POLLOUT else functions.parsed()
        for call in calls:
            wire.send(self._host, call)
        if functions.open and ready.get(self._host.fileno(), 0) & select.POLLIN:
            answer = wire.receive(self._host)
            if not isinstance(answer, wire.HostReturn):
                raise HostGone
            functions.answer(answer.number, answer.body)
            functions.send()
        self._watch()

    def end(self) -> None:
        """The cell has ended."""
        self._functions.end_cell()
        self._watch()

    def _watch(self) -> None:
        functions = self._functions
        self._deadlines.pause(bool(functions.open))
        reads, writes = functions.reads * select.POLLIN, functions.writes * select.POLLOUT
        if reads or writes:
            self._poller.register(functions.fileno(), reads | writes)
        else:  # else the end of the channel would be reported again and again
            with contextlib.suppress(KeyError):
                self._poller.unregister(functions.fileno())
        self._poller.register(self._host, select.POLLRDHUP | (select.POLLIN if functions.open else 0))


def _send(control: Control, interpreter: Child) -> None:
    try:
        control.send()
    except OSError:  # a cell closed the channel
        interpreter.signal(signal.SIGKILL)
