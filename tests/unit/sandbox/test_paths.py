"""Which files a caller can have made, and which it is told that it cannot."""

from __future__ import annotations

import pytest

from retcon.sandbox.pool.paths import check_room, inside_scratch, to_write


@pytest.mark.parametrize(
    "names",
    [
        ["/tmp/scratch"], ["/data/a", "/mnt/a/b"], ["/workspace/a", "/mnt/a"], ["/tmp/scratch/a/b", "a"],
        ["a", "./a"], ["a/b", "a"], ["a/"],
    ],
    ids="-".join,
)  # fmt: skip
def test_no_path_is_a_folder_or_another_files_by_whatever_name(names: list[str]) -> None:
    with pytest.raises(ValueError, match="give it a name of its own"):
        to_write(names, "namespaces")


def test_paths_of_their_own() -> None:
    names = ["a", "d/a", "/tmp/scratch/b", "/tmp/a", "/mnt/a", "/data/b", "/dev/shm/a"]
    assert to_write(names, "namespaces") == names


def test_folders_within_folders_have_an_end() -> None:
    assert to_write(["/".join("a" * 128)])
    with pytest.raises(ValueError, match="128 parts at most"):
        to_write(["/".join("a" * 129)])


def test_more_paths_than_there_can_be_are_refused_and_longer_ones_are_none_that_are_there() -> None:
    """A request may have millions, and the server's event loop waits while they are looked at."""
    with pytest.raises(ValueError, match="9000 files: 8128 at most"):
        inside_scratch(["a"] * 9000)
    assert inside_scratch(["a/" * 2000, "b"]) == ["b"]
    with pytest.raises(ValueError, match=r"a/a/a/.*… is too long: 3839 bytes at most"):
        to_write(["b", "a/" * 2000])


def test_more_than_there_is_room_for_is_reported_before_anything_runs() -> None:
    mib = 1 << 20
    check_room({"a": bytes(32 * mib)}, "x" * 32 * mib)
    with pytest.raises(ValueError, match=r"of 65\.0 MiB together: 64 MiB at most"):
        check_room({"a": bytes(33 * mib)}, "x" * 32 * mib)
    with pytest.raises(ValueError, match="MiB together: 64 MiB at most"):
        check_room({str(n): b"x" for n in range(8000)}, "x" * 40 * mib)  # each takes a page
    with pytest.raises(ValueError, match="9000 files in 1 folders: 8128 at most"):
        check_room({str(n): b"" for n in range(9000)})
