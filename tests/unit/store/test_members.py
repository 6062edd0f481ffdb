"""Compressed lines, read by their place; and what a run keeps of its rollouts."""

from __future__ import annotations

import gzip
import logging
from pathlib import Path

import pytest

from retcon.core.errors import RecordError
from retcon.core.types import Segment, Trajectory, Turn
from retcon.runs.folder import RolloutStore, steps_to_remove
from retcon.store import jsonl, members
from retcon.store.members import line_at, lines_at, write_members

LINES = [b'{"id":"%d","text":"%s"}\n' % (n, b"abc" * n) for n in range(400)]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_each_line_is_read_by_its_place(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MEMBER", 10_000)
    path = tmp_path / f"lines.jsonl{suffix}"
    write_members(path, LINES)
    places = list(lines_at(path))
    assert [line for _, _, line in places] == LINES
    assert len({member for member, _, _ in places}) > 10
    assert all(line_at(path, member, offset) == line for member, offset, line in places)
    begin = places[200][0]
    assert [line for _, _, line in lines_at(path, begin)][-1] == LINES[-1]


def test_one_member_of_another_program_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(LINES)))
    assert [line_at(path, member, offset) for member, offset, _ in lines_at(path)] == LINES


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_truncated_and_a_damaged_file_give_what_is_whole(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "MEMBER", 10_000)
    path = tmp_path / f"lines.jsonl{suffix}"
    write_members(path, LINES)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])
    found = [line for _, _, line in lines_at(path)]
    assert 100 < len(found) < 400
    assert found == LINES[: len(found)]
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes(50) + whole[middle + 50 :])
    found = []
    with pytest.raises(RecordError, match="damaged after byte"):
        found += [line for _, _, line in lines_at(path)]


def test_the_oldest_steps_go_first_and_multiples_of_ten_last() -> None:
    sizes = dict.fromkeys(range(1, 22), 10)
    assert steps_to_remove(sizes, 210) == []
    assert steps_to_remove(sizes, 185) == [2, 3, 4]
    assert steps_to_remove(sizes, 20)[-2:] == [1, 10]
    assert steps_to_remove({7: 100}, 1) == [], "the newest step stays"


def rollout(id: str) -> Trajectory:
    return Trajectory(id, "t", (Segment("prompt", "?"),), (Turn((Segment("sampled", "!"),)),))


def test_a_full_disk_ends_the_storing_and_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "trajectories"
    folder.write_text("a file where the folder should be")
    store = RolloutStore(folder, 1.0)
    with caplog.at_level(logging.WARNING):
        for step in (1, 2, 3):
            store.add(step, lambda: iter([rollout("a")]), tokens=10)
        store.flush()
        store.close()
    assert [r.getMessage().partition(":")[0] for r in caplog.records] == [
        "rollouts are not stored from step 1 on; the training goes on"
    ]


def test_what_was_added_is_there_after_a_flush_and_once_after_a_step_is_taken_again(tmp_path: Path) -> None:
    store = RolloutStore(tmp_path / "trajectories", 1.0)
    for step in (1, 2, 2):
        store.add(step, lambda step=step: iter([rollout(f"t/{step}/{n}") for n in range(3)]), tokens=10)
    store.flush()
    found = [t.id for n in (1, 2) for t in jsonl.read(tmp_path / f"trajectories/step-00000{n}.jsonl")]
    assert found == ["t/1/0", "t/1/1", "t/1/2", "t/2/0", "t/2/1", "t/2/2"]
    store.close()
