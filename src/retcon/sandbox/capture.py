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
