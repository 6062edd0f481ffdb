"""`multiprocessing` by every start method: in a call as in `python file.py`, in a session by fork alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from retcon.sandbox.pool import SandboxPool
from sessions import using

PROGRAM = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

N = 3

def f(x):
    return x * x + N

def put(queue):
    queue.put(__name__)

if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    with context.Pool(1) as pool:
        print(pool.map(f, range(3)))
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        print(list(executor.map(f, range(3))))
    queue = context.Queue()
    process = context.Process(target=put, args=(queue,))
    process.start()
    print(queue.get(), process.join(), process.exitcode)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_call_runs_processes_by_every_start_method_as_a_file_does(method: str, tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(PROGRAM.format(method=method))
    expected = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True).stdout

    async def work(pool: SandboxPool) -> None:
        if pool.tier != "namespaces":
            pytest.skip("calls may start no processes in this tier")
        result = await pool.run(file.read_text(), timeout=60)
        assert (result.status, result.stdout, result.stderr) == ("ok", expected, "")

    using(work)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_session_refuses_to_start_new_interpreters_at_once_and_says_what_to_use(method: str) -> None:
    async def work(pool: SandboxPool) -> None:
        session = await pool.session()
        for code in (f"multiprocessing.get_context({method!r})", f"multiprocessing.set_start_method({method!r})"):
            result = await session.run(f"import multiprocessing\n{code}")
            assert (result.status, result.error_type) == ("error", "ValueError")
            assert result.stderr.endswith("use multiprocessing.get_context('fork')\n")
            assert "retcon" not in result.stderr
        assert (await session.run("multiprocessing.get_context().get_start_method()")).value == "'fork'"

    using(work)
