"""How many cores this process may use."""

from __future__ import annotations

import os

import pytest

from retcon.core.cores import usable_cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system does not say")
def test_cores_that_this_process_may_not_use_are_not_counted() -> None:
    allowed = os.sched_getaffinity(0)
    assert usable_cores() == len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
