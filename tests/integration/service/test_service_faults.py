"""Whose fault it is, and what it says of the whole, where a program of SandboxFusion's API cannot end well."""

from __future__ import annotations

import asyncio
import base64
import shutil
from typing import Any, Unpack

import httpx
import pytest

from retcon.core.errors import SessionLost
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.service.app import create_app
from retcon.sandbox.service.calls import Settings
from retcon.sandbox.types import Limits, Program, ProgramOptions, Result
from servers.serving import MemorySandbox, MemorySession


def notebook(**sent: Any) -> dict[str, Any]:
    return asked("/run_jupyter", sent, Settings(workers=1))


def asked(path: str, sent: dict[str, Any], settings: Settings) -> dict[str, Any]:
    async def main() -> dict[str, Any]:
        async with SandboxPool(workers=1) as sandbox:
            app = create_app(sandbox, sandbox.tier, settings)
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://sandbox") as http:
                response = await http.post(path, json=sent)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    return asyncio.run(main())


def test_a_notebook_whose_last_cell_is_late_has_failed() -> None:
    ran = notebook(cells=["1", "print(2)\nwhile True: pass"], total_timeout=0.4)
    assert (ran["status"], ran["driver"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert ran["driver"]["return_code"] is None
    assert [cell["stdout"] for cell in ran["cells"]] == ["", "2\n"]


def test_a_notebook_that_hangs_where_its_figures_are_drawn_has_failed() -> None:
    """On its own time, and not as a fault of ours, after which a client would ask again."""
    plots = (
        "import sys, types\nplots = types.ModuleType('matplotlib.pyplot')\n"
        "def hang():\n    while True: pass\n"
        "plots.get_fignums = hang\nsys.modules['matplotlib.pyplot'] = plots"
    )
    ran = notebook(cells=[plots, "print(2)"], total_timeout=0.4)
    assert (ran["status"], ran["driver"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert len(ran["cells"]) == 1


def test_a_notebook_waits_for_a_session_as_long_as_any_call_for_a_worker() -> None:
    async def main() -> httpx.Response:
        sandbox = MemorySandbox()
        sandbox.place = asyncio.Event()  # there is none
        app = create_app(sandbox, "rlimits", Settings(fusion_wait=0.05))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://sandbox") as http:
            return await asyncio.wait_for(http.post("/run_jupyter", json={"cells": ["1"]}), 10)

    answer = asyncio.run(main())
    assert (answer.status_code, answer.json()["status"]) == (504, "SandboxError")
    assert answer.json()["message"].endswith("had to wait for too long: try again later")


def test_figures_are_shown_whatever_has_drawn_them() -> None:
    module = """import sys, types
class Figure:
    def savefig(self, out, **how): out.write(b'png')
open_ones = []
drawing = types.ModuleType('drawing')
drawing.get_fignums, drawing.figure = lambda: open_ones, lambda number: Figure()
drawing.close = lambda which: open_ones.clear()
sys.modules['matplotlib.py' + 'plot'] = drawing
"""
    ran = notebook(cells=["1", "from helper import open_ones", "open_ones.append(1)", "1"], files={
        "helper.py": base64.b64encode(module.encode()).decode()
    })  # fmt: skip
    shown = [[one["image/png"] for one in cell["display"] if "image/png" in one] for cell in ran["cells"]]
    assert shown == [[], [], [base64.b64encode(b"png").decode()], []]


@pytest.mark.parametrize(
    ("path", "sent"),
    [("/run_jupyter", {"cells": ["1"]}), ("/run_code", {"code": "1", "language": "python"})],
    ids=["cells", "code"],
)
def test_who_asks_for_no_time_is_not_refused_for_asking_for_too_much(path: str, sent: dict[str, Any]) -> None:
    settings = Settings(workers=1, limits=Limits(cpu_seconds=2.0, wall_seconds=2.0), max_timeout=3.0)
    assert asked(path, sent, settings)["status"] == "Success"


def test_a_notebook_whose_last_cell_ends_its_interpreter_has_failed() -> None:
    ran = notebook(cells=["1", "import os; os._exit(0)"], fetch_files=["a"])
    assert (ran["status"], ran["driver"]["status"], ran["driver"]["return_code"]) == ("Failed", "Finished", 1)
    assert len(ran["cells"]) == 2


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_a_compiled_program_that_is_too_large_has_failed() -> None:
    sent = {"code": "char a[10 << 20] = {1}; int main() { return a[5]; }", "language": "cpp"}
    ran = asked("/run_code", sent, Settings(workers=1))
    assert (ran["status"], ran["compile_result"]["return_code"], ran["run_result"]) == ("Failed", 1, None)
    assert ran["compile_result"]["stderr"].endswith("OSError: the program is larger than 8 MiB\n")


class Failing(MemorySandbox):
    """Its sessions have a fault in the run of this number, beginning with 0, or are lost in it."""

    def __init__(self, at: int, *, lost: bool) -> None:
        super().__init__()
        self.at, self.lost = at, lost

    async def session(self, *, limits: Limits | None = None, seed: int | None = None) -> MemorySession:
        return FailingSession(self)


class FailingSession(MemorySession):
    def __init__(self, sandbox: Failing) -> None:
        super().__init__(sandbox)
        self._failing = sandbox

    async def run(self, program: str | Program, /, **options: Unpack[ProgramOptions]) -> Result:
        if self._failing.runs < self._failing.at:
            self._failing.runs += 1
            return Result("ok")
        if self._failing.lost:
            raise SessionLost("it was evicted")
        return Result("infrastructure", stderr="its worker died")


@pytest.mark.parametrize("lost", [False, True], ids=["fault", "lost"])
@pytest.mark.parametrize(("at", "cells"), [(0, 0), (1, 0), (2, 1), (3, 1)], ids=["files", "cell", "figures", "fetched"])
def test_a_fault_of_the_sandbox_is_no_failure_of_a_notebook_whenever_it_comes(
    at: int, cells: int, *, lost: bool
) -> None:
    """Not of its files, of which a client would not ask again, nor are those that it fetches merely not there."""
    sent = {"cells": ["import a"], "files": {"a.py": ""}, "fetch_files": ["b"]}

    async def main() -> httpx.Response:
        app = create_app(Failing(at, lost=lost), "rlimits", Settings())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://sandbox") as http:
            return await http.post("/run_jupyter", json=sent)

    answer = asyncio.run(main())
    assert answer.status_code == 200, answer.text
    ran = answer.json()
    assert (ran["status"], ran["driver"]["status"], len(ran["cells"])) == ("SandboxError", "Error", cells)
    assert ran["message"] == ("it was evicted" if lost else "its worker died")
