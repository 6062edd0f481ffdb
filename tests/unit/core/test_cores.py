"""How many cores this process may use."""

from __future__ import annotations

import os

import pytest

from retcon.core.machine import usable_cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system does not say")
def test_cores_that_this_process_may_not_use_are_not_counted() -> None:
    allowed = os.sched_getaffinity(0)
    assert usable_cores() == len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_where_the_system_does_not_say_all_are_counted_and_one_where_nobody_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert usable_cores() == 12
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1
