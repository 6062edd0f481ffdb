"""Annotated problems of our own, and a teacher behind HTTP, for tests of demonstrations."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from retcon.config.load import load_recipe
from retcon.config.schema import Recipe

Messages = list[dict[str, str]]
Reply = Callable[[Messages], str | int]
"""What a teacher says to messages; a number is a status to refuse with."""


def annotated(count: int) -> list[dict[str, str]]:
    """Problems about shelves, each with a solution in three annotated steps."""
    rows = []
    for n in range(count):
        jars, extra = 40 + n, 3 + n % 5
        left = jars // 2
        each = left + extra
        rows.append(
            {
                "question": f"A shelf holds {jars // 2 * 2} jars of plum jam number {n}. Half are sold, then {extra} "
                "more arrive. How many jars are on three such shelves?",
                "answer": f"After the sale {jars // 2 * 2}/2 = <<{jars // 2 * 2}/2={left}>>{left} jars are left.\n"
                f"With the new ones there are {left}+{extra} = <<{left}+{extra}={each}>>{each} jars.\n"
                f"Three shelves hold {each} x 3 = <<{each}*3={each * 3}>>{each * 3} jars.\n#### {each * 3}",
            }
        )
    return rows


def annotated_recipe(folder: Path, rows: Sequence[Mapping[str, object]], *changes: str) -> Recipe:
    """A recipe of these problems, all for training."""
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    given = (
        "task.kind=file", f"task.path={file}", "task.evaluation_share=0", "demos.kind=annotated",
        "rollout.max_tokens=3000", "sandbox.output_chars=100", f"sft.demonstrations={len(rows)}",
    )  # fmt: skip
    return load_recipe(None, [*given, *changes])


class _Server(ThreadingHTTPServer):
    """A chat-completions server. asked: (authorization, body) of every request."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.reply = reply
        self.asked: list[tuple[str, dict[str, Any]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.headers.get("Authorization", ""), body))
        said = self.server.reply(body["messages"])
        content = {"choices": [{"message": {"role": "assistant", "content": said}}]}
        data = json.dumps(content).encode() if isinstance(said, str) else b"no"
        self.send_response(200 if isinstance(said, str) else said)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Quiet."""


@contextmanager
def teacher_at(reply: Reply) -> Iterator[_Server]:
    """A server that answers as `reply` says."""
    server = _Server(reply)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
