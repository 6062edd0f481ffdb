"""What the commands import first: all of it once, and out of the garbage collector's way."""

from __future__ import annotations

import subprocess
import sys

import pytest

SHOWN = """
import gc, sys
from retcon.cli.arguments import import_training
import_training()
tracked, aside = len(gc.get_objects()), gc.get_freeze_count()
print(gc.isenabled(), "torch" in sys.modules, tracked < 1_000, aside > 100_000)
"""


@pytest.mark.torch
def test_what_was_imported_is_set_aside_and_the_collector_goes_on() -> None:
    told = subprocess.run([sys.executable, "-c", SHOWN], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["True", "True", "True", "True"]
