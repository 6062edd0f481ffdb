"""A pool's folder: kept while its pool lives, swept up once it is gone."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from retcon.sandbox.jail import scratch
from retcon.sandbox.pool.fleet import PREFIX, PoolFolder

HOLD = """
import sys
from pathlib import Path
from retcon.sandbox.pool.fleet import PoolFolder

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


def test_it_lies_in_memory_unless_calls_have_room_for_their_files_on_the_disk_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tmp_path is closed to others: where root starts a pool, its calls could not enter there."""
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    for folder in (memory, disk):
        folder.mkdir()
    monkeypatch.setattr("retcon.sandbox.pool.fleet.MEMORY", memory)
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    free = {memory: 64, disk: 1024}
    monkeypatch.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_bavail=free[folder], f_frsize=1))
    for room, user, home in ((64, 1000, memory), (65, 1000, disk), (65, 0, memory), (2000, 1000, memory)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        made = PoolFolder(room=room)
        assert made.path.parent == home, (room, user)
        made.remove()


def test_a_folder_that_others_may_write_to_is_no_pools_and_is_left_alone(tmp_path: Path) -> None:
    """A call may have moved it there, and put a lock into it."""
    for mode, stays in ((0o711, False), (0o777, True), (0o770, True)):
        foreign = tmp_path / f"{PREFIX}{mode:o}"
        foreign.mkdir()
        (foreign / "lock").touch()
        foreign.chmod(mode)
        PoolFolder(tmp_path).remove()
        assert foreign.is_dir() == stays, oct(mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel keeps others' files from an ordinary user")
def test_what_lies_in_a_folder_of_another_owner_than_that_around_it_stays(tmp_path: Path) -> None:
    made = PoolFolder(tmp_path)
    scratch_folder = made.path / "w1/scratch"
    (scratch_folder / "a/b/taken/kept").mkdir(parents=True)
    (scratch_folder / "a/empty").mkdir()
    for own in ("a", "a/b", "."):
        (scratch_folder / own / "file").touch()
        os.chown(scratch_folder / own, 65000, 65000)
    (scratch_folder / "a/b/taken/kept/file").write_text("host")
    os.chown(scratch_folder / "a/b/taken", 65001, 65001)
    (made.path / "w2").mkdir()
    made.remove()
    left = [file for file in tmp_path.rglob("*") if not file.is_dir()]
    assert [file.read_text() for file in left] == ["host"]
    assert [str(file).split("/")[-3:] for file in left] == [["taken", "kept", "file"]]
    assert not list(tmp_path.rglob("empty")) + list(tmp_path.rglob("w2"))


def _nested(folder: Path) -> None:
    """Folders in it, deeper than Python recurses, one of them closed to its owner."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(sys.getrecursionlimit() + 500):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    (folder / "d/d").chmod(0)


@pytest.fixture
def emptied(tmp_path: Path) -> Iterator[Path]:
    """pytest itself could not empty it, if the test fails."""
    yield tmp_path
    top = os.open(tmp_path, os.O_RDONLY)
    scratch.empty_folder(top)
    os.close(top)


@pytest.mark.slow
def test_a_folder_goes_however_deep_and_closed_what_a_call_left_in_it(emptied: Path) -> None:
    made = PoolFolder(emptied)
    _nested(made.path)
    made.remove()
    assert not list(emptied.iterdir())


@pytest.mark.parametrize("step", ["_blocks", "_open_folder"], ids=["a file in it", "a folder in it"])
def test_a_folder_that_is_closed_while_it_is_counted_is_counted(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "x"
    (closed / "inner").mkdir(parents=True)
    for name in ("a", "b", "inner/c"):
        (closed / name).write_bytes(bytes(4096))
    each = (closed / "a").stat().st_blocks * 512
    looked = getattr(scratch, step)
    times = []

    def closing(*arguments: object) -> object:
        if getattr(arguments[0], "name", arguments[0]) in ("a", "b", "inner"):
            times.append(1)
            if len(times) == 1:
                closed.chmod(0)
            if not closed.stat().st_mode & 0o100:  # to root it is not closed
                raise PermissionError(13, "Permission denied")
        return looked(*arguments)

    monkeypatch.setattr(scratch, step, closing)
    assert scratch.measure(str(tmp_path), 100) == (3 * each, 5)
    assert closed.stat().st_mode & 0o777 == 0, "as it was closed"
    assert len(times) > 1
