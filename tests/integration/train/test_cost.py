"""CPU time is counted wherever it is spent: here, in children that are gone, and in children that live."""

import subprocess
import sys

from retcon.runs.folder import cpu_seconds

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
