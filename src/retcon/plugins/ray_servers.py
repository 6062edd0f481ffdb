"""Sandbox servers on the nodes of a running Ray cluster, one each.

    with sandbox_servers(workers=16) as fleet:
        ...  # [sandbox] url = fleet.urls, RETCON_SANDBOX_TOKEN = fleet.token

Needs `ray`, and [serve] and [sandbox] on every node. See docs/sandbox/service.md, "A fleet".
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from retcon.core.errors import SandboxUnavailable


@dataclass(frozen=True, slots=True)
class Fleet:
    """Running servers. urls: in the order of Ray's nodes. token: for their clients."""

    urls: tuple[str, ...]
    token: str


class Keeper:
    """Actor that keeps one server on its node."""

    def __init__(self, token: str, options: Sequence[str]) -> None:
        self._token, self._options = token, tuple(options)
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  an unread pipe would fill and block it

    def start(self) -> str:
        """Start the server; return its URL. Raises SandboxUnavailable where it does not start."""
        words = [sys.executable, "-m", "retcon", "sandbox", "serve", "--host", ray.util.get_node_ip_address()]
        self._process = subprocess.Popen(
            [*words, "--port", "0", *self._options],
            env={**os.environ, "RETCON_SANDBOX_TOKEN": self._token},
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("listening on "):
            self._process.wait()
            self._errors.seek(0)
            raise SandboxUnavailable(f"no server on {ray.util.get_node_ip_address()}: {self._errors.read()}")
        return line.split()[2]

    def stop(self) -> None:
        """Stop the server in order, draining if --drain is among its options."""
        if self._process is not None:
            self._process.terminate()
            self._process.communicate()


@contextmanager
def sandbox_servers(*, workers: int | None = None, options: Sequence[str] = ()) -> Iterator[Fleet]:
    """Run a server on every live node during the block. Ray has to be initialised. workers: calls of each at a time, by
    default as `retcon sandbox serve`; options: more of that command's. Raises SandboxUnavailable where one does not
    start."""
    token = secrets.token_hex(32)
    arguments = [*(("--workers", str(workers)) if workers is not None else ()), *options]
    actor: Any = ray.remote(num_cpus=0)(Keeper)
    keepers = [
        actor.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)).remote(
            token, arguments
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    try:
        yield Fleet(tuple(ray.get([keeper.start.remote() for keeper in keepers])), token)
    finally:
        ray.get([keeper.stop.remote() for keeper in keepers])
        for keeper in keepers:
            ray.kill(keeper)
