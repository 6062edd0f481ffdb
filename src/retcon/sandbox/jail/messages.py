"""Messages between host, zygote, worker and keeper. Standard library only.

A message travels as JSON, the name of its kind and its fields in order: field names would cost time and touched memory
in every call. Host and jail share this file and version; the receiver of any other message raises ValueError.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, NamedTuple, TypeAlias, get_args

CHECKPOINTS = 16
"""Most checkpoints of a session."""
TOO_MANY = f"a session keeps {CHECKPOINTS} checkpoints at most: discard some"
"""Error at one more."""


class Bounds(NamedTuple):
    """Limits of a call: `sandbox.types.Limits` field by field."""

    cpu_seconds: float
    wall_seconds: float
    memory_mb: int
    output_bytes: int
    file_mb: int
    open_files: int
    processes: int


class ForkOrder(NamedTuple):
    """Host to zygote, with the descriptor of the worker's channel: fork a worker. root: its folder on the host.

    tier: requested, "" for the best. uids: (first, count) of the users that its calls may run as, None for the
    sandbox's own.
    """

    root: str
    tier: str
    uids: list[int] | None = None


class Imported(NamedTuple):
    """Zygote to host: it is ready. packages: top-level names of its imports."""

    packages: list[str]


class Forked(NamedTuple):
    """Zygote to host, with the worker's pidfd."""

    pid: int


class Failed(NamedTuple):
    """Zygote or worker to host: it cannot do what was requested."""

    error: str


class Facts(NamedTuple):
    """Worker to host: it is ready. The protection around its calls; see `Confinement`.

    no_cgroup: why it has none, "" with one. unprotected: gaps of the protection, in words. folders: where files may be
    put by an absolute path.
    """

    tier: str
    network: bool
    files: bool
    processes: bool
    own_user: bool
    system_calls: bool
    no_cgroup: str
    unprotected: list[str]
    folders: list[str]


class RunCall(NamedTuple):
    """Host to worker: run a program; host to keeper: run a cell. files: path to content in base64. fetch: paths to
    return. seed: of a program's random numbers, None for any."""

    code: str
    stdin: str
    limits: Bounds
    files: dict[str, str]
    echo: bool
    fetch: list[str]
    seed: int | None = None


class Outcome(NamedTuple):
    """Result of a call or a cell: `sandbox.types.Result` field by field, with `files` in base64."""

    status: str
    error_type: str | None = None
    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    exit_code: int | None = None
    seconds: float = 0.0
    peak_memory: int = 0
    tier: str | None = None
    files: dict[str, str] = {}  # noqa: RUF012 - never changed


class CallEnded(NamedTuple):
    """Worker to host. retire: whether the worker ends with this call."""

    outcome: Outcome
    retire: bool


class OpenSession(NamedTuple):
    """Host to worker: become the keeper of a session until it is closed. limits: upper bounds of its cells'. seed: see
    `RunCall`. functions: names of the host's functions that cells can call."""

    limits: Bounds
    seed: int | None = None
    functions: list[str] = []  # noqa: RUF012 - never changed


class CloseSession(NamedTuple):
    """Host to keeper: end the session."""


class SessionClosed(NamedTuple):
    """Worker to host: the session is cleaned up. retire: whether the worker ends with it."""

    retire: bool


class HostCall(NamedTuple):
    """Keeper to host, while a cell runs: call a function. body: JSON of its name, arguments and keywords, unchecked."""

    number: int
    body: str


class HostReturn(NamedTuple):
    """Host to keeper: the answer to a `HostCall`. body: JSON of an object with `value` or `error`."""

    number: int
    body: str


class MakeCheckpoint(NamedTuple):
    """Host to keeper: make a checkpoint with that name."""

    name: str


class RollBack(NamedTuple):
    """Host to keeper: go to that checkpoint."""

    name: str


class Discard(NamedTuple):
    """Host to keeper: free that checkpoint."""

    name: str


class SessionReply(NamedTuple):
    """Keeper to host, after each request. outcome: of a cell that ran. memory: bytes that the session takes.

    refused: why a checkpoint was. full: too many or too large ones exist already. lost: why the interpreter is gone, ""
    if it is alive. fault: whether that is the machine's fault, and the session is over.
    """

    memory: int
    outcome: Outcome | None = None
    refused: str = ""
    lost: str = ""
    fault: bool = False
    full: bool = False


Message: TypeAlias = (
    ForkOrder
    | Imported
    | Forked
    | Failed
    | Facts
    | RunCall
    | CallEnded
    | OpenSession
    | CloseSession
    | SessionClosed
    | HostCall
    | HostReturn
    | MakeCheckpoint
    | RollBack
    | Discard
    | SessionReply
)
_BY_NAME: dict[str, Any] = {kind.__name__: kind for kind in get_args(Message)}
_RECORDS: dict[Any, tuple[int, Any]] = {
    RunCall: (RunCall._fields.index("limits"), Bounds),
    OpenSession: (OpenSession._fields.index("limits"), Bounds),
    CallEnded: (CallEnded._fields.index("outcome"), Outcome),
    SessionReply: (SessionReply._fields.index("outcome"), Outcome),
}
"""Messages with a nested record: index and type of that field."""


def encoded(message: Message) -> bytes:
    return json.dumps((type(message).__name__, message)).encode()


def decoded(body: bytes) -> Message:
    """Decode a message. Raises ValueError if it is not one."""
    try:
        name, fields = json.loads(body)
        kind = _BY_NAME[name]
        if not isinstance(fields, list):
            raise TypeError(f"the fields of {name} are not a list")
        if kind in _RECORDS:
            place, record = _RECORDS[kind]
            if fields[place] is not None:
                fields[place] = record(*fields[place])
        message: Message = kind(*fields)
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"not a message of the sandbox: {error}") from error
    return message


LENGTH = struct.Struct("!I")


def pack(message: Message) -> bytes:
    return framed(encoded(message))


def framed(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


def send(channel: socket.socket, message: Message) -> None:
    channel.sendall(pack(message))


def receive(channel: socket.socket) -> Message | None:
    """Receive the next message, None at the end. Raises ValueError if it is invalid."""
    body = receive_bytes(channel)
    return None if body is None else decoded(body)


def receive_bytes(channel: socket.socket) -> bytes | None:
    """Receive the next message's bytes, None at the end."""
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
