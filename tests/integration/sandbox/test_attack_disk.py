"""Attacks on the disk, and what looks like one: what a call holds in files is counted as it is, wherever it lies."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from jail import ALL, LANDLOCK, NAMESPACES, RLIMITS, Jail, contained_by

LOOKED_AT = (LANDLOCK, RLIMITS)
"""Tiers in which the worker counts; in the other the kernel does."""


@contained_by(*LOOKED_AT)
def test_many_files_do_not_make_the_watcher_slow(jail: Jail) -> None:
    """Counting them takes long; what lands meanwhile is written to stdout, a byte a MiB."""
    result = jail.attack(
        """
        import os
        os.mkdir('d')
        for n in range(8000):
            os.close(os.open(f'd/{n}', os.O_CREAT | os.O_WRONLY))
        block = bytes(1 << 20)
        for n in range(1600):
            if n % 16 == 0:
                fd = os.open(f'b{n}', os.O_CREAT | os.O_WRONLY)
            os.write(fd, block)
            os.write(1, b'.')
        """,
        cpu_seconds=60,
        wall_seconds=120,
    )
    assert (result.status, result.error_type) == ("limit", "OSError")
    assert result.stderr == "OSError: its files were more than 64 MiB together\n"
    assert len(result.stdout) < 600  # MiB, of 1,600


@contained_by(*LOOKED_AT)
@pytest.mark.parametrize("make", ["os.mkdir(f'{n}')", "os.makedirs(f'{n}/a/b/c')", "os.mkdir('d'); os.chdir('d')"])
def test_folders_count_as_files_do(jail: Jail, make: str) -> None:
    """What is made is written to stdout, a byte for every thousand."""
    result = jail.attack(
        f"""
        import os
        for n in range(10**7):
            {make}
            if n % 1000 == 999:
                os.write(1, b'.')
        """,
        cpu_seconds=120,
        wall_seconds=240,
    )
    assert (result.status, result.stderr) == ("limit", "OSError: its files were more than 8192 together\n")
    each = make.count("/") + 1
    assert each * len(result.stdout) < 40


@contained_by(*ALL)
@pytest.mark.parametrize("place", ["/dev/shm", "/tmp", "/var/tmp"])
def test_what_is_left_in_other_folders_is_what_the_page_says(jail: Jail, place: str) -> None:
    """In `rlimits` it is neither counted nor removed, and the next call finds it."""
    left = Path(place) / f"retcon-left-{os.getpid()}"
    try:
        jail.attack(f"""
            import time
            try:
                for n in range(9):
                    open({str(left)!r}, 'ab').write(bytes(8 << 20))
            except OSError:
                pass
            time.sleep(0.2)
        """)
        found = jail.attack(f"import os\nprint(os.path.exists({str(left)!r}))").stdout
        assert (left.exists(), found) == ((True, "True\n") if jail.tier == RLIMITS else (False, "False\n"))
    finally:
        left.unlink(missing_ok=True)


@contained_by(*ALL)
def test_a_folder_that_is_closed_to_its_owner_is_no_crime(jail: Jail) -> None:
    result = jail.attack("""
        import os, time
        os.mkdir('x', 0)
        os.makedirs('y/z')
        fd = os.open('y', os.O_RDONLY)
        os.fchmod(fd, 0)
        time.sleep(0.2)
        print(oct(os.fstat(fd).st_mode), oct(os.stat('x').st_mode))
    """)
    kept = jail.tier == LANDLOCK and os.getuid() != 0  # where the user's own files are open to it, no mode changes
    assert (result.status, result.stdout) == ("ok", f"{'0o40755' if kept else '0o40000'} 0o40000\n"), result


@contained_by(*LOOKED_AT)
def test_files_in_a_folder_that_is_closed_count(jail: Jail) -> None:
    result = jail.attack(
        """
        import os, time
        os.mkdir('x')
        fd = os.open('x', os.O_RDONLY)
        for n in range(5):
            with open(f'x/{n}', 'wb') as file:
                file.write(bytes(15 << 20))
        os.fchmod(fd, 0)
        time.sleep(60)
        """,
        wall_seconds=60,
    )
    assert (result.status, result.stderr) == ("limit", "OSError: its files were more than 64 MiB together\n")


@contained_by(*ALL)
def test_a_deep_tree_is_no_crime(jail: Jail) -> None:
    result = jail.attack("""
        import os, time
        for _ in range(3000):
            os.mkdir('d')
            os.chdir('d')
        time.sleep(0.3)
        print('deep')
    """)
    assert (result.status, result.stdout) == ("ok", "deep\n"), result


@contained_by(*LOOKED_AT)
def test_files_at_the_bottom_of_a_deep_tree_count(jail: Jail) -> None:
    result = jail.attack(
        """
        import os, time
        for _ in range(3000):
            os.mkdir('d')
            os.chdir('d')
        for n in range(5):
            with open(str(n), 'wb') as file:
                file.write(bytes(15 << 20))
        time.sleep(60)
        """,
        wall_seconds=60,
    )
    assert (result.status, result.stderr) == ("limit", "OSError: its files were more than 64 MiB together\n")


@contained_by(*LOOKED_AT)
def test_folders_that_are_moved_without_end_do_not_hide_files(jail: Jail) -> None:
    result = jail.attack(
        """
        import os
        os.makedirs('a/b/c')
        for n in range(5):
            with open(f'a/b/c/{n}', 'wb') as file:
                file.write(bytes(15 << 20))
        while True:
            os.rename('a/b', 'b')
            os.rename('b', 'a/b')
        """,
        cpu_seconds=30,
        wall_seconds=60,
    )
    assert (result.status, result.stderr) == ("limit", "OSError: its files were more than 64 MiB together\n")


@contained_by(*ALL)
def test_many_names_of_one_file_count_once(jail: Jail) -> None:
    result = jail.attack("""
        import os, time
        open('x', 'wb').write(bytes(10 << 20))
        for n in range(10):
            os.link('x', str(n))
        time.sleep(0.2)
        print('ten')
    """)
    assert (result.status, result.stdout) == ("ok", "ten\n"), result


@contained_by(*ALL)
def test_holes_in_files_do_not_count(jail: Jail) -> None:
    result = jail.attack("""
        import time
        for n in range(20):
            open(str(n), 'wb').truncate(16 << 20)
        time.sleep(0.2)
        print('empty')
    """)
    assert (result.status, result.stdout) == ("ok", "empty\n"), result


@contained_by(*LOOKED_AT)
def test_room_cannot_be_taken_faster_than_it_is_written(jail: Jail) -> None:
    result = jail.attack("""
        import ctypes, errno, os
        fd = os.open('x', os.O_RDWR | os.O_CREAT)
        libc = ctypes.CDLL(None, use_errno=True)
        print(libc.fallocate(fd, 0, ctypes.c_long(0), ctypes.c_long(1 << 20)), ctypes.get_errno())
        os.posix_fallocate(fd, 0, 1 << 20)
        print(os.fstat(fd).st_blocks * 512 >> 20)
    """)
    assert result.stdout == f"-1 {errno.EOPNOTSUPP}\n1\n"


@contained_by(NAMESPACES)
@pytest.mark.parametrize("how", ["fallocate", "without a name"])
def test_the_kernels_bound_holds_for_what_is_never_written_or_has_no_name(jail: Jail, how: str) -> None:
    make = (
        "os.open('x' + str(n), os.O_RDWR | os.O_CREAT)"
        if how == "fallocate"
        else "os.open('.', os.O_RDWR | os.O_TMPFILE)"
    )
    result = jail.attack(
        f"""
        import os
        try:
            for n in range(40):
                os.posix_fallocate({make}, 0, 4 << 20)
        except OSError as error:
            print(n, error.errno)
        """
    )
    assert result.stdout == f"16 {errno.ENOSPC}\n"  # of 4 MiB each


@contained_by(*ALL)
def test_the_scratch_folder_is_closed_to_other_users(jail: Jail) -> None:
    """A program that is left there with the bits of its user's id is out of their reach."""
    result = jail.attack("""
        import os
        fd = os.open('x', os.O_RDWR | os.O_CREAT)
        try:
            os.fchmod(fd, 0o6777)
        except OSError:
            pass
        print(oct(os.stat('.').st_mode))
    """)
    assert result.stdout == "0o40700\n"
    assert jail.attack("import os\nprint(os.path.exists('x'))").stdout == "False\n"


@contained_by(*ALL)
@pytest.mark.parametrize("path", ["a/secret", "link", "a/../link"])
def test_no_link_is_followed_when_files_are_handed_back(jail: Jail, path: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    if ".." in path:
        with pytest.raises(ValueError, match="inside the scratch folder"):
            jail.run("1", fetch=[path])
        return
    result = jail.run(
        f"import os\nos.symlink({str(tmp_path)!r}, 'a')\nos.symlink({str(secret)!r}, 'link')\nopen('own', 'w').write('x')",
        fetch=[path, "own"],
    )
    assert (result.status, dict(result.files)) == ("ok", {"own": b"x"}), result
