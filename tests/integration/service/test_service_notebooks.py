"""What the end of a notebook says of the whole, in SandboxFusion's `/run_jupyter`."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.service.app import create_app
from retcon.sandbox.service.settings import Settings


def notebook(**sent: Any) -> dict[str, Any]:
    async def main() -> dict[str, Any]:
        async with SandboxPool(workers=1) as sandbox:
            app = create_app(sandbox, sandbox.tier, Settings(workers=1))
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://sandbox") as http:
                response = await http.post("/run_jupyter", json=sent)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    return asyncio.run(main())


def test_a_notebook_whose_last_cell_is_late_has_failed() -> None:
    ran = notebook(cells=["1", "print(2)\nwhile True: pass"], total_timeout=0.4)
    assert (ran["status"], ran["driver"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert ran["driver"]["return_code"] is None
    assert [cell["stdout"] for cell in ran["cells"]] == ["", "2\n"]


def test_a_notebook_whose_last_cell_ends_its_interpreter_has_failed() -> None:
    ran = notebook(cells=["1", "import os; os._exit(0)"], fetch_files=["a"])
    assert (ran["status"], ran["driver"]["status"], ran["driver"]["return_code"]) == ("Failed", "Finished", 1)
    assert len(ran["cells"]) == 2
