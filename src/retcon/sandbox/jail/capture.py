"""Keeping the head and the tail of what is too long. Standard library only: the workers import it."""

from __future__ import annotations

import builtins

__builtins__ = dict(vars(builtins))  # type: ignore[assignment]  # of the functions here: calls use them too, and may replace the others


def cut_middle(text: str, limit: int) -> str:
    """`text`, or its head and tail with the cut said between them: `limit` characters at most.

    Where the limit has no room for saying so, the head alone.
    """
    if len(text) <= limit:
        return text
    keep = limit - len(_mark(len(text)))
    if keep <= 0:
        return text[:limit]
    tail = keep // 2
    return text[: keep - tail] + _mark(len(text) - keep) + text[len(text) - tail :]


def _mark(count: int) -> str:
    return f"\n[{count} characters cut]\n"


class Capture:
    """Bytes of a stream, of which at most `limit` are kept: half from its start, half from its end."""

    __slots__ = ("_head", "_head_limit", "_tail", "_tail_limit", "total")

    def __init__(self, limit: int) -> None:
        self._tail_limit = limit // 2
        self._head_limit = limit - self._tail_limit
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if chunk:
            self._tail += chunk
            if len(self._tail) > 2 * self._tail_limit + 65536:  # trimmed seldom, so that a flood costs little
                self._trim()

    def _trim(self) -> None:
        del self._tail[: max(len(self._tail) - self._tail_limit, 0)]

    def data(self) -> bytes:
        """What was kept, without a mark where it was cut."""
        self._trim()
        return bytes(self._head + self._tail)

    def text(self) -> str:
        """What was kept, as UTF-8 (undecodable bytes become U+FFFD), the cut said where there is one."""
        self._trim()
        cut = self.total - len(self._head) - len(self._tail)
        mark = f"\n[{cut} bytes cut]\n".encode() if cut else b""
        return (self._head + mark + self._tail).decode("utf-8", "replace")


class Record:
    """What stands between the first two tokens of a stream that anyone may write to. Of the rest nothing is kept.

    A record that is longer than `limit` bytes is none.
    """

    __slots__ = ("_ended", "_heard", "_limit", "_searched", "_started", "_text", "_token")

    def __init__(self, token: bytes, limit: int) -> None:
        self._token, self._limit = token, limit
        self._heard = bytearray()
        self._searched = 0  # of what was heard: no token begins there
        self._started = self._ended = False
        self._text: str | None = None

    def add(self, chunk: bytes) -> None:
        if self._ended:
            return
        self._heard += chunk
        while (at := self._heard.find(self._token, self._searched)) >= 0:
            if self._started:
                self._end(at if at <= self._limit else None)
                return
            del self._heard[: at + len(self._token)]
            self._started, self._searched = True, 0
        self._searched = max(len(self._heard) - len(self._token) + 1, 0)
        if not self._started:
            del self._heard[: self._searched]
            self._searched = 0
        elif self._searched > self._limit:
            self._end(None)

    def _end(self, length: int | None) -> None:
        """Nothing more is looked at: it is what was heard up to `length`, or there is none."""
        self._ended = True
        if length is not None:
            self._text = self._heard[:length].decode("utf-8", "replace")
        self._heard = bytearray()

    def text(self) -> str | None:
        """The record, as UTF-8 with U+FFFD for what is none. None where there is none."""
        return self._text
