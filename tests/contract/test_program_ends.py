"""What every sandbox owes its caller at the end of a program: of its threads, its exit handlers and its files."""

from __future__ import annotations

import gzip

import pytest
from test_sandbox_contract import pytestmark, run  # noqa: F401

from retcon.sandbox.types import Limits
from sandboxes import Opened


def test_threads_and_exit_handlers_finish(opened: Opened) -> None:
    code = (
        "import atexit, threading\natexit.register(print, 'bye')\n"
        "go = threading.Event()\nthreading.Thread(target=lambda: (go.wait(), print('thread'))).start()\ngo.set()"
    )
    assert run(opened, code).stdout == "thread\nbye\n"
    assert run(opened, f"{code}\nraise SystemExit").stdout == "thread\nbye\n"
    failed = run(opened, f"{code}\n1 / 0")
    assert (failed.stdout, failed.error_type) == ("thread\nbye\n", "ZeroDivisionError")


@pytest.mark.parametrize("end", ["", "raise SystemExit", "1 / 0"], ids=["end", "exit", "error"])
def test_files_left_open_are_written_out(opened: Opened, end: str) -> None:
    code = (
        "import gzip\n"
        "text = open('text', 'w'); text.write('hi')\n"
        "packed = gzip.open('packed', 'wt'); packed.write('hi')\n"
        "class Ring: pass\n"
        "ring = Ring(); ring.ring, ring.file = ring, open('ring', 'wb'); ring.file.write(b'hi'); del ring\n"
    )
    files = run(opened, code + end, fetch=["text", "packed", "ring"]).files
    assert (files["text"], files["ring"], gzip.decompress(files["packed"])) == (b"hi", b"hi", b"hi")


def test_touch_makes_a_file(opened: Opened) -> None:
    """It does only where times cannot be set, and those of the user's own files never are in landlock."""
    result = run(opened, "from pathlib import Path\nfor _ in range(2): Path('new').touch()", fetch=["new"])
    assert (result.status, result.files) == ("ok", {"new": b""})


@pytest.mark.parametrize("ends", ["os.pipe()", "(end.detach() for end in socket.socketpair())"], ids=["pipe", "socket"])
@pytest.mark.parametrize("mode", ["r", "rb"])
def test_a_thread_that_waits_for_more_keeps_no_program_from_its_end(opened: Opened, ends: str, mode: str) -> None:
    """It holds its file's lock, and is a daemon, as those of servers are."""
    code = (
        f"import os, socket, threading\nfirst, second = {ends}\n"
        f"file, reads = os.fdopen(first, {mode!r}), threading.Event()\n"
        "threading.Thread(target=lambda: (reads.set(), file.readline()), daemon=True).start()\n"
        "reads.wait()\nthreading.Event().wait(0.05)\n"
    )
    limits = Limits(wall_seconds=3)
    assert run(opened, code, limits=limits).status == "ok"
    result = run(opened, f"{code}text = open('text', 'w'); text.write('hi')", limits=limits, fetch=["text"])
    assert (result.status, result.files) == ("ok", {"text": b"hi"})


def test_a_thread_without_end_is_no_success_because_the_program_has_ended(opened: Opened) -> None:
    code = "import threading\nthreading.Thread(target=threading.Event().wait).start()\nraise SystemExit"
    assert run(opened, code, limits=Limits(wall_seconds=0.3)).status == "timeout"
