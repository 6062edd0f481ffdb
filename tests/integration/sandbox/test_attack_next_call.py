"""Attacks on the next call: whatever one did, the next starts from the same fresh interpreter and an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from jail import ALL, CALL, NAMESPACES, Jail, contained_by

POISONS = {
    "builtins": "import builtins\nfor name in ('print', 'len', 'repr', 'open', '__import__'): setattr(builtins, name, None)",
    "modules": "import os, sys, json\nos.listdir = os.getcwd = lambda *a: ['evil']\nsys.modules['json'] = None\nsys.path[:] = ['/tmp']",
    "meta path": "import sys\nsys.meta_path.clear()\nsys.path_hooks.clear()\nsys.path_importer_cache.clear()",
    "environment": "import os\nos.environ.clear()\nos.environ['PYTHONPATH'] = '/tmp'\nos.chdir('/')\nos.umask(0o777)",
    "files": "import os\nos.makedirs('a/b')\nopen('a/b/c', 'w').close()\nos.symlink('/', 'a/root')\nos.chmod('a/b', 0)\nos.chmod('a', 0)",
    "module files": "for name in ('os', 'json', 'sitecustomize', 'encodings', 'random'): open(name + '.py', 'w').write('1 / 0')",
    "own folder": "import os\nos.rename('.', '../other')",
    "own folder's end": "import os\nos.rmdir(os.getcwd())",
    "own folder's modes": "import os\nos.fchmod(os.open('.', os.O_RDONLY), 0)",
    "a deep tree": "import os\nfor _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')",
    "a link in its place": "import os\nos.chdir('..')\nos.rmdir('scratch')\nos.symlink('/usr', 'scratch')",
    "other folder's modes": "import os\nfor p in (os.path.dirname(os.getcwd()), '/dev/shm'):\n    os.fchmod(os.open(p, os.O_RDONLY), 0)",
    "files beside": "for p in ('/tmp', '/dev/shm', '/var/tmp', '..'):\n    open(p + '/scratch-left', 'w').write('x')",
    "many files": "for n in range(5000): open(str(n), 'w').close()",
    "a fifo and a socket": "import os, socket\nos.mkfifo('f')\nsocket.socket(socket.AF_UNIX).bind('s')",
    "a handler of the worker": "import os, signal\nfor n in (signal.SIGXCPU, signal.SIGINT, signal.SIGCHLD): os.kill(os.getppid(), n)",
    "a lock": "import fcntl, os\nfcntl.flock(os.open('.', os.O_RDONLY), fcntl.LOCK_EX)",
    "hash seed": "import random\nrandom.seed(1)\nhash('x')",
    "its nice value": "import os\nos.nice(10)\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})",
}
AFTER = """
import json, os, random, sys, time
print(len([1]), open is not None, os.listdir(), os.path.basename(os.getcwd()), json.dumps([1]), 'PYTHONPATH' in os.environ)
print(oct(os.umask(0o22)), os.nice(0), len(os.sched_getaffinity(0)) == os.cpu_count(), 'x' in globals())
open('mine', 'w').write('x')
os.mkdir('folder')
print(open('folder/../mine').read(), sorted(os.listdir('.')))
"""


@contained_by(*ALL)
@pytest.mark.parametrize("poison", POISONS)
def test_the_next_call_is_not_affected(jail: Jail, poison: str) -> None:
    before = jail.run(AFTER)
    assert before.status == "ok", before
    worker = jail.pid
    jail.run(POISONS[poison], cpu_seconds=20)
    after = jail.run(AFTER)
    assert (after.status, after.stdout, after.stderr) == ("ok", before.stdout, "")
    assert jail.pid == worker  # and at no cost: the same worker goes on


LEFT = {
    **{
        name: POISONS[name]
        for name in ("builtins", "files", "own folder's end", "a deep tree", "a link in its place", "a lock")
    },
    "a process": "import subprocess\nsubprocess.Popen(['sleep', '100'])",
    "a thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(100,)).start()",
    "its end": "import os\nos._exit(3)",
}


@contained_by(*ALL)
@pytest.mark.parametrize("left", LEFT)
def test_the_next_session_of_the_same_worker_is_not_affected(jail: Jail, left: str) -> None:
    fresh = jail.session()
    before = fresh.run(AFTER)
    assert before.status == "ok", before
    fresh.close()
    spoiled = jail.session(cpu_seconds=20)
    worker = spoiled.worker
    spoiled.checkpoint()
    spoiled.run(LEFT[left])
    spoiled.close()
    following = jail.session()
    after = following.run(AFTER)
    assert (after.status, after.stdout, after.stderr) == ("ok", before.stdout, "")
    assert (following.worker == worker) == (left != "its end")  # which loses the session, and the worker with it
    following.close()


@contained_by(*ALL)
def test_a_worker_opens_no_more_files_with_each_session(jail: Jail) -> None:
    found = []
    for _ in range(3):
        session = jail.session()
        session.checkpoint()
        (process,) = session.keepers()
        try:
            found.append((process, len([*Path(f"/proc/{process}/fd").iterdir()])))
        except PermissionError as error:
            pytest.skip(f"an ordinary user may not count the open files of a contained process: {error}")
        session.close()
    assert len(set(found[1:])) == 1, found


@contained_by(NAMESPACES)
def test_a_session_that_talked_over_the_loopback_takes_its_worker_with_it(jail: Jail) -> None:
    talks = jail.session()
    worker = talks.worker
    cell = """
        import socket
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
            print("ok")
    """
    assert talks.run(cell).stdout == "ok\n"
    talks.close()
    assert jail.session().worker != worker


@contained_by(*ALL)
def test_no_descriptor_of_the_worker_is_there(jail: Jail) -> None:
    result = jail.attack("""
        import os
        for fd in range(4, 1024):
            try:
                os.fstat(fd)
                print(fd)
            except OSError:
                pass
    """)
    assert (result.status, result.stdout) == ("ok", "")


@contained_by(NAMESPACES)
def test_what_is_left_in_shared_folders_is_gone(jail: Jail) -> None:
    jail.attack("for p in ('../left', '/dev/shm/left'): open(p, 'w').write('x')")
    assert jail.attack("import os\nprint(os.listdir('..'), os.listdir('/dev/shm'))").stdout == "['scratch'] []\n"


@contained_by(NAMESPACES)
def test_shared_folders_can_be_neither_removed_nor_replaced(jail: Jail) -> None:
    result = jail.attack("""
        import os
        for path in (os.path.dirname(os.getcwd()), '/dev/shm'):
            for work in (os.rmdir, lambda path: os.rename(path, '/usr/x'), lambda path: os.rename(path, path + '2')):
                try:
                    work(path)
                    print(path)
                except OSError:
                    pass
    """)
    assert result.stdout == ""


@contained_by(*ALL)
def test_no_access_list_is_left_on_a_folder(jail: Jail) -> None:
    """A default ACL would be inherited by the next call's folder."""
    result = jail.attack(
        CALL
        + "import os\ntry:\n    os.setxattr('..', 'system.posix_acl_default', bytes(28))\nexcept OSError as e:\n    print(e.errno)"
    )
    assert result.stdout == f"{95}\n"


@contained_by(*ALL)
def test_no_result_of_the_call_before_is_among_the_objects(jail: Jail) -> None:
    """A sibling's right answer to the same task could be printed as one's own."""
    jail.run("print('se' + 'cret')\nopen('a', 'w').write('se' + 'cret')\n'se' + 'cret'", fetch=["a"])
    result = jail.attack("""
        import gc, sys
        seen, frame = [type(o).__name__ for o in gc.get_objects()], sys._getframe()
        while frame:
            seen += [f'{frame.f_code.co_name}.{name}' for name, value in frame.f_locals.items() if 'se' + 'cret' in str(value)]
            frame = frame.f_back
        print([name for name in seen if name in ('Outcome', 'CallEnded') or name.startswith('serve')])
    """)
    assert result.stdout == "[]\n"
