"""CPU time is counted wherever it is spent: here, in children that are gone, and in children that live."""

import subprocess
import sys
import time

import pytest

from retcon.runs.folder import Cost, Meter, cpu_seconds

BURN = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ninput()"


def test_living_and_dead_children_count():
    before = cpu_seconds()
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alive = cpu_seconds()
        assert alive - before >= 0.25
        child.communicate(b"\n")
    assert cpu_seconds() - before >= 0.25


def test_a_meter_counts_on_from_what_was_spent():
    cost = Meter(Cost(cpu_s=100.0, wall_s=200.0)).read()
    assert 100 <= cost.cpu_s < 101
    assert 200 <= cost.wall_s < 201


def test_what_is_spent_while_a_meter_is_stopped_is_not_counted():
    """As of an evaluation on the way, which would end a run too early that is to cost as much as another."""

    def burn() -> None:
        until = time.process_time() + 0.3
        while time.process_time() < until:
            pass
        raise KeyboardInterrupt

    began, meter = time.monotonic(), Meter()
    with pytest.raises(KeyboardInterrupt), meter.stopped():
        burn()
    cost = meter.read()
    assert cost.cpu_s < 0.2
    assert cost.wall_s < time.monotonic() - began - 0.29
