"""The worker's side of the channel: messages behind their length in 4 bytes. Standard library only."""

from __future__ import annotations

import socket
import struct

from retcon.sandbox.jail.messages import Message, decoded, encoded

LENGTH = struct.Struct("!I")


def pack(message: Message) -> bytes:
    return framed(encoded(message))


def framed(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


def send(channel: socket.socket, message: Message) -> None:
    channel.sendall(pack(message))


def receive(channel: socket.socket) -> Message | None:
    """The next message, None at the end of the stream. Raises ValueError for what is none."""
    body = receive_bytes(channel)
    return None if body is None else decoded(body)


def receive_bytes(channel: socket.socket) -> bytes | None:
    """The next message as it came, None at the end of the stream."""
    header = _exactly(channel, LENGTH.size)
    return None if header is None else _exactly(channel, LENGTH.unpack(header)[0])


def _exactly(channel: socket.socket, size: int) -> bytes | None:
    data = channel.recv(size)
    if len(data) == size:
        return data
    parts = bytearray(data)
    while len(parts) < size:
        chunk = channel.recv(min(size - len(parts), 1 << 20))
        if not chunk:
            return None
        parts += chunk
    return bytes(parts)
