"""What the processes of a sandbox say to each other: host, zygote, worker, keeper. Standard library only.

A message travels as JSON, the name of its kind and its fields in order: what names each field would be read, and
touched in memory, in every call. Host and jail are of one version and share this file; a message of another form is no
message, and whoever gets it raises ValueError.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, NamedTuple, TypeAlias, get_args

CHECKPOINTS = 16
"""How many a session keeps."""
TOO_MANY = f"a session keeps {CHECKPOINTS} checkpoints at most: discard some"
"""Why one more is refused."""


class Bounds(NamedTuple):
    """`sandbox.types.Limits`, field by field."""

    cpu_seconds: float
    wall_seconds: float
    memory_mb: int
    output_bytes: int
    file_mb: int
    open_files: int
    processes: int


class ForkOrder(NamedTuple):
    """Host to zygote, with the descriptor of the worker's channel: fork one. root: its folder on the host.

    tier: asked for, "" for the best. uids: (first, count) of the users that its calls may run as, None for the
    sandbox's own.
    """

    root: str
    tier: str
    uids: list[int] | None = None


class Imported(NamedTuple):
    """Zygote to host: it is ready. packages: top-level names of what it has imported."""

    packages: list[str]


class Forked(NamedTuple):
    """Zygote to host, with the worker's pidfd."""

    pid: int


class Failed(NamedTuple):
    """Zygote or worker to host: what was asked for is unavailable."""

    error: str


class Facts(NamedTuple):
    """Worker to host: it is ready. What holds around its calls, as `Confinement` has it.

    no_cgroup: why it has none, "" where it has one. unprotected: in words, what calls are not kept from. folders: where
    files may be put by an absolute path.
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
    """Host to worker: run a program; host to keeper: run a cell. files: path to content in base64. fetch: paths to hand
    back. seed: of a program's random numbers, None for any."""

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
    """Host to worker: be the keeper of a session until that is closed. limits: that no cell's own exceed. seed: as in
    `RunCall`. functions: names of the host's functions that cells can call."""

    limits: Bounds
    seed: int | None = None
    functions: list[str] = []  # noqa: RUF012 - never changed


class CloseSession(NamedTuple):
    """Host to keeper: end the session."""


class SessionClosed(NamedTuple):
    """Worker to host: nothing of the session is left. retire: whether the worker ends with it."""

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
    """Host to keeper: make a checkpoint of that name."""

    name: str


class RollBack(NamedTuple):
    """Host to keeper: go to that checkpoint."""

    name: str


class Discard(NamedTuple):
    """Host to keeper: free that checkpoint."""

    name: str


class SessionReply(NamedTuple):
    """Keeper to host, after each request. outcome: of a cell that ran. memory: bytes that the session takes.

    refused: why a checkpoint was. full: as there are too many, or too large ones, already. lost: why the interpreter is
    gone, "" where it is there. fault: whether that is the machine's fault, and the session is over.
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
"""Where a message has a record within it, and of what kind."""


def encoded(message: Message) -> bytes:
    return json.dumps((type(message).__name__, message)).encode()


def decoded(body: bytes) -> Message:
    """Raises ValueError for what is none of the messages."""
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
        raise ValueError(f"not a message of the sandbox's: {error}") from error
    return message


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
