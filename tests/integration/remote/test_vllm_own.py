"""A vLLM server of our own, as far as it is a process: started, started again when it has ended, ended with all that it
started. What stands in for vLLM speaks its protocol; a real vLLM is in tests/real."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

from retcon.engine.vllm.engine import VLLMEngine, VLLMSettings
from retcon.engine.vllm.process import Launch, Server
from servers.asking_vllm import GREEDY
from servers.speaking_vllm import TOKENIZER

PROGRAM = """
import socket, subprocess, sys
sys.path[:0] = {path!r}
from pathlib import Path
from servers.answering import Server
from servers.speaking_vllm import VLLM

port, notes = int(sys.argv[sys.argv.index("--port") + 1]), Path({notes!r})
{first}
Server(VLLM(), (), port).serve_forever()
"""
WORKER = """
worker = subprocess.Popen(["sleep", "600"])
notes.open("a").write(f"{worker.pid}\\n")
"""
TAKEN = """
tries = [*notes.read_text().split(), str(port)] if notes.exists() else [str(port)]
notes.write_text(" ".join(tries))
if len(tries) < 3:
    raise OSError(98, "Address already in use")
"""


def server_of(folder: Path, first: str) -> Server:
    """first: what it does before it serves, beside `notes`."""
    program, python = folder / "server.py", folder / "python"
    path = [path for path in sys.path if path]
    program.write_text(PROGRAM.format(path=path, notes=str(folder / "notes"), first=first))
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
    python.chmod(0o755)
    return Server(Launch(str(python), folder, "float32", 64), 60)


def engine_of(own: Server) -> VLLMEngine:
    return VLLMEngine(VLLMSettings(), TOKENIZER, max_len=64, model=lambda: cast(Any, None), own=own)


def ended(pid: int) -> bool:
    """Whether a process is gone, or is as good as gone; soon, at least."""
    for _ in range(1000):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="only Linux tells of other processes")
def test_a_server_that_was_killed_is_started_again_and_its_workers_end_with_it(tmp_path: Path) -> None:
    own = server_of(tmp_path, WORKER)
    engine = engine_of(own)

    async def work() -> None:
        async with engine.connected():
            assert (await engine.generate("a", [5], GREEDY)).ids == (5, 5, 5)
            assert own.pid is not None
            os.kill(own.pid, signal.SIGKILL)
            assert (await engine.generate("b", [6], GREEDY)).ids == (6, 6, 6)
            assert own.alive

    asyncio.run(asyncio.wait_for(work(), 60))
    assert (engine.stats.restarted, own.alive) == (1, False)
    started = [int(line) for line in (tmp_path / "notes").read_text().split()]
    assert len(started) == 2
    assert all(ended(pid) for pid in started)


def answered_by(own: Server) -> None:
    engine = engine_of(own)

    async def work() -> None:
        async with engine.connected():
            assert (await engine.generate("a", [5], GREEDY)).ids == (5, 5, 5)

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_server_that_finds_its_port_in_use_is_started_at_another(tmp_path: Path) -> None:
    answered_by(server_of(tmp_path, TAKEN))
    ports = (tmp_path / "notes").read_text().split()
    assert len(ports) == 3
    assert len(set(ports)) > 1, "the same free port may come up twice"
