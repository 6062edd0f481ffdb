"""Attacks on files: what is the host's can be neither read nor changed."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from jail import ALL, CALL, CONTAINED, LANDLOCK, NAMESPACES, Jail, contained_by
from retcon.sandbox.jail.confine.root import DEVICES, readable
from retcon.sandbox.pool import SandboxPool

SECRET = "hunter2"


@pytest.fixture(params=["/tmp", "/dev/shm", "/var/tmp"])
def victim(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file on the host that everyone may read and write, in a folder where everyone may do anything."""
    folder = Path(tempfile.mkdtemp(dir=request.param))
    folder.chmod(0o777)
    file = folder / "victim"
    file.write_text(SECRET)
    file.chmod(0o666)
    yield file
    shutil.rmtree(folder)


def intact(victim: Path) -> bool:
    return (
        victim.read_text() == SECRET
        and [path.name for path in victim.parent.iterdir()] == ["victim"]
        and stat.S_IMODE(victim.stat().st_mode) == 0o666
    )


@contained_by(*CONTAINED)
def test_a_file_of_the_host_is_not_read_by_any_path(jail: Jail, victim: Path) -> None:
    result = jail.attack(f"""
        import glob, os
        path = {str(victim)!r}
        os.symlink(path, 'link')
        os.symlink('/', 'root')
        ways = [path, 'link', 'root' + path, '../' * 30 + path, '/proc/1/root' + path, '/proc/self/root' + path]
        ways += ['/proc/self/cwd/' + '../' * 30 + path] + [f'/proc/self/fd/{{fd}}/..{{path}}' for fd in range(64)]
        ways += glob.glob('/proc/[0-9]*/root' + path) + glob.glob('/proc/[0-9]*/cwd' + path)
        for way in ways:
            try:
                print('read', open(way).read())
            except OSError:
                pass
        for fd in range(256):
            try:
                print('read', os.open(path, os.O_RDONLY, dir_fd=fd), fd)
            except OSError:
                pass
        print(len(ways))
    """)
    assert result.status == "ok", result
    assert result.stdout.strip().isdigit(), result.stdout


@contained_by(*CONTAINED)
def test_a_file_of_the_host_is_not_changed_by_any_call(jail: Jail, victim: Path) -> None:
    result = jail.attack(f"""
        import os, shutil
        path = {str(victim)!r}
        new = os.path.dirname(path) + '/new'
        open('own', 'w').write('broken')
        tries = dict(
            write=lambda: open(path, 'w').write('broken'), append=lambda: open(path, 'a').write('broken'),
            truncate=lambda: os.truncate(path, 0), opened=lambda: os.open(path, os.O_RDONLY | os.O_TRUNC),
            unlink=lambda: os.unlink(path), rename=lambda: os.rename(path, 'mine'), over=lambda: os.rename('own', path),
            make=lambda: open(new, 'w'), folder=lambda: os.mkdir(new), link=lambda: os.link(path, 'mine'),
            out=lambda: os.link('own', new), symlink=lambda: os.symlink('/', new), fifo=lambda: os.mkfifo(new),
            copy=lambda: shutil.copy('own', new), chmod=lambda: os.chmod(path, 0), utime=lambda: os.utime(path, (0, 0)),
            setxattr=lambda: os.setxattr(path, 'user.x', b'y'), remove=lambda: shutil.rmtree(os.path.dirname(path)),
        )
        for name, work in tries.items():
            try:
                work()
                print(name)
            except OSError:
                pass
    """)
    assert result.status == "ok", result
    assert set(result.stdout.split()) <= {"chmod", "utime"}  # they may seem to work, and do not
    assert intact(victim)
    assert victim.stat().st_mtime > 0


@contained_by(*CONTAINED)
@pytest.mark.skipif(os.getuid() == 0, reason="calls have a user of their own, whose file it is not")
def test_a_file_that_may_be_read_keeps_its_mode_and_times(jail: Jail, tmp_path: Path) -> None:
    """It is the user's own: of an environment, with its packages, that the user has made."""
    venv.create(tmp_path / "own", symlinks=True)
    module = next((tmp_path / "own").glob("lib/python*/site-packages")) / "module.py"
    module.write_text("found = 1")
    before = module.stat()
    code = (
        f"import module, os\nfd = os.open({str(module)!r}, os.O_RDONLY)\n"
        "for work in (lambda: os.fchmod(fd, 0), lambda: os.utime(fd, (1, 1)), lambda: os.fchown(fd, -1, os.getgid())):\n"
        "    try: work()\n    except OSError: pass\nprint(module.found)"
    )

    async def run() -> str:
        async with SandboxPool(1, tier=jail.tier, python=str(tmp_path / "own" / "bin" / "python")) as sandbox:
            return (await sandbox.run(code)).stdout

    assert asyncio.run(run()) == "1\n"
    after = module.stat()
    assert (after.st_mode, after.st_mtime, after.st_ctime) == (before.st_mode, before.st_mtime, before.st_ctime)


@contained_by(*ALL)
def test_times_of_devices_are_what_the_page_says(jail: Jail) -> None:
    """A path, a descriptor and stdin, set to now and to a time; writing to the device goes on."""
    before = {path: Path(path).stat().st_mtime_ns for path in DEVICES}
    result = jail.attack(f"""
        import os
        for path in {DEVICES}:
            for target in (lambda: path, lambda: os.open(path, os.O_RDONLY), lambda: os.open(path, os.O_RDWR), lambda: 0):
                for times in (None, (1, 1)):
                    try:
                        os.utime(target(), times)
                    except OSError:
                        pass
        print(open('/dev/null', 'w').write('x'), len(open('/dev/urandom', 'rb').read(7)))
    """)
    assert result.stdout == "1 7\n", result
    changed = [path for path in DEVICES if Path(path).stat().st_mtime_ns != before[path]]
    kept = jail.tier == NAMESPACES or (jail.tier == LANDLOCK and os.getuid() != 0)
    assert (not changed) == kept


@contained_by(*CONTAINED)
@pytest.mark.parametrize(
    "path", ["/etc/shadow", "/etc/passwd", "/etc/hostname", "/root", "/home", "/sys", "/run", "/var/log"]
)
def test_places_of_the_host_are_closed(jail: Jail, path: str) -> None:
    result = jail.attack(f"""
        import os
        path = {path!r}
        if os.path.isdir(path):
            print(os.listdir(path))
        else:
            print(open(path).read())
    """)
    if jail.tier == NAMESPACES and path == "/etc/passwd":
        assert result.stdout.startswith("sandbox:x:")
        assert "root" not in result.stdout
    elif result.status == "ok":  # Python may lie in it: then the way to it is there, and nothing else
        assert jail.tier == NAMESPACES
        assert set(eval(result.stdout)) <= {
            way.split("/")[len(path.split("/"))] for way in readable() if way.startswith(path + "/")
        }
    else:
        assert (result.status, result.stdout) == ("error", ""), result


@contained_by(*CONTAINED)
def test_this_project_is_not_there(jail: Jail) -> None:
    paths = [str(Path(__file__).resolve()), str(Path(__file__).resolve().parents[3] / "pyproject.toml")]
    result = jail.attack(f"""
        for path in {paths}:
            try:
                print(open(path).read())
            except OSError as error:
                print(type(error).__name__ in ('FileNotFoundError', 'PermissionError'))
    """)
    assert result.stdout == "True\nTrue\n"


@contained_by(*ALL)
def test_secrets_of_the_environment_are_not_there(jail: Jail, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETCON_TEST_SECRET", SECRET)
    another = Jail(jail.tier) if jail.tier != "rlimits" else None  # started with the secret around it
    try:
        result = (another or jail).attack("""
            import glob, os
            print(os.environ)
            for path in glob.glob('/proc/self/environ') + [f'/proc/{os.getppid()}/environ', '/proc/1/environ']:
                try:
                    print(open(path).read())
                except OSError:
                    pass
        """)
    finally:
        if another:
            another.close()
    assert result.status == "ok"
    assert "PYTHONHASHSEED" in result.stdout
    assert SECRET not in result.stdout


@contained_by(*ALL)
def test_standard_folders_of_the_system_cannot_be_written(jail: Jail) -> None:
    result = jail.attack("""
        import os, sys, math
        for folder in ('/', '/etc', '/usr', '/usr/lib', '/bin', '/dev', '/proc', os.path.dirname(os.__file__), sys.prefix):
            for name in ('new', 'os.py', 'passwd'):
                try:
                    os.close(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT))
                    print('wrote', folder, name)
                except OSError:
                    pass
    """)
    if jail.tier == "rlimits" and os.getuid() != 0:
        return  # there ordinary permissions hold, and this user's Python may be this user's own
    assert (result.status, result.stdout) == ("ok", "")


@contained_by(*ALL)
def test_no_device_is_made_and_none_but_harmless_ones_are_opened(jail: Jail) -> None:
    result = jail.attack("""
        import glob, os, stat
        for kind in (stat.S_IFBLK, stat.S_IFCHR):
            try:
                os.mknod('device', 0o600 | kind, os.makedev(1, 1))
                print('made')
            except OSError:
                pass
        for path in ('/dev/mem', '/dev/kmsg', '/dev/sda', '/dev/vda', '/dev/fuse', '/dev/kvm', '/dev/net/tun', '/dev/tty'):
            try:
                open(path, 'rb')
                print(path)
            except OSError:
                pass
        print(len(open('/dev/urandom', 'rb').read(8)), open('/dev/full', 'rb').read(1), open('/dev/null', 'w').write('x'))
    """)
    if jail.tier == "rlimits":
        assert "made" not in result.stdout
    else:
        assert result.stdout == "8 b'\\x00' 1\n", result


@contained_by(*ALL)
def test_root_and_its_capabilities_are_gone(jail: Jail) -> None:
    result = jail.attack("""
        import ctypes, os
        sets = (ctypes.c_uint32 * 6)()
        ctypes.CDLL(None).capget((ctypes.c_uint32 * 2)(0x20080522, 0), sets)
        reads_all = 1 << 1 | 1 << 2
        print(0 in os.getresuid() + os.getresgid(), os.getgroups(), [value & ~reads_all for value in sets])
        for uid in (0, 1):
            for change in (os.setuid, os.setgid, os.setreuid):
                try:
                    change(uid, uid) if change is os.setreuid else change(uid)
                    print('became', uid)
                except OSError:
                    pass
    """)
    groups = "[]" if os.getuid() == 0 else str(os.getgroups())
    assert result.stdout in (f"False {groups} [0, 0, 0, 0, 0, 0]\n", "False [] [0, 0, 0, 0, 0, 0]\n"), result
    if os.getuid() == 0 and jail.tier == NAMESPACES:
        caps = jail.attack("print([l.split()[1] for l in open('/proc/self/status') if l[:3] == 'Cap'][:4])")
        assert caps.stdout == f"{['0' * 16] * 3 + [caps.stdout[-19:-3]]}\n"


@contained_by(NAMESPACES)
def test_there_is_no_way_back_to_the_old_root(jail: Jail) -> None:
    result = jail.attack("""
        import os
        print(sorted(os.listdir('/')), open('/proc/self/mounts').read())
        for fd in range(64):
            try:
                print(fd, os.listdir(fd))
            except OSError:
                pass
    """)
    assert "old_root" not in result.stdout
    assert "/var" not in result.stdout.splitlines()[0]
    assert len(result.stdout.splitlines()) < 30
    assert jail.attack(CALL + "print(call(161, b'.'))").stdout == "EPERM\n"  # chroot, the classic way out


@contained_by(*ALL)
def test_files_that_are_given_stay_in_the_scratch_folder(jail: Jail, tmp_path: Path) -> None:
    """Or, by absolute paths, in the writable folders of a root of its own: never in the machine's."""
    for name in ("../out", "a/../../out", "/tmp/../out", "/etc/out", "/proc/self/out", "/mnt"):
        with pytest.raises(ValueError, match="inside the scratch folder"):
            jail.run("1", files={name: b"x"})
    of_the_machine = Path(tempfile.mkdtemp(dir="/tmp"))
    names = [f"{tmp_path}/out", f"{of_the_machine}/out", f"/dev/shm/{of_the_machine.name}"]
    try:
        for name in names:
            if name.startswith(jail.folders):
                assert jail.attack(f"print(open({name!r}).read())", files={name: b"x"}).stdout == "x\n"
            else:
                with pytest.raises(ValueError, match="inside the scratch folder"):
                    jail.run("1", files={name: b"x"})
            assert not Path(name).exists()
    finally:
        of_the_machine.rmdir()
