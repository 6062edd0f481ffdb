"""Attacks on the network: the machine's own services cannot be reached by any kind of socket."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from pathlib import Path

import pytest

from jail import ALL, NAMESPACES, Jail, contained_by

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
        result = jail.attack(f"""
            import socket
            made = socket.socket(socket.{family}, socket.{kind})
            made.settimeout(5)
            made.connect(({host!r}, {port}))
            made.send(b'hello')
            print('sent')
        """)
        assert (result.status, result.stdout) == ("error", "")
        nothing_came(listener)


@contained_by(*ALL)
def test_a_datagram_without_a_connection_is_not_sent(jail: Jail) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        result = jail.attack(f"""
            import socket
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))
        """)
        assert result.status == "error"
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


@contained_by(NAMESPACES)
def test_there_is_no_network_device_but_a_dead_loopback(jail: Jail) -> None:
    assert jail.attack("import socket\nprint(socket.if_nameindex())").status in ("ok", "error")
    result = jail.attack(
        "import socket\nsocket.create_server(('127.0.0.1', 0))\nsocket.create_connection(('1.1.1.1', 80), 5)"
    )
    assert (result.status, result.error_type) == ("error", "OSError")
    assert os.strerror(101) in result.stderr or os.strerror(99) in result.stderr
