"""Real vLLM servers under test: what they count, and how they are killed."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import httpx

from retcon.engine.vllm.process import Server

Start = Callable[..., Server]


class Running(Protocol):
    @property
    def url(self) -> str: ...
    @property
    def pid(self) -> int | None: ...


class Child:
    """A server that this process started, found by its command line."""

    def __init__(self, pid: int, words: list[str]) -> None:
        self.pid = pid
        self.url = f"http://127.0.0.1:{words[words.index('--port') + 1]}"


def children() -> Iterator[Child]:
    """The servers that this process has started and that are not gone."""
    for folder in Path("/proc").iterdir():
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            words = (folder / "cmdline").read_text().split("\0")
        except (OSError, ValueError, IndexError):
            continue
        if parent == os.getpid() and "vllm.entrypoints.openai.api_server" in words:
            yield Child(int(folder.name), words)


def metric(server: Running, name: str) -> float:
    """Of the server's own counters, the sum of those whose line begins with the expression; 0 while it is not up."""
    try:
        lines = httpx.get(f"{server.url}/metrics", trust_env=False).text.splitlines()
    except httpx.TransportError:
        return 0.0
    return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(name, line))


def kill_in_the_middle(server: Running) -> None:
    """Once it generates, with all that it started."""
    while metric(server, "vllm:num_requests_running") < 2:
        time.sleep(0.005)
    assert server.pid is not None
    os.killpg(server.pid, signal.SIGKILL)
