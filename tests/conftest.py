"""Settings of every test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from training import Zygote

# A busy machine is slow, not wrong: no deadline, and no fault where drawing takes long. Few examples, since the whole
# suite must stay quick; fewer still in `make unit`.
EXAMPLES = int(os.environ.get("RETCON_EXAMPLES", "20"))
settings.register_profile("retcon", deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("retcon")

# Every test but those of a GPU is the same where there is one, also in the processes that it starts. torch, which is
# not imported yet, looks here.
if os.environ.get("RETCON_CUDA_TESTS") != "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

# Under nohup, and in the background of a script, SIGINT is ignored, here and in all that is started from here: tests
# that press Ctrl-C would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Starts training runs that can be killed, in processes that need not import torch again."""
    from training import Zygote

    made = Zygote()
    yield made
    made.close()


# Real servers stand in environments of their own, which `make integration` builds and names.
collect_ignore = [] if "RETCON_VLLM_PYTHON" in os.environ else ["real"]
