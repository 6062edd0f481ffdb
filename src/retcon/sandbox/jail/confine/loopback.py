"""The loopback interface of a network namespace of one's own: programs may talk to themselves, over it alone.

Standard library only: the workers import it. It is brought up only where the kernel's memory for what waits in its
connections can be bounded: that counts nowhere else, and TCP lets it grow to some ten MiB for each connection.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct

BUFFERS = "4096 65536 131072"
"""Bytes that a connection may hold back, at each end: least, at first, most."""
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_READ = 4096


def bring_up() -> Traffic:
    """In a fresh network namespace, with the capabilities that its maker has there. Raises OSError."""
    for way in ("rmem", "wmem"):
        with open(f"/proc/sys/net/ipv4/tcp_{way}", "w") as file:
            file.write(BUFFERS)
    # a port stays taken for a minute after a connection, which a session that is taken back would meet
    with contextlib.suppress(OSError), open("/proc/sys/net/ipv4/tcp_max_tw_buckets", "w") as file:
        file.write("0")
    traffic = Traffic()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))
    return traffic


class Traffic:
    """Counts what has passed through the namespace that this process is in."""

    def __init__(self) -> None:
        self._counters = os.open("/proc/thread-self/net/dev", os.O_RDONLY | os.O_CLOEXEC)
        self._before = self._now()

    def seen(self) -> bool:
        """Whether there was any since this was made.

        Then something of it may be left to be met by who comes next, such as a port that stays taken for a minute
        where the kernel does not let `bring_up` keep it from that.
        """
        return self._now() != self._before

    def _now(self) -> bytes:
        return os.pread(self._counters, _READ, 0)
