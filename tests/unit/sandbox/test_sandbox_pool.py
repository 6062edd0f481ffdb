from __future__ import annotations

import asyncio
import os
import signal
import sys
import tracemalloc
from typing import Any, Never

import pytest

from retcon.core.errors import SandboxUnavailable
from retcon.sandbox.jail.capture import Capture, Record, cut_middle
from retcon.sandbox.jail.watchdog import verdict
from retcon.sandbox.pool import SandboxPool, default_workers
from retcon.sandbox.pool.session import Sessions
from retcon.sandbox.types import Limits, SessionBounds


def test_another_system_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SandboxUnavailable, match=r"needs Linux.*darwin"):
        asyncio.run(SandboxPool().start())


def test_a_python_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(SandboxUnavailable, match="/nowhere/python"):
        asyncio.run(SandboxPool().start())


def test_a_worker_that_ends_at_once_is_reported_with_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SandboxUnavailable, match="did not come up"):
        asyncio.run(SandboxPool().start())


@pytest.mark.parametrize(
    "limits",
    [
        {"cpu_seconds": 0}, {"memory_mb": -1}, {"wall_seconds": float("nan")}, {"wall_seconds": float("inf")},
        {"processes": 10**12},
    ],
)  # fmt: skip
def test_a_limit_must_be_one_that_can_be_set(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"limit {next(iter(limits))} is"):
        Limits(**limits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "1 or more"),
        ({"queue": 0}, "1 or more"),
        ({"warm": ("numpi",)}, "did you mean 'numpy'"),
        ({"packages": "pandas"}, "sequence of names"),
        ({"packages": ("not a name",)}, "not the name of a module"),
        ({"packages": ("scikit-learn",)}, "not the name of a module to import: write 'sklearn'"),
        ({"packages": ("sklearn",), "limits": Limits(memory_mb=64)}, "memory_mb is 64, .* use sklearn need 128: raise"),
        ({"packages": ("torch",), "limits": Limits(cpu_seconds=0.1)}, "cpu_seconds is 0.1, .* use torch need 1: raise"),
        ({"python": "/nowhere/python"}, "python is '/nowhere/python', where there is no program"),
        ({"packages": {"mine": ("os", "a-b")}}, "'a-b' is not the name of a module"),
    ],
)
def test_a_pool_is_refused_what_it_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SandboxPool(**options)


def test_the_default_number_of_workers_leaves_room_and_fits_into_memory() -> None:
    cores = len(os.sched_getaffinity(0))
    assert cores < default_workers(Limits(memory_mb=1)) <= max(cores + 1, 64)
    assert default_workers(Limits(memory_mb=10**9)) == cores


def test_workers_and_sessions_leave_half_of_a_containers_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pool", "session"):
        monkeypatch.setattr(f"retcon.sandbox.pool.{module}.total_memory", lambda: 64 << 20)
    assert default_workers(Limits(memory_mb=32)) == len(os.sched_getaffinity(0))

    async def main() -> list[bool]:
        sessions = Sessions(SessionBounds(), running=1, start=never, give_back=never, paths=lambda: ("", ()))
        opened = [await sessions.open(Limits()) for _ in range(3)]
        for session in opened:
            session.memory = 16 << 20
            sessions.start_idle_timer(session)
        ended = [session.ended for session in opened]
        sessions.close()
        return ended

    async def never(*_: object) -> Never:
        raise AssertionError("none of them runs")

    assert asyncio.run(main()) == [True, False, False]


@pytest.mark.parametrize("uids", [range(0, 5), range(9, 9), range(1, 9, 2)])
def test_users_must_be_a_range_above_root(uids: range) -> None:
    with pytest.raises(ValueError, match="uids="):
        SandboxPool(uids=uids)


@pytest.mark.parametrize(
    ("status", "cpu_used", "wall", "raised", "expected"),
    [
        (0, 0.0, None, None, ("ok", None)),
        (0, 0.0, None, "ValueError", ("error", "ValueError")),
        (1 << 8, 0.0, None, "ValueError", ("error", "ValueError")),
        (1 << 8, 0.0, None, "MemoryError", ("limit", "MemoryError")),
        (3 << 8, 0.0, None, None, ("error", "SystemExit")),
        (signal.SIGXCPU, 2.0, None, None, ("timeout", "TimeoutError")),
        (signal.SIGXCPU, 1.9, None, None, ("timeout", "TimeoutError")),  # by the ticks that it was seen at
        (signal.SIGXCPU, 0.1, None, None, ("error", "SIGXCPU")),  # by its own hand
        (signal.SIGXCPU, 0.1, 5.0, None, ("timeout", "TimeoutError")),
        (signal.SIGKILL, 3.0, None, None, ("timeout", "TimeoutError")),
        (signal.SIGKILL, 0.1, None, None, ("error", "SIGKILL")),
        (signal.SIGRTMIN + 3, 0.1, None, None, ("error", f"SIG{signal.SIGRTMIN + 3}")),
        (0, 0.0, 5.0, None, ("timeout", "TimeoutError")),
    ],
)
def test_the_kernels_word_decides(
    status: int, cpu_used: float, wall: float | None, raised: str | None, expected: tuple[str, str | None]
) -> None:
    name, error_type, code, line = verdict(status, cpu_used, 2.0, wall, raised)
    assert (name, error_type) == expected
    assert code == os.waitstatus_to_exitcode(status)
    assert bool(line) == (name not in ("ok", "limit") and raised is None)


def test_a_kill_is_the_machines_only_where_the_machine_has_killed() -> None:
    killed = signal.SIGKILL
    assert verdict(killed, 0.0, 2.0, None, None)[:2] == ("error", "SIGKILL")
    assert verdict(killed, 0.0, 2.0, None, None, machine=True)[0] == "infrastructure"
    assert verdict(killed, 2.5, 2.0, None, None, machine=True)[0] == "timeout"  # its own limits come first
    assert verdict(killed, 0.0, 2.0, 3.0, None, machine=True)[0] == "timeout"
    assert verdict(killed, 0.0, 2.0, None, None, over="MemoryError: x", machine=True)[0] == "limit"
    assert verdict(signal.SIGSEGV, 0.0, 2.0, None, None, machine=True)[:2] == ("error", "SIGSEGV")


def test_a_capture_keeps_both_ends_whatever_the_chunks() -> None:
    whole = bytes(range(97, 123)) * 20000
    for size in (1 << 16, 7777, len(whole)):
        capture = Capture(10)
        for start in range(0, len(whole), size):
            capture.add(whole[start : start + size])
        assert capture.text() == f"abcde\n[{len(whole) - 10} bytes cut]\nvwxyz"


@pytest.mark.parametrize("size", [1, 3, 16, 100])
def test_a_record_is_what_stands_between_two_tokens_whatever_the_chunks(size: int) -> None:
    token, noise = b"0123456789abcdef", b"0123456789abcde" * 50
    for stream, wanted in {
        noise + token + b"name\0=1" + token + noise: "name\0=1",
        token + token + token + b"x" + token: "",
        token + b"x" * 40 + token: "x" * 40,
        token + b"\xff" + token: "\ufffd",
        token + b"x" * 41 + token: None,
        token + b"x" * 400 + token + b"y" + token: None,
        token + b"cut": None,
        noise: None,
        b"": None,
    }.items():
        record = Record(token, 40)
        for start in range(0, len(stream), size):
            record.add(stream[start : start + size])
        assert record.text() == wanted


def test_of_what_is_no_record_nothing_is_kept() -> None:
    """In memory that does not grow with it, nor with the limit."""
    flood = bytes(1 << 16)
    for start in (b"", b"token"):
        record = Record(b"token", 100_000)
        record.add(start)
        tracemalloc.start()
        for _ in range(200):
            record.add(flood)
        assert tracemalloc.get_traced_memory()[1] < 500_000
        tracemalloc.stop()
        assert record.text() is None


@pytest.mark.parametrize("limit", [1, 10, 30, 99, 100])
def test_cutting_never_exceeds_its_limit(limit: int) -> None:
    assert len(cut_middle("x" * 100, limit)) <= limit
    assert cut_middle("x" * limit, limit) == "x" * limit
