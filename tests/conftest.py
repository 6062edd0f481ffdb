"""Settings of every test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from training import Zygote

# A busy machine is slow, not wrong: no deadline. Few examples, since the whole suite must stay quick.
settings.register_profile("retcon", deadline=None, max_examples=40)
settings.load_profile("retcon")


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Starts training runs that can be killed, in processes that need not import torch again."""
    from training import Zygote

    made = Zygote()
    yield made
    made.close()
