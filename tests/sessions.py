"""A pool for tests of its sessions, in the best tier the machine has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Limits

WALL = Limits(wall_seconds=5)
DEEP = "import os\nfor _ in range(200):\n    os.mkdir('d'); os.chdir('d')"
"""A cell that makes files too deep for a checkpoint."""


def using(work: Callable[[SandboxPool], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with SandboxPool(workers=1, **options) as pool:
            await work(pool)

    asyncio.run(main())
