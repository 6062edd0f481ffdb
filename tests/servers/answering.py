"""A server of JSON over HTTP that answers as a test says: real sockets, on the loopback interface."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """status: None closes the connection without a word. body: JSON, or text that is none."""

    body: object = None
    status: int | None = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    path: str
    body: Body
    authorization: str
    gone: Callable[[], bool]
    """Whether the client has closed the connection."""


Reply = Callable[[Asked], Answer]


class Server(ThreadingHTTPServer):
    """asked: every request for an answer, in order. `/v1/models` is answered by itself where models are named."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, reply: Reply, models: Sequence[str], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.reply, self.models = reply, models
        self.asked: list[Asked] = []
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/v1/models" and self.server.models:
            self._answer(Answer({"data": [{"id": name, "object": "model"} for name in self.server.models]}))
        else:
            self._answer(self.server.reply(Asked(self.path, {}, self.headers.get("Authorization", ""), self._gone)))

    do_DELETE = do_GET

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))) or "{}")
        asked = Asked(self.path, body, self.headers.get("Authorization", ""), self._gone)
        self.server.asked.append(asked)
        self._answer(self.server.reply(asked))

    def _gone(self) -> bool:
        self.connection.settimeout(0.05)
        try:
            return self.connection.recv(1, socket.MSG_PEEK) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    def _answer(self, answer: Answer) -> None:
        if answer.status is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        data = answer.body.encode() if isinstance(answer.body, str) else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        for name, value in {"Content-Length": str(len(data)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Quiet."""


@contextmanager
def serving(reply: Reply, models: Sequence[str] = ("small",)) -> Iterator[Server]:
    """A server that answers as `reply` says."""
    server = Server(reply, models)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


def said(content: str | None, *calls: Mapping[str, str], finish: str = "stop") -> Answer:
    """A chat completion. calls: `name` and `arguments` (text), and `id` where they have one."""
    message: Body = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": call.get("id", ""), "type": "function", "function": {k: call[k] for k in ("name", "arguments")}}
            for call in calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return Answer({"choices": [choice], "usage": {"prompt_tokens": 10, "completion_tokens": 3}})


def python(code: str, id: str = "") -> dict[str, str]:
    return {"name": "python", "arguments": json.dumps({"code": code}), "id": id}
