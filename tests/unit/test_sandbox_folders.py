"""A pool's folder: kept while its pool lives, swept up once it is gone."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from retcon.sandbox import scratch
from retcon.sandbox.folders import PREFIX, PoolFolder

HOLD = """
import sys
from pathlib import Path
from retcon.sandbox.folders import PoolFolder

folder = PoolFolder(Path(sys.argv[1]))
(folder.path / "w1").mkdir()
print(folder.path, flush=True)
sys.stdin.read()
"""


def test_a_folder_of_a_killed_pool_is_swept_by_the_next_and_a_living_ones_is_not(tmp_path: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": "src"},
    )
    assert other.stdout is not None
    held = Path(other.stdout.readline().strip())
    mine = PoolFolder(tmp_path)
    assert held.is_dir()
    other.send_signal(signal.SIGKILL)
    other.communicate()
    again = PoolFolder(tmp_path)
    assert not held.exists()
    assert mine.path.is_dir()
    mine.remove()
    again.remove()
    assert not list(tmp_path.iterdir())


def test_a_folder_without_a_lock_is_left_alone(tmp_path: Path) -> None:
    foreign = tmp_path / f"{PREFIX}mine"
    foreign.mkdir()
    PoolFolder(tmp_path).remove()
    assert foreign.is_dir()


def test_a_folder_goes_however_deep_and_closed_what_a_call_left_in_it(tmp_path: Path) -> None:
    made = PoolFolder(tmp_path)
    here = os.open(made.path, os.O_RDONLY)
    for _ in range(1500):  # deeper than Python recurses
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    (made.path / "d/d").chmod(0)
    made.remove()
    assert not list(tmp_path.iterdir())


def test_folders_that_a_call_nested_deeper_than_recursion_goes_keep_no_later_pool_from_starting(tmp_path: Path) -> None:
    pool = PoolFolder(tmp_path)
    here = os.open(pool.path, os.O_RDONLY)
    for _ in range(sys.getrecursionlimit() + 500):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    os.close(pool._lock)  # its process is gone
    try:
        PoolFolder(tmp_path).remove()
        assert not list(tmp_path.iterdir())
    finally:
        scratch.empty(str(tmp_path))  # pytest itself could not
