"""Head and tail of long output. Standard library only: the workers import it."""

from __future__ import annotations

import builtins

__builtins__ = dict(vars(builtins))  # type: ignore[assignment]  # of the functions here: calls use them too, and may replace the others


def cut_middle(text: str, limit: int) -> str:
    """Cut the middle out of a text longer than `limit` characters.

    A note between head and tail gives the number of cut characters; without room for it, only the head stays.
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
    """Buffer of a stream's first and last bytes, `limit` in all."""

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
        """Return the kept bytes, without a note of the cut."""
        self._trim()
        return bytes(self._head + self._tail)

    def text(self) -> str:
        """Return the kept text, with a note of the cut. Undecodable bytes become U+FFFD."""
        self._trim()
        cut = self.total - len(self._head) - len(self._tail)
        mark = f"\n[{cut} bytes cut]\n".encode() if cut else b""
        return (self._head + mark + self._tail).decode("utf-8", "replace")


class Record:
    """Text between the first two tokens of an untrusted stream.

    A record of more than `limit` bytes is dropped, as is the rest of the stream.
    """

    __slots__ = ("_ended", "_heard", "_limit", "_searched", "_started", "_text", "_token")

    def __init__(self, token: bytes, limit: int) -> None:
        self._token, self._limit = token, limit
        self._heard = bytearray()
        self._searched = 0  # bytes of `_heard` in which no token begins
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
        """Ignore the rest. length: bytes of the record; None drops it."""
        self._ended = True
        if length is not None:
            self._text = self._heard[:length].decode("utf-8", "replace")
        self._heard = bytearray()

    def text(self) -> str | None:
        """Return the record, None without one. Undecodable bytes become U+FFFD."""
        return self._text
