"""One sandbox of each kind for all tests of a file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from sandboxes import SANDBOXES, Opened


@pytest.fixture(scope="module", params=SANDBOXES)
def opened(request: pytest.FixtureRequest) -> Iterator[Opened]:
    opener = SANDBOXES[request.param]
    with asyncio.Runner() as runner:
        manager = opener()
        sandbox = runner.run(manager.__aenter__())  # type: ignore[arg-type]
        try:
            yield Opened(opener, runner, sandbox)
        finally:
            runner.run(manager.__aexit__(None, None, None))  # type: ignore[arg-type]
