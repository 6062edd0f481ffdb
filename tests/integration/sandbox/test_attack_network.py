"""Attacks on the network: the machine's own services cannot be reached by any kind of socket."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import tempfile
from pathlib import Path

import pytest

from jail import ALL, NAMESPACES, Jail, contained_by
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Result

# In the tier rlimits it is the system call filter that holds; a kernel without one has the network open (docs).


def nothing_came(listener: socket.socket) -> None:
    listener.settimeout(0)
    with pytest.raises(BlockingIOError):
        listener.accept() if listener.type == socket.SOCK_STREAM else listener.recv(100)


@contained_by(*ALL)
@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6"])
@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM"])
def test_a_port_of_the_machine_is_not_reached(jail: Jail, family: str, kind: str) -> None:
    host = "127.0.0.1" if family == "AF_INET" else "::1"
    with socket.socket(getattr(socket, family), getattr(socket, kind)) as listener:
        try:
            listener.bind((host, 0))
        except OSError as error:
            pytest.skip(f"the machine has no {host}: {error}")
        if kind == "SOCK_STREAM":
            listener.listen()
        port = listener.getsockname()[1]
        result = jail.attack(
            f"""
            import socket
            made = socket.socket(socket.{family}, socket.{kind})
            made.settimeout(5)
            made.connect(({host!r}, {port}))
            made.send(b'hello')
            print('sent')
            """,
            talks=True,
        )
        if not (jail.tier == NAMESPACES and kind == "SOCK_DGRAM"):  # into a loopback of its own, where nobody listens
            assert (result.status, result.stdout) == ("error", "")
        nothing_came(listener)


@contained_by(*ALL)
def test_a_datagram_without_a_connection_is_not_sent(jail: Jail) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        result = jail.attack(
            f"""
            import socket
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))
            """,
            talks=True,
        )
        assert jail.tier == NAMESPACES or result.status == "error"
        nothing_came(listener)


@contained_by(*ALL)
@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM"])
@pytest.mark.parametrize("abstract", [True, False], ids=["abstract", "path"])
def test_a_local_socket_of_the_machine_is_not_reached(jail: Jail, kind: str, abstract: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        address = "\0" + secrets.token_hex(8) if abstract else f"{folder}/socket"
        with socket.socket(socket.AF_UNIX, getattr(socket, kind)) as listener:
            listener.bind(address)
            if not abstract:
                Path(address).chmod(0o777)
            if kind == "SOCK_STREAM":
                listener.listen()
            result = jail.attack(f"""
                import socket
                ways = [lambda: socket.socket(socket.AF_UNIX, socket.{kind})]
                ways += [lambda: socket.socketpair(socket.AF_UNIX, socket.{kind})[0]]
                for make in ways:
                    try:
                        made = make()
                        try:
                            made.sendto(b'x', {address!r})
                            print('sent')
                        except OSError:
                            pass
                        made.connect({address!r})
                        made.send(b'x')
                        print('sent')
                    except OSError:
                        pass
            """)
            assert (result.status, result.stdout) == ("ok", ""), result
            nothing_came(listener)


@contained_by(*ALL)
@pytest.mark.parametrize("family", [16, 17, 29, 30, 31, 38, 40, 44])  # netlink, packet, can, tipc, … alg, vsock, xdp
def test_other_families_are_closed(jail: Jail, family: int) -> None:
    result = jail.attack(f"""
        import socket
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
            try:
                socket.socket({family}, kind)
                print('made')
            except OSError as error:
                assert error.errno in (13, 97), error
    """)
    assert (result.status, result.stdout) == ("ok", ""), result


@contained_by(*ALL)
def test_nothing_can_be_offered_to_the_machine(jail: Jail) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    result = jail.attack(
        f"""
        import socket, time
        server = socket.create_server(('127.0.0.1', {port}))
        time.sleep(60)
        """,
        wall_seconds=0.3,
    )
    if jail.tier == NAMESPACES:  # a port of its own namespace, which no one else is in
        assert result.status in ("timeout", "error")
    else:
        assert (result.status, result.error_type) == ("error", "PermissionError")
    with socket.socket() as other, pytest.raises(ConnectionRefusedError):
        other.connect(("127.0.0.1", port))


@contained_by(*ALL)
def test_a_pair_of_connected_sockets_works(jail: Jail) -> None:
    result = jail.attack("""
        import asyncio, socket
        a, b = socket.socketpair()
        a.send(b'x')
        async def main():
            return b.recv(1)
        print(asyncio.run(main()))
    """)
    assert result.stdout == "b'x'\n", result


@pytest.fixture
def loopback(jail: Jail) -> None:
    """Skips where calls have none."""
    found = jail.run("import socket\nsocket.create_connection(('127.0.0.1', 9), 5)")
    jail.run("pass")  # another worker in place of the one that has used its own
    if found.error_type != "ConnectionRefusedError":
        pytest.skip("this machine lets nobody set the buffers of a network namespace, so that its loopback stays down")


@contained_by(NAMESPACES)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.usefixtures("loopback")
def test_a_program_talks_to_a_server_of_its_own_and_leaves_no_trace_of_it(jail: Jail, host: str) -> None:
    """The port is free for the next call at once, though the server is the one to close its connection first."""
    for word in ("first", "second"):
        result = jail.attack(
            f"""
            import socket, socketserver, threading
            class Handler(socketserver.BaseRequestHandler):
                def handle(self):
                    self.request.sendall({word!r}.encode())
            server = socketserver.TCPServer(('', 34567), Handler)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            with socket.create_connection(({host!r}, 34567), 30) as made:
                print(made.recv(100).decode())
            """,
            talks=True,
        )
        assert (result.status, result.stdout) == ("ok", f"{word}\n"), result


@contained_by(NAMESPACES)
@pytest.mark.usefixtures("loopback")
def test_two_calls_have_a_loopback_each(jail: Jail) -> None:
    async def both() -> list[Result]:
        async with SandboxPool(workers=2, tier=NAMESPACES) as pool:
            listens = "import socket, time\nmade = socket.create_server(('127.0.0.1', 34567))\ntime.sleep(1)"
            first = asyncio.create_task(pool.run(listens))
            others = [await pool.run(listens.replace("sleep(1)", "sleep(0)")) for _ in range(3)]
            return [await first, *others]

    assert {result.status for result in asyncio.run(both())} == {"ok"}


@contained_by(NAMESPACES)
@pytest.mark.usefixtures("loopback")
def test_what_waits_in_connections_is_bounded(jail: Jail) -> None:
    """The kernel's memory for it counts nowhere; it lets one grow to some ten MiB where nobody says otherwise."""
    result = jail.attack(
        """
        import socket
        server = socket.create_server(('127.0.0.1', 0))
        made = socket.create_connection(server.getsockname())
        other = server.accept()[0]
        other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 26)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 26)
        for _ in range(300):  # a reader that keeps up lets both ends grow
            made.sendall(bytes(1 << 15))
            left = 1 << 15
            while left:
                left -= len(other.recv(left))
        made.setblocking(False)
        sent = 0
        try:
            while True:
                sent += made.send(bytes(1 << 15))
        except BlockingIOError:
            print(sent)
        """,
        talks=True,
    )
    assert result.status == "ok", result
    assert int(result.stdout) < 1 << 20


@contained_by(*ALL)
@pytest.mark.parametrize("protocol", [1, 33, 132, 136, 262])  # ICMP, DCCP, SCTP, UDP-Lite, MPTCP
def test_other_protocols_are_closed(jail: Jail, protocol: int) -> None:
    result = jail.attack(f"""
        import errno, socket
        for family in (socket.AF_INET, socket.AF_INET6):
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_RAW):
                try:
                    socket.socket(family, kind, {protocol})
                    print('made')
                except OSError as error:
                    assert error.errno in (errno.EPROTONOSUPPORT, errno.EACCES), error
    """)
    assert (result.status, result.stdout) == ("ok", ""), result


@contained_by(NAMESPACES)
def test_there_is_no_network_device_but_the_loopback(jail: Jail) -> None:
    assert jail.attack("import socket\nprint(socket.if_nameindex())").status in ("ok", "error")
    result = jail.attack(
        "import socket\nsocket.create_server(('127.0.0.1', 0))\nsocket.create_connection(('1.1.1.1', 80), 5)"
    )
    assert (result.status, result.error_type) == ("error", "OSError")
    assert os.strerror(101) in result.stderr or os.strerror(99) in result.stderr
