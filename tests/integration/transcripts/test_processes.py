"""Processes that compute for another one: what becomes of a call whatever becomes of its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing import active_children
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from retcon.transcripts.purification import Processes, ProcessKilled

LARGE = 1 << 20  # bytes, more than a pipe holds


def size(data: bytes) -> int:
    return len(data)


def begin_to_answer(data: bytes) -> bytes:
    """Killed once a half of the answer is on its way."""

    def half(self: Connection, buffer: bytes) -> None:
        os.write(self.fileno(), bytes(buffer)[: len(buffer) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    Connection._send = half  # type: ignore[attr-defined]
    return data


def refuse(data: bytes) -> bytes:
    raise LookupError(f"no {len(data)}")


def test_a_process_that_is_killed_in_the_middle_of_its_answer_is_missed() -> None:
    processes = Processes(2, begin_to_answer)
    for call in [processes.submit(b"x" * LARGE) for _ in range(4)]:  # be it to one that is gone
        with pytest.raises(ProcessKilled):
            call.result(60)
    processes.close()


def test_a_process_that_is_killed_while_it_is_told_is_missed_and_others_go_on() -> None:
    processes = Processes(2, size)
    assert processes.submit(b"").result() == 0
    stopped, other = active_children()
    assert stopped.pid is not None
    os.kill(stopped.pid, signal.SIGSTOP)
    calls = [processes.submit(b"x" * LARGE) for _ in range(2)]
    stopped.kill()
    answered = [call.result() for call in calls if not isinstance(call.exception(60), ProcessKilled)]
    assert answered == [LARGE]
    assert other.is_alive()
    processes.close()


def test_an_error_is_raised_with_where_it_was() -> None:
    processes = Processes(1, refuse)
    call = processes.submit(b"123")
    with pytest.raises(LookupError, match="no 3") as raised:
        call.result()
    assert "in refuse" in "".join(raised.value.__notes__)
    with pytest.raises(LookupError, match="no 1"):
        processes.submit(b"1").result()
    processes.close()


def test_none_outlives_who_started_them(tmp_path: Path) -> None:
    program = """
from multiprocessing import active_children
from retcon.transcripts.purification import Processes
processes = Processes(2, len)
processes.submit(b"").result()
print(*(process.pid for process in active_children()), flush=True)
input()
"""
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        parent.kill()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}/exe").exists() for pid in pids):  # a zombie has none
        assert time.monotonic() < deadline
        time.sleep(0.01)
