"""Functions of the host that a session's cells can call: both ends of their channel. Standard library only.

A call goes from the interpreter to the keeper, which passes it to the host and the host's answer back. Each frame is a
header (size, number) and JSON text. Any process of the session can write to the channel, so the keeper trusts nothing
in it but the header's bounds, never waits for it, and stops reading while too many calls are open.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Callable
from os import getpid
from typing import Any

from retcon.sandbox.jail.messages import HostCall

HEADER = struct.Struct("!II")
MAX_BYTES = 16 << 20
"""Size of a call's arguments, and of its answer, as JSON."""
MAX_OPEN = 256
"""Calls of a session that wait for an answer at a time; further ones wait in the channel."""
CHUNK = 1 << 16
GONE = "the functions of the host cannot be reached any more"
ENDED = json.dumps({"error": "the cell ended before the call returned"})


class HostChannel:
    """The keeper's end of the channel. theirs: the interpreter's. open: numbers of unanswered calls."""

    def __init__(self) -> None:
        self._socket, self.theirs = socket.socketpair()
        self._socket.setblocking(False)
        self._heard = bytearray()
        self._unsent = bytearray()
        self._broken = False
        self.open: set[int] = set()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def reads(self) -> bool:
        return not self._broken and len(self.open) < MAX_OPEN

    @property
    def writes(self) -> bool:
        return not self._broken and bool(self._unsent)

    def receive(self) -> list[HostCall]:
        """Read what has come and return the calls that are complete."""
        try:
            chunk = self._socket.recv(CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            chunk = b""
        if not chunk:
            self._break()
        self._heard += chunk
        return self.parsed()

    def parsed(self) -> list[HostCall]:
        """Return the calls that were read, up to `MAX_OPEN` open ones."""
        calls = []
        while self.reads and len(self._heard) >= HEADER.size:
            size, number = HEADER.unpack_from(self._heard)
            if size > MAX_BYTES:  # not from `HostFunctions`: no frame can be found behind it
                self._break()
            elif len(self._heard) < HEADER.size + size:
                break
            else:
                body = self._heard[HEADER.size : HEADER.size + size].decode("utf-8", "replace")
                del self._heard[: HEADER.size + size]
                if number not in self.open:
                    self.open.add(number)
                    calls.append(HostCall(number, body))
        return calls

    def answer(self, number: int, body: str) -> None:
        """Queue an answer; one to a call that is not open is dropped."""
        if number in self.open:
            self.open.remove(number)
            encoded = body.encode("utf-8", "replace")
            self._unsent += HEADER.pack(len(encoded), number) + encoded

    def send(self) -> None:
        """Write as much as the channel takes."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._break()

    def _break(self) -> None:
        """Close the channel for good: calls raise an error from here on."""
        self._broken = True
        self._heard.clear()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def end_cell(self) -> None:
        """Answer open calls, for threads that outlive the cell."""
        for number in sorted(self.open):
            self.answer(number, ENDED)

    def close(self) -> None:
        self._socket.close()

    def forget(self) -> None:
        """Drop pending data at both ends, while nothing of the session runs."""
        self.open.clear()
        self._heard.clear()
        self._unsent.clear()
        for end in (self._socket, self.theirs):
            with contextlib.suppress(OSError):
                while end.recv(CHUNK, socket.MSG_DONTWAIT):
                    pass


class HostFunctions:
    """The interpreter's end of the channel, for all its threads."""

    def __init__(self, fd: int) -> None:
        import threading  # not for the sessions without functions: it makes each of their forks slower

        self._socket = socket.socket(fileno=fd)
        self._heard = bytearray()
        self._pid = getpid()
        self._number = 0
        self._answers: dict[int, str] = {}
        self._writing = threading.Lock()
        self._reader = threading.Condition()
        self._reading = False

    def adopt_process(self) -> None:
        """Continue in a copy of the process."""
        self._pid = getpid()

    def function(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return self._call(name, args, kwargs)
            except BaseException as error:  # noqa: BLE001 - raised again, without the frames of this file
                raise error.with_traceback(None) from None

        call.__name__ = call.__qualname__ = name
        call.__code__ = call.__code__.replace(co_filename="<host>", co_name=name, co_qualname=name, co_firstlineno=1)
        call.__doc__ = "A function of the host: its arguments and its result are JSON values."
        return call

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if getpid() != self._pid:
            raise RuntimeError(f"{name}() can be called in the interpreter's own process only, not in one it started")
        body = json.dumps([name, args, kwargs]).encode()
        if len(body) > MAX_BYTES:
            raise ValueError(f"the arguments of {name}() take {len(body)} bytes as JSON: {MAX_BYTES} at most")
        with self._writing:
            self._number += 1
            number = self._number
            try:
                self._socket.sendall(HEADER.pack(len(body), number) + body)
            except OSError as error:
                raise RuntimeError(GONE) from error
        answer = json.loads(self._wait(number))
        if "error" in answer:
            raise RuntimeError(f"{name}(): {answer['error']}")
        return answer["value"]

    def _wait(self, number: int) -> str:
        """Wait for an answer; of the threads that wait, one reads for all."""
        with self._reader:
            while number not in self._answers:
                if self._reading:
                    self._reader.wait()
                    continue
                self._reading = True
                self._reader.release()
                try:
                    other, body = self._receive()
                finally:
                    self._reader.acquire()
                    self._reading = False
                    self._reader.notify_all()
                self._answers[other] = body
            return self._answers.pop(number)

    def _receive(self) -> tuple[int, str]:
        while True:
            if len(self._heard) >= HEADER.size:
                size, number = HEADER.unpack_from(self._heard)
                if len(self._heard) >= HEADER.size + size:
                    body = self._heard[HEADER.size : HEADER.size + size].decode()
                    del self._heard[: HEADER.size + size]
                    return number, body
            chunk = self._socket.recv(CHUNK)
            if not chunk:
                raise RuntimeError(GONE)
            self._heard += chunk
