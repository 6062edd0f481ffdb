"""A session's code against the files that a rollback puts back, and through them against the host's."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_attack_session_copies import FORGE

from jail import ALL, LANDLOCK, NAMESPACES, RLIMITS, Attacked, Jail, contained_by
from retcon.core.errors import SandboxWarning, SessionLost
from retcon.sandbox.pool.fleet import MEMORY


@pytest.fixture
def session(jail: Jail) -> Attacked:
    return jail.session()


@pytest.fixture
def victim() -> Iterator[Path]:
    """A file of the host in the file system of the scratch folders, in a folder that all may enter."""
    home = MEMORY if os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix="victim-", dir=home))
    folder.chmod(0o755)
    file = folder / "file"
    file.write_text("host")
    file.chmod(0o600)
    yield file
    shutil.rmtree(folder)


def untouched(file: Path, mode: int = 0o600) -> bool:
    facts = file.stat()
    return (file.read_text(), stat.S_IMODE(facts.st_mode), facts.st_uid) == ("host", mode, os.getuid())


@contained_by(*ALL)
def test_a_forged_copy_does_not_exchange_files_for_links_while_they_are_put_back(
    session: Attacked, victim: Path
) -> None:
    number = {"x86_64": 316, "aarch64": 276}[os.uname().machine]
    session.run(
        FORGE
        + f"""
os.mkdir('s')
for i in range(100):
    os.mkfifo(f'f{{i}}'); os.symlink({str(victim)!r}, f's/f{{i}}')
    os.chmod(f'f{{i}}', 0o4666)
names = [(f'f{{i}}'.encode(), f's/f{{i}}'.encode()) for i in range(100)]
libc = ctypes.CDLL(None)
def work(w):
    os.write(w, b'x')
    while True:
        for a, b in names: libc.syscall({number}, -100, a, -100, b, 2)  # renameat2, RENAME_EXCHANGE
forge(work)
"""
    )
    state = session.checkpoint()
    with pytest.raises(SessionLost):  # what is woken then is no interpreter
        session.rollback(state)
    assert untouched(victim)
    session.close()


@contained_by(*ALL)
@pytest.mark.parametrize("name", ["file", "fifo", "folder/inner"])
def test_a_link_in_the_place_of_a_file_is_not_followed(session: Attacked, victim: Path, name: str) -> None:
    session.run(
        "import os\nopen('file', 'w').write('x'); os.mkfifo('fifo'); os.mkdir('folder'); open('folder/inner', 'w').write('x')\n"
        "os.chmod('file', 0o4777); os.chmod('fifo', 0o777); os.chmod('folder/inner', 0o777)"
    )
    state = session.checkpoint()
    session.run(f"os.unlink({name!r}); os.symlink({str(victim)!r}, {name!r})")
    session.rollback(state)
    assert session.run(f"os.path.islink({name!r}), sorted(os.listdir())").value == "(False, ['fifo', 'file', 'folder'])"
    assert untouched(victim)
    session.close()


@contained_by(*ALL)
def test_a_link_in_the_place_of_a_folder_is_not_entered(session: Attacked, victim: Path) -> None:
    session.run(
        "import os, shutil\nos.makedirs('a/b'); open('a/file', 'w').write('x'); open('a/b/file', 'w').write('y')"
    )
    state = session.checkpoint()
    for swap in (
        f"shutil.rmtree('a'); os.symlink({str(victim.parent)!r}, 'a')",
        f"shutil.rmtree('a/b'); os.symlink({str(victim.parent)!r}, 'a/b')",
    ):
        session.run(swap)
        session.rollback(state)
        assert session.run("open('a/file').read(), open('a/b/file').read()").value == "('x', 'y')"
        assert untouched(victim)
    assert [file.name for file in victim.parent.iterdir()] == ["file"]
    session.close()


@contained_by(*ALL)
def test_a_further_name_of_a_host_file_is_not_written_through(session: Attacked, victim: Path) -> None:
    """In `rlimits` a file that a call may write can be given a name in its scratch folder."""
    victim.chmod(0o666)
    victim.parent.chmod(0o777)
    linked = session.run(f"import os\nos.link({str(victim)!r}, 'mine')\nopen('own', 'w').write('x')")
    assert linked.status == "error" or session.jail.tier == RLIMITS
    state = session.checkpoint()
    victim.write_text("host")
    victim.chmod(0o640)
    before = victim.stat().st_mtime_ns
    if linked.status == "ok":
        session.run("open('own', 'w').write('y')")
    session.rollback(state)
    assert untouched(victim, 0o640)
    assert victim.stat().st_mtime_ns == before
    assert victim.stat().st_nlink == 1
    session.close()


def _open_to_all(victim: Path) -> Path:
    """A folder that a call may move, with one in it whose file it may not remove."""
    inner = victim.parent / "open"
    (inner / "kept").mkdir(parents=True)
    (inner / "kept/file").write_text("host")
    inner.chmod(0o777)
    victim.parent.chmod(0o777)
    return inner


@contained_by(*ALL)
def test_files_of_others_that_are_moved_into_the_folder_keep_what_they_are(session: Attacked, victim: Path) -> None:
    """In `rlimits` a folder that all may write to can be moved away, and what lies in it is not the session's."""
    inner = _open_to_all(victim)
    state = session.checkpoint()
    moved = session.run(f"import os\nos.rename({str(inner)!r}, 'taken')\nos.getcwd()")
    assert moved.status == "error" or session.jail.tier == RLIMITS
    assert "fault" not in session.tries(rollback=state)
    if moved.status == "ok" and os.getuid() == 0:  # an ordinary user's files are open to it there (docs)
        taken = Path(literal_eval(moved.value), "taken")
        assert (taken / "kept/file").read_text() == "host"
        shutil.rmtree(taken)
    session.close()


@contained_by(RLIMITS)
@pytest.mark.skipif(os.getuid() != 0, reason="an ordinary user's files are open to it there (docs)")
@pytest.mark.parametrize("by", ["call", "session"])
def test_the_end_of_a_pool_leaves_files_of_others_that_were_moved_into_its_folder(
    jail: Jail, victim: Path, by: str
) -> None:
    inner = _open_to_all(victim)
    with pytest.warns(SandboxWarning, match="does not contain"):
        own = Jail(jail.tier)
    attacked = own.session() if by == "session" else own
    code = f"import os\nos.makedirs('a/b'); open('a/b/own', 'w').write('x')\nos.rename({str(inner)!r}, 'a/taken')\nprint(os.getcwd())"
    moved = attacked.run(code)
    assert moved.status == "ok", moved
    assert own.run("1").status == "ok"
    own.close()
    pool = Path(moved.stdout.strip()).parents[1]
    assert pool.parent == victim.parent.parent
    left = sorted(str(file.relative_to(pool)).split("/", 1)[1] for file in pool.rglob("*") if file != pool / file.name)
    assert left == ["taken", "taken/kept", "taken/kept/file"]
    assert [file.read_text() for file in pool.glob("*/taken/kept/file")] == ["host"]
    shutil.rmtree(pool)


@contained_by(*ALL)
def test_the_scratch_folder_itself_can_be_moved_away_and_comes_back(session: Attacked, victim: Path) -> None:
    session.run("import os\nopen('a', 'w').write('x')")
    state = session.checkpoint()
    moved = session.run(
        f"here = os.getcwd()\nos.rename(here, here + '.away')\nos.symlink({str(victim.parent)!r}, here)"
    )
    assert moved.status == ("error" if session.jail.tier != NAMESPACES and os.getuid() == 0 else "ok")
    session.rollback(state)
    assert session.run("os.listdir(), os.getcwd() == os.environ['HOME']").value == "(['a'], True)"
    assert untouched(victim)
    session.close()


@contained_by(*ALL)
def test_files_and_folders_without_rights_come_back_with_none(session: Attacked) -> None:
    session.run(
        """
        import os, stat
        os.mkdir('closed'); open('closed/in', 'w').write('x'); open('unread', 'w').write('y'); os.mkfifo('fifo')
        for name in ('closed/in', 'closed', 'unread', 'fifo'):
            fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
            os.fchmod(fd, 0); os.close(fd)
        def look():
            found = [oct(os.lstat(name).st_mode) for name in ('closed', 'unread', 'fifo')]
            return found + [os.lstat('unread').st_size]
        before = look()
        """
    )
    state = session.checkpoint()
    assert session.run("look() == before").value == "True"
    for spoil in ("", "os.rename('closed', 'other')", "os.unlink('unread'); open('unread', 'w')", "os.unlink('fifo')"):
        session.run(spoil)
        session.rollback(state)
        assert session.run("look() == before").value == "True"
    session.close()


@contained_by(*ALL)
def test_what_is_put_back_is_the_sessions_own(session: Attacked) -> None:
    session.run(
        "import os\nopen('s', 'w').write('#!')\nfd = os.open('s', os.O_RDONLY)\nos.fchmod(fd, 0o6755)\nos.makedirs('d/e')"
    )
    state = session.checkpoint()
    session.run("os.unlink('s'); os.removedirs('d/e')")
    session.rollback(state)
    owners = session.run("{(os.lstat(name).st_uid == os.getuid()) for name in ('.', 's', 'd', 'd/e')}")
    assert owners.value == "{True}"
    session.close()


@contained_by(*ALL)
def test_names_of_any_bytes_come_back(session: Attacked) -> None:
    session.run(
        """
        import os
        names = [b'\\xff\\xfe', b'a\\nb', b'-rf', b'x' * 255, b'\\xe2\\x82', ' '.encode(), b'..a']
        os.mkdir(b'd\\xff')
        for name in names:
            open(name, 'w').close(); open(b'd\\xff/' + name, 'w').close(); os.symlink(name, b'd\\xff/l' + name[:200])
        tree = lambda: sorted((f, *sorted(a), *sorted(b)) for f, a, b in os.walk(b'.'))
        before = tree()
        """
    )
    state = session.checkpoint()
    session.run("for name in names: os.unlink(name)\nopen(b'\\xff\\xff', 'w').close(); os.rename(b'd\\xff', b'd\\xfe')")
    session.rollback(state)
    assert session.run("tree() == before").value == "True"
    session.close()


@contained_by(*ALL)
def test_a_tree_deeper_than_any_path_is_removed(session: Attacked) -> None:
    session.run("import os\nopen('a', 'w').write('x')\nhere = os.getcwd()")
    state = session.checkpoint()
    session.run(
        "for _ in range(1500):\n    os.mkdir('d' * 9); os.chdir('d' * 9)\nopen('x', 'w').close()\nos.symlink(here, 'l')"
    )
    assert session.tries() != ""  # nested too deep, or too much
    session.rollback(state)
    assert session.run("os.listdir()").value == "['a']"
    session.close()


@contained_by(*ALL)
def test_a_lease_does_not_make_the_keeper_wait(session: Attacked) -> None:
    session.run(
        "import fcntl, os\nopen('a', 'w').write('x'); open('b', 'w').write('y')\nkept = [open(n, 'r+') for n in 'ab']"
    )
    session.run("for f in kept: fcntl.fcntl(f, 1024, fcntl.F_WRLCK)")  # which the filter may refuse
    for repeat in range(2):
        prevented = session.tries()
        assert "fault" not in prevented
        if not prevented:
            assert "fault" not in session.tries(rollback=f"checkpoint {repeat + 1}")
    session.rests()
    session.close()


@contained_by(LANDLOCK, RLIMITS)
def test_a_disk_that_a_forged_copy_would_fill_is_watched_while_the_session_rests(session: Attacked) -> None:
    session.run(
        FORGE
        + "def work(w):\n    os.write(w, b'x')\n    for n in range(1000):\n        open(f'f{n}', 'wb').write(b'x' * (1 << 20))\nforge(work)"
    )
    assert "fault" not in session.tries()
    session.rests()
    session.close()


@contained_by(*ALL)
def test_a_link_in_the_place_of_the_scratch_folder_hands_no_file_back(session: Attacked, victim: Path) -> None:
    session.run(
        f"""
import os
here = os.getcwd()
try:
    os.rename(here, here + 'away')
    os.symlink({str(victim.parent)!r}, here)
except OSError:
    os.symlink({str(victim)!r}, 'file')
"""
    )
    assert session.run("1", fetch=[victim.name]).files == {}
    assert untouched(victim)
