from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from jail import Jail
from retcon.core.errors import SandboxUnavailable, SandboxWarning


@pytest.fixture(scope="module")
def jail(request: pytest.FixtureRequest) -> Iterator[Jail]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SandboxWarning)
            made = Jail(request.param)
    except SandboxUnavailable as error:
        pytest.skip(f"not on this machine: {error}")
    yield made
    made.close()
