"""Keeper's ends of an interpreter's control channel and output. Standard library only.

Any process of the session may have the other end: close it, fill it, leave it unread, write anything to it. So nothing
here blocks, and no more input is kept than one reply may have.
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
from retcon.sandbox.jail.watchdog import Watchdog, timeout_line

CHUNK = 1 << 16
MOST_CHUNKS = 16  # 1 MiB: a user's largest pipe
NEVER = bytes(16)  # a `timeval`
SPARE = 4096  # bytes of a reply besides the value


class InterpreterReply(NamedTuple):
    """The interpreter's reply to a command. early: name of an exception, sent before its traceback. done: the rest,
    None until it came."""

    early: str | None = None
    done: str | None = None


class Control:
    """Channel for one command at a time; replies stand between tokens. theirs: the other end."""

    def __init__(self) -> None:
        self._socket, self.theirs = socket.socketpair()
        self._socket.setblocking(False)
        self._unsent = memoryview(b"")
        self._heard = bytearray()
        self._token = b""
        self._cap = 0
        self.reply = InterpreterReply()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def events(self) -> int:
        """Events to poll for."""
        return select.POLLIN | select.POLLHUP | (select.POLLOUT if self._unsent else 0)

    def ask(self, command: CellCommand | FreezeCommand) -> None:
        command["token"] = self._token = os.urandom(16)
        self._cap = 16 * (command["output"] if command["op"] == "cell" else 0) + SPARE
        self._heard.clear()
        self.reply = InterpreterReply()
        self._unsent = memoryview(wire.framed(marshal.dumps(dict(command))))

    def send(self) -> None:
        """Send as much as the channel takes. Raises OSError if it is closed."""
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]

    def receive(self) -> bool:
        """Read arrived data; return False at the end of the channel."""
        try:
            chunk = self._socket.recv(CHUNK)
        except BlockingIOError:
            return True
        except OSError:  # it ended with a command unread
            return False
        self._heard += chunk
        for text in take_between(self._heard, self._token, self._cap):
            if self.reply.done is not None:
                break
            if text.startswith(EARLY) and self.reply.early is None:
                self.reply = self.reply._replace(early=text[1:])
            elif text.startswith((DONE, FAILED)):
                self.reply = self.reply._replace(done=text)
        return bool(chunk)

    def forget(self) -> None:
        """Drop pending data at both ends, and reset the cells' timeouts. An interpreter may have ended before it read a
        whole command. Nothing of the session may run."""
        self._unsent = memoryview(b"")
        for kind in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self.theirs.setsockopt(socket.SOL_SOCKET, kind, NEVER)
        for end in (self._socket, self.theirs):
            with contextlib.suppress(OSError):
                while end.recv(CHUNK, socket.MSG_DONTWAIT):
                    pass


class Output:
    """Pipes of stdout and stderr. writes: their other ends, kept open here, so that they never hang up."""

    def __init__(self) -> None:
        self.reads, self.writes = zip(os.pipe(), os.pipe(), strict=True)
        for fd in self.reads:
            os.set_blocking(fd, False)
        self._sinks = {fd: Capture(1) for fd in self.reads}

    def keep(self, limit: int) -> None:
        """Start over, with at most `limit` bytes of each."""
        self._sinks = {fd: Capture(limit) for fd in self.reads}

    def read(self, ready: Container[int]) -> None:
        """Read a chunk of each ready pipe."""
        for fd, sink in self._sinks.items():
            if fd in ready:
                with contextlib.suppress(BlockingIOError):
                    sink.add(os.read(fd, CHUNK))

    def take(self) -> list[str]:
        """Read the rest, at most the pipes' capacity; return the texts."""
        for fd, sink in self._sinks.items():
            with contextlib.suppress(BlockingIOError):
                for _ in range(MOST_CHUNKS):
                    sink.add(os.read(fd, CHUNK))
        return [sink.text() for sink in self._sinks.values()]


def take_between(heard: bytearray, token: bytes, cap: int) -> list[str]:
    """Take texts between two tokens out of `heard`; keep up to `cap` bytes of an incomplete one."""
    found: list[str] = []
    while (start := heard.find(token)) >= 0:
        end = heard.find(token, start + len(token))
        if end < 0:
            del heard[: start if len(heard) - start <= cap else len(heard)]
            return found
        found.append(heard[start + len(token) : end].decode("utf-8", "replace"))
        del heard[:end]  # the second token may be a first one, after a text that broke off
    del heard[: max(0, len(heard) - len(token) + 1)]
    return found


INTERRUPT_SECONDS = 1.0  # for a cell to obey the interrupt; `subprocess.run` takes .25 of it to end its process
FLUSH_SECONDS = 0.2  # between SIGXCPU, which flushes output, and SIGKILL
SHORTEST = 0.01  # seconds between two checks of the CPU clock


class Deadlines:
    """Limits of a running command, for the interpreter `pid` and its session.

    over: names the limit that the interpreter exceeded, "" for none. tree, copies: the session's processes.

    Over a clock limit it gets an interrupt, after which it may live on, then SIGXCPU to flush output, then SIGKILL;
    over `watchdog`'s limits SIGKILL at once. A cell's CPU limit is the interpreter's alone; another process that uses
    as much in its life is killed, and so is a frozen copy that runs.
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
        """Stop or continue the wall clock. paused: seconds that it was stopped."""
        now = time.monotonic()
        if waits and self._paused_at is None:
            self._paused_at = now
        elif not waits and self._paused_at is not None:
            self.paused += now - self._paused_at
            if not self.over:
                self._end += now - self._paused_at
            self._paused_at = None

    def wait(self) -> float:
        """Return the seconds until `check` is due."""
        now = time.monotonic()
        left = self._end - now
        if self._paused_at is not None and not self.over:
            left = math.inf
        if not self.over:
            left = min(left, max(self._cpu_left() / self._cores, SHORTEST), self._watchdog.due - now)
        return max(left, 0.0)

    def check(self) -> None:
        """Take the next step if it is due. Raises OSError if the interpreter cannot even be killed."""
        now = time.monotonic()
        if not self.over:
            self._end_spinners()
            if now >= self._watchdog.due and self._watchdog.look():
                self.over = self._watchdog.reason
                del self._steps[:-1]
            elif self._cpu_left() <= 0:
                self.over = timeout_line(self._cpu_limit, " of CPU time")
            elif now >= self._end and self._paused_at is None:
                self.over = timeout_line(self._wall_limit)
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
        """Judge the interpreter's wait status; see `Watchdog.judge`."""
        starved = self._watchdog.judge(status)
        self.over = self.over or self._watchdog.reason
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


def check_not_starved(interpreter: Child, watchdog: Watchdog) -> None:
    """Raise OSError if the kernel OOM-killed the interpreter.

    Kills from before the watchdog's start do not count."""
    if interpreter.was_killed and watchdog.judge(signal.SIGKILL):
        raise OSError("the kernel ended the interpreter: the machine was out of memory")


# One command to a session's interpreter: sent, then watched until it replies or has ended.

READY = select.POLLIN | select.POLLHUP


class HostGone(Exception):
    """The host closed the worker's channel."""


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
    """Send a command and wait for the reply (`control.reply`) or the end.

    Printed text is in `output`. host: the worker's channel. functions: channel for the cell's calls of host functions,
    which stop the wall clock. Raises HostGone, and OSError if the interpreter cannot be ended.
    """
    control.ask(command)
    _send(control, interpreter)
    channel = control.fileno()
    poller = select.poll()
    poller.register(host, select.POLLRDHUP)  # the next request may have arrived already
    calls = None if functions is None else CallForwarder(functions, host, deadlines, poller)
    poller.register(channel, control.events)
    for fd in (interpreter.ended, *output.reads):
        poller.register(fd, READY)
    while True:
        ready = dict(poller.poll(math.ceil(1000 * deadlines.wait())))
        if ready.get(host.fileno(), 0) & ~select.POLLIN:
            raise HostGone
        if calls is not None:
            calls.step(ready)
        if channel in ready:
            if ready[channel] & select.POLLOUT:
                _send(control, interpreter)
            if not ready[channel] & READY or control.receive():
                poller.modify(channel, control.events)
            else:
                poller.unregister(channel)
        if interpreter.ended in ready or control.reply.done is not None:
            if calls is not None:
                calls.end()
            return
        output.read(ready)
        deadlines.check()


class CallForwarder:
    """Forwarder of a cell's function calls and the host's answers."""

    def __init__(self, functions: HostChannel, host: socket.socket, deadlines: Deadlines, poller: select.poll) -> None:
        self._functions, self._host, self._deadlines, self._poller = functions, host, deadlines, poller
        self._watch()

    def step(self, ready: Mapping[int, int]) -> None:
        """Forward what is ready, without blocking. Raises HostGone."""
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
        """Answer open calls with an error, at the cell's end."""
        self._functions.end_cell()
        self._watch()

    def _watch(self) -> None:
        functions = self._functions
        self._deadlines.pause(bool(functions.open))
        reads, writes = functions.reads * select.POLLIN, functions.writes * select.POLLOUT
        if reads or writes:
            self._poller.register(functions.fileno(), reads | writes)
        else:  # else poll would report the end of the channel again and again
            with contextlib.suppress(KeyError):
                self._poller.unregister(functions.fileno())
        self._poller.register(self._host, select.POLLRDHUP | (select.POLLIN if functions.open else 0))


def _send(control: Control, interpreter: Child) -> None:
    try:
        control.send()
    except OSError:  # a cell closed the channel
        interpreter.signal(signal.SIGKILL)
