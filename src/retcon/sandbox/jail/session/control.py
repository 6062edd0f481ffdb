"""The keeper's ends of the channel to a session's interpreter and of its output. Standard library only.

Any process of the session can have the other end: close it, fill it, leave it unread, write whatever it likes to it. So
nothing here waits, and of what comes no more is kept than one answer may be long.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import socket
from collections.abc import Container
from typing import NamedTuple

from retcon.sandbox.jail import wire
from retcon.sandbox.jail.capture import Capture
from retcon.sandbox.jail.session.interpreter import DONE, EARLY, FAILED, CellCommand, FreezeCommand

CHUNK = 1 << 16
MOST_CHUNKS = 16  # 1 MiB: the most that a user may have a pipe hold
NEVER = bytes(16)  # a `timeval`
SPARE = 4096  # bytes of an answer besides the value


class Said(NamedTuple):
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
        self.said = Said()

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
        self.said = Said()
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
